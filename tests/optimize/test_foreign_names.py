"""Operators of users' domains that have the names of ONNX's and do something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.ir.types import TensorType

Array = np.ndarray[Any, Any]
DOMAIN = "test.foreign"
NAMES = (
    "Add", "And", "Cast", "Clip", "Concat", "Conv", "Equal", "Expand", "Gather", "Gemm", "Identity", "If",
    "Less", "Loop", "MatMul", "Mul", "Pad", "QuantizeLinear", "Range", "ReduceSum", "Relu", "Reshape", "Shape",
    "Slice", "Softmax", "Split", "Squeeze", "Transpose", "Unsqueeze", "Where",
)  # fmt: skip


def foreign(x: Any) -> Any:
    return x * 2 + 1


for _name in NAMES:
    sardonyx.custom_op(DOMAIN, _name, infer=lambda x: TensorType(x.dtype, x.shape))(foreign)

RNG = np.random.default_rng(0)
X, W = (RNG.standard_normal((4, 4)).astype(np.float32) for _ in range(2))
LOOP = "y = Loop(n, yes, x) <body = b (int64 i, bool c, float[4,4] v) => (bool d, float[4,4] u) {{ {} }}>"

CASES: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "a state of a loop": (LOOP.format("d = Identity(c) u = F(v)"), lambda x: foreign(foreign(foreign(x)))),
    "invariant in a loop": (LOOP.format("d = Identity(c) q = F(w) u = Add(v, q)"), lambda x: x + 3 * foreign(W)),
    "the condition of a loop": (
        LOOP.format("q = F(v) m = ReduceMax<keepdims = 0>(q) d = Less(m, least) u = Add(v, v)"), lambda x: x + x
    ),
    "a branch": (
        """s = Shape(x) i = Gather(s, zero) c = Equal(i, four)
        y = If(c) <then_branch = t () => (float[4,4] u) { u = F(x) },
        else_branch = e () => (float[4,4] v) { v = Neg(x) }>
        """,
        foreign,
    ),
    "between transposes": ("a = Transpose(x) b = F(a) y = Transpose(b)", foreign),
    "between products": ("a = MatMul(x, w) b = F(a) y = MatMul(b, w)", lambda x: foreign(x @ W) @ W),
    "before an activation": ("a = F(x) b = Sigmoid(a) y = Mul(a, b)", lambda x: foreign(x) / (1 + np.exp(-foreign(x)))),
    "of a constant": ("a = F(w) y = Add(x, a)", lambda x: x + foreign(W)),
    "sliced": ("a = F(x) b, c = Split<axis = 0, num_outputs = 2>(a) y = Concat<axis = 0>(b, c)", foreign),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_names_of_onnx_mean_nothing_in_other_domains(case: str) -> None:
    body, expected = CASES[case]
    for name in NAMES:
        text = body.replace("F(", f"{DOMAIN}.{name}(")
        model = onnx.parser.parse_model(
            f"""<ir_version: 9, opset_import: ["": 18, "{DOMAIN}": 1]> g (float[4,4] x) => (float[4,4] y)
            <bool yes = {{1}}, int64 n = {{3}}, float least = {{-1000}}, int64 zero = {{0}}, int64 four = {{4}}>
            {{ {text} }}"""
        )
        model.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
        (got,) = sardonyx.InferenceSession(model.SerializeToString()).run(None, {"x": X})
        np.testing.assert_allclose(got, expected(X), rtol=1e-4, atol=1e-5, err_msg=name)
