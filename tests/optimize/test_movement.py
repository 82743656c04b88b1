"""What only moves elements, merged and cancelled."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Graph, Model, Value
from sardonyx.ir.types import TensorType
from sardonyx.ops.infer import infer_node
from sardonyx.optimize import manager
from tests.optimize.graphs import apply, ops
from tests.optimize.rewritten import Case, check, run

PASSES = (
    "FuseSlices", "FuseGatherUnsqueeze", "FoldGatherND", "CancelSplits", "FuseConcats", "FuseTransposes",
    "CancelTransposes", "FuseTransposes", "FoldTransposeReduce", "FoldShapeOfTranspose", "FoldUnitTranspose",
    "FoldTransposedConstants", "FuseFlatSoftmax", "FuseReshapes", "RemoveNoOps",
)  # fmt: skip
X = {"x": (2, 3, 4, 5)}
TO, BACK = "perm=[0,2,3,1]", "perm=[0,3,1,2]"
END = 2**63 - 1


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


FUSED = {
    "reshapes": Case("a = Reshape(x, s) y = Reshape(a, t)", ["Reshape"], X, {"s": ints(6, -1), "t": ints(3, 2, -1)}),
    "reshape that copies an axis of the first": Case(
        "a = Reshape(x, s) y = Reshape(a, t)", ["Reshape"], X, {"s": ints(6, 20), "t": ints(0, 4, 5)}
    ),
    "reshape and back": Case("a = Reshape(x, s) b = Reshape(a, t) y = Relu(b)", ["Relu"], X,
                             {"s": ints(6, 20), "t": ints(2, 3, 4, 5)}),
    "flatten and unsqueeze": Case("a = Flatten(x) y = Unsqueeze(a, s)", ["Reshape"], X, {"s": ints(0)}),
    "unsqueeze twice": Case(
        "a = Unsqueeze(x, s) y = Unsqueeze(a, t)", ["Unsqueeze"], X, {"s": ints(1, -1), "t": ints(0, 3)},
        symbols={"x": "[a, b, c, d]"},
    ),
    "unsqueeze and squeeze": Case(
        "a = Unsqueeze(x, s) b = Squeeze(a, t) y = Relu(b)", ["Relu"], X, {"s": ints(1), "t": ints(-4)},
        symbols={"x": "[a, b, c, d]"},
    ),
    "free dimensions that stay": Case(
        "a = Unsqueeze(x, s) y = Reshape(a, t)", ["Reshape"], {"x": (2, 3, 8)}, {"s": ints(2), "t": ints(0, 0, 4, 2)},
        symbols={"x": "[batch, length, 8]"},
    ),
    "an empty batch that is inferred": Case(
        "a = Flatten<axis=2>(x) y = Unsqueeze(a, s)", ["Reshape"], {"x": (0, 3, 4)}, {"s": ints(0)},
        symbols={"x": "[batch, length, 4]"},
    ),
    "an empty batch that is copied": Case(
        "a = Flatten<axis=1>(x) y = Unsqueeze(a, s)", ["Reshape"], {"x": (0, 3, 4)}, {"s": ints(-1)},
        symbols={"x": "[batch, 3, 4]"},
    ),
    "lengths copied and inferred, as the model asked": Case(
        "a = Reshape(x, t) y = Unsqueeze(a, s)", ["Reshape"], {"x": (2, 3, 4)}, {"s": ints(2), "t": ints(0, -1)},
        symbols={"x": "[batch, length, 4]"},
    ),
    "rows looked up by tuples of one": Case(
        "u = Unsqueeze(i, s) y = GatherND(x, u)", ["Gather"], {**X, "i": np.array([[1, 0, -1], [0, 1, 1]])},
        {"s": ints(-1)},
    ),
    "slices of two axes": Case(
        "a = Slice(x, s, e, i) y = Slice(a, t, e, j, n)", ["Slice"], X,
        {"s": ints(1), "e": ints(END), "i": ints(2), "t": ints(-1), "j": ints(-1), "n": ints(1)},
    ),
    "gather and unsqueeze": Case(
        "a = Gather<axis=-2>(x, i) y = Unsqueeze(a, s)", ["Gather"], X, {"i": np.array(-1), "s": ints(2)}
    ),
    "concats": Case("a = Concat<axis=1>(x, x) b = Concat<axis=-3>(x, a, x) y = Relu(b)", ["Concat", "Relu"], X),
    "concat of a split": Case(
        "a, b = Split<axis=1>(x, s) c = Concat<axis=-3>(a, b) y = Relu(c)", ["Relu"], X, {"s": ints(1, 2)}
    ),
    "split of a concat": Case(
        "a = Concat<axis=1>(x, z) b, c = Split<axis=1>(a, s) d = Relu(b) y = Concat<axis=1>(d, c)", ["Relu", "Concat"],
        {**X, "z": (2, 1, 4, 5)}, {"s": ints(3, 1)},
    ),
    "softmax of an old operator set": Case(
        "a = Flatten<axis=1>(x) b = Softmax(a) s = Shape(x) y = Reshape(b, s)", ["Softmax"], {"x": (2, 3, 1, 1)}
    ),
    "transposes that cancel": Case(
        f"a = Transpose<{TO}>(x) b = Transpose<{BACK}>(a) y = Relu(b)", ["Relu"], X
    ),
    "transposes that merge": Case(f"a = Transpose<{TO}>(x) y = Transpose<{TO}>(a)", ["Transpose"], X),
    "transposes without an order": Case("a = Transpose(x) b = Transpose(a) y = Relu(b)", ["Relu"], X),
    "transpose of axes of length 1": Case(f"y = Transpose<{TO}>(x)", ["Reshape"], {"x": (2, 1, 4, 5)}),
    "transposed constant": Case("a = Transpose(w) y = Add(x, a)", ["Add"], X, {"w": (5, 4)}),
    "pointwise between transposes": Case(
        f"a = Transpose<{TO}>(x) b = Relu(a) c = Mul(b, k) d = Add(c, b) y = Transpose<{BACK}>(d)",
        ["Relu", "Mul", "Add"], X, {"k": (3,)},
    ),
    "two inputs turned": Case(
        f"a = Transpose<{TO}>(x) b = Transpose<{TO}>(z) y = Mul(a, b)", ["Mul", "Transpose"], {**X, "z": (2, 3, 4, 5)}
    ),
    "operators that name their axis": Case(
        f"a = Transpose<{TO}>(x) b = Softmax<axis=-1>(a) c, d = Split<axis=2>(b, s) e = Concat<axis=3>(c, d) "
        f"f = ReduceMax<keepdims=1>(e, g) y = Transpose<{BACK}>(f)",
        ["Softmax", "Split", "Concat", "ReduceMax"], {"x": (2, 3, 4, 6)}, {"s": ints(3, 3), "g": ints(1, -1)},
    ),
    "pad and slice": Case(
        f"a = Transpose<{TO}>(x) b = Pad(a, p) c = Slice(b, s, e, i) y = Transpose<{BACK}>(c)", ["Pad", "Slice"], X,
        {"p": ints(0, 1, 2, 3, 0, 0, 1, 0), "s": ints(1, 0), "e": ints(END, 2), "i": ints(3, -3)},
    ),
    "a region with two ends": Case(
        f"a = Transpose<{TO}>(x) b = Relu(a) c = Neg(b) y = Transpose<{BACK}>(b) z = Transpose<{BACK}>(c)",
        ["Relu", "Neg"], X, outputs="float[] y, float[] z",
    ),
    "quantization per channel": Case(
        f"a = Transpose<{TO}>(x) q = QuantizeLinear<axis=3>(a, s, z) y = Transpose<{BACK}>(q)", ["QuantizeLinear"], X,
        {"s": np.array([0.1, 0.2, 0.3], np.float32), "z": np.array([1, 2, 3], np.uint8)}, outputs="uint8[] y",
    ),
    "transpose before a reduction": Case(
        f"a = Transpose<{TO}>(x) y = ReduceMean<keepdims=0>(a, s)", ["ReduceMean"], X, {"s": ints(1, 2)}
    ),
    "transpose of which only the shape is asked": Case(
        f"a = Transpose<{TO}>(x) y = Shape(a)", ["Shape", "Gather"], X, outputs="int64[] y", symbols={"x": "[a,b,c,d]"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FUSED.values(), ids=FUSED.keys())
def test_fused(case: Case) -> None:
    check(case, *PASSES)


KEPT = {
    "rows looked up by tuples of two": Case(
        "u = Unsqueeze(i, s) y = GatherND(x, u)", ["Unsqueeze", "GatherND"], {**X, "i": np.array([1, 2])},
        {"s": ints(0)}, reason="an index has several parts",
    ),
    "reshape to unknown sizes": Case(
        "a = Reshape(x, s) y = Reshape(a, t)", ["Reshape", "Reshape"], {**X, "t": ints(3, 2, 20)}, {"s": ints(6, -1)},
        reason="no constant target",
    ),
    "flatten and unsqueeze of what may be empty": Case(
        "a = Flatten(x) y = Unsqueeze(a, s)", ["Flatten", "Unsqueeze"], {"x": (0, 3, 4)}, {"s": ints(2)},
        symbols={"x": "[batch, length, 4]"}, reason="whatever is 0",
    ),
    "squeeze and flatten of what may be empty": Case(
        "a = Squeeze(x, s) y = Flatten(a)", ["Squeeze", "Flatten"], {"x": (0, 1, 3, 4)}, {"s": ints(1)},
        symbols={"x": "[batch, 1, length, 4]"}, reason="whatever is 0",
    ),
    "transpose of an axis of length 1 and one that may be empty": Case(
        "y = Transpose<perm=[1,0,2]>(x)", ["Transpose"], {"x": (3, 1, 0)}, symbols={"x": "[length, 1, width]"},
    ),
    "reshape that others read": Case(
        "a = Reshape(x, s) b = Relu(a) y = Reshape(a, t)", ["Reshape", "Relu", "Reshape"], X,
        {"s": ints(6, 20), "t": ints(120)}, outputs="float[] y, float[] b", reason="also read by",
    ),
    "slices of one axis": Case(
        "a = Slice(x, s, e, i) y = Slice(a, s, e, i)", ["Slice", "Slice"], X,
        {"s": ints(1), "e": ints(END), "i": ints(2)}, reason="the same axis",
    ),
    "gather and another axis": Case(
        "a = Gather<axis=1>(x, i) y = Unsqueeze(a, s)", ["Gather", "Unsqueeze"], X, {"i": np.array(1), "s": ints(2)},
        reason="another axis",
    ),
    "concat of a split in another order": Case(
        "a, b, c = Split<axis=1, num_outputs=3>(x) y = Concat<axis=1>(b, a, c)", ["Split", "Concat"], X
    ),
    "concat of a split along another axis": Case(
        "a, b = Split<axis=0, num_outputs=2>(x) y = Concat<axis=1>(a, b)", ["Split", "Concat"], X
    ),
    "split of a concat in other pieces": Case(
        "a = Concat<axis=1>(x, z) b, c = Split<axis=1>(a, s) y = Concat<axis=1>(c, b)", ["Concat", "Split", "Concat"],
        {**X, "z": (2, 1, 4, 5)}, {"s": ints(1, 3)},
    ),
    "softmax of rows of one": Case(
        "a = Flatten<axis=1>(x) b = Softmax(a) s = Shape(x) y = Reshape(b, s)",
        ["Flatten", "Softmax", "Shape", "Reshape"], {"x": (5,)}, reason="no axis of it was flattened into the rows",
    ),
    "softmax of a flattened scalar": Case(
        "a = Flatten<axis=0>(x) b = Softmax(a) s = Shape(x) y = Reshape(b, s)",
        ["Flatten", "Softmax", "Shape", "Reshape"], {"x": ()}, reason="no axis of it was flattened into the rows",
    ),
    "softmax over pixels": Case(
        "a = Flatten<axis=1>(x) b = Softmax(a) s = Shape(x) y = Reshape(b, s)",
        ["Flatten", "Softmax", "Shape", "Reshape"], X,
    ),
    "softmax of a scalar": Case(
        "z = ReduceSum<keepdims=0>(x) a = Flatten<axis=0>(z) b = Softmax(a) s = Shape(z) y = Reshape(b, s)",
        ["ReduceSum", "Flatten", "Softmax", "Shape", "Reshape"], X, reason="no axis of it was flattened into the rows",
    ),
    "softmax over none of the axes": Case(
        "a = Flatten<axis=1>(x) b = Softmax(a) s = Shape(x) y = Reshape(b, s)",
        ["Flatten", "Softmax", "Shape", "Reshape"], {"x": (10,)}, reason="no axis of it was flattened into the rows",
    ),
    "one transpose before a pointwise operator": Case(f"a = Transpose<{TO}>(x) y = Relu(a)", ["Transpose", "Relu"], X),
    "a transpose on one of two operands": Case(
        f"a = Transpose<{TO}>(x) b = Add(a, z) c = Relu(b) y = Add(c, b)", ["Transpose", "Add", "Relu", "Add"],
        {**X, "z": (2, 4, 5, 3)},
    ),
    "transposes around what needs its order": Case(
        f"a = Transpose<{TO}>(x) b = LayerNormalization(a, s) y = Transpose<{BACK}>(b)",
        ["Transpose", "LayerNormalization", "Transpose"], X, {"s": (3,)},
    ),
    "an operand of lower rank that is no constant": Case(
        f"a = Transpose<{TO}>(x) b = Add(a, z) y = Transpose<{BACK}>(b)", ["Transpose", "Add", "Transpose"],
        {**X, "z": (3,)},
    ),
    "transpose before a reduction that leaves axes turned": Case(
        f"a = Transpose<{TO}>(x) y = ReduceMean<keepdims=0>(a, s)", ["Transpose", "ReduceMean"], X, {"s": ints(0)},
        reason="change their order",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT.keys())
def test_near_misses_are_reported_with_a_reason(case: Case) -> None:
    check(case, *PASSES)


PERMS = [list(p) for p in itertools.permutations(range(3))]
STEPS = ("Relu", "Transpose", "Add", "Concat", "ReduceMax", "Softmax", "Split", "Slice", "MatMul")


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 99), st.integers(0, 99)), min_size=2, max_size=12),
       st.lists(st.integers(0, 99), max_size=2))  # fmt: skip
def test_random_graphs_of_transposes_say_the_same_with_no_more_of_them(steps: Any, taps: Any) -> None:
    """Cubes of one size, so that every operator takes every value; some inner values are outputs too."""
    size = 3
    graph = Graph("g", [Value("x", TensorType(dtypes.f32, (size,) * 3))])
    op, values = Builder(graph, prefix="n"), [graph.inputs[0]]
    for kind, i, j in steps:
        a, b, axis = values[i % len(values)], values[j % len(values)], j % 3
        if kind == "Transpose":
            new = op.Transpose(a, perm=PERMS[j % len(PERMS)])
        elif kind == "Concat":
            new = op.Slice(op.Concat(a, b, axis=axis), [1], [1 + size], [axis])
        elif kind == "Split":
            new = op.Concat(*reversed(op.Split(a, [1, 2], axis=axis, outputs=2)), axis=axis)
        elif kind == "ReduceMax":
            new = op.Sub(a, op.ReduceMax(a, [axis], keepdims=1))
        elif kind == "Softmax":
            new = op.Softmax(a, axis=axis)
        elif kind == "Slice":
            new = op.Slice(a, [-1], [-END], [axis], [-1])
        elif kind == "Add":
            new = (
                op.Add(a, np.arange(size, dtype=np.float32).reshape(size, *[1] * axis)) if i % 3 == 0 else op.Add(a, b)
            )
        else:
            new = op.call("", kind, *([a, b] if kind == "MatMul" else [a]))
        values.append(new)
    for n, tap in enumerate([*taps, -1]):
        graph.add_output(values[tap % len(values)], f"y{n}")
    for node in graph.nodes:
        infer_node(node)
    model = Model(graph, {"": 28})
    feeds = {"x": np.random.default_rng(0).normal(size=(size,) * 3).astype(np.float32)}
    expected, after = run(model, feeds), clone(model)
    manager.run(after.graph, ("RemoveDeadCode",))
    before = ops(after.graph).count("Transpose")
    apply(after, *PASSES, "RemoveDeadCode")
    assert ops(after.graph).count("Transpose") <= before
    for got, want in zip(run(after, feeds), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
