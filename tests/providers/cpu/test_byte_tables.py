"""Chains of operators from a byte to a byte, as lookups, against the operators' own meanings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from tests.lower.agree import parse, part_of
from tests.providers.cpu.compiled import Compiled

CHIPS = ("sapphirerapids", "cascadelake", "haswell", "x86-64", "neoverse-n1")
SCALARS = (
    "s = Constant<value = float {0.021}>() z = Constant<value = DTYPE {3}>() t = Constant<value = float {0.0071}>() "
    "w = Constant<value = DTYPE {1}>() r = Constant<value = float {1.4142}>() h = Constant<value = float[1] {0.5}>() "
    "u = Constant<value = float {0.03}>() one = Constant<value = float {1.0}>() "
)
CHAIN = (
    "a = DequantizeLinear(x, s, z) b = Div(a, r) c = Erf(b) d = QuantizeLinear(c, t, w) e = DequantizeLinear(d, t, w) "
    "f = Add(e, one) g = Mul(a, f) i = QuantizeLinear(g, u, z) j = DequantizeLinear(i, u, z) k = Mul(j, h) "
)
END = "y = QuantizeLinear(k, t, z)"
CASES = {
    "all elements": (CHAIN + END, "DTYPE[3, 77] x"),
    "transposed": ("v = Transpose<perm = [1, 0]>(x0) " + CHAIN.replace("(x,", "(v,") + END, "DTYPE[40, 33] x0"),
    "one element": (CHAIN + END, "DTYPE[1] x"),
    "read as reals, too": (CHAIN + END + " o = Add(k, p)", "DTYPE[5, 64] x, float[5, 64] p"),
    "behind a reduction": (
        CHAIN + "m = QuantizeLinear(k, t, z) l = DequantizeLinear(m, t, z) y = Softmax<axis = -1>(l)", "DTYPE[4, 50] x",
    ),
    "behind a product": (
        "q = MatMulInteger(x1, x2) n = Cast<to = 1>(q) v = QuantizeLinear(n, r, z) "
        + CHAIN.replace("(x,", "(v,")
        + END,
        "int8[33, 20] x1, int8[20, 45] x2",
    ),
    "behind a product of one column": (
        "q = MatMulInteger(x1, x2) n = Cast<to = 1>(q) v = QuantizeLinear(n, r, z) "
        + CHAIN.replace("(x,", "(v,")
        + END,
        "int8[33, 20] x1, int8[20, 1] x2",
    ),
    "behind a convolution": (
        "q = ConvInteger(x1, x2) n = Cast<to = 1>(q) v = QuantizeLinear(n, r, z) " + CHAIN.replace("(x,", "(v,") + END,
        "uint8[2, 3, 9, 9] x1, int8[6, 3, 3, 3] x2",
    ),
    "behind a depthwise convolution": (
        "q = ConvInteger<group = 6>(x1, x2) n = Cast<to = 1>(q) v = QuantizeLinear(n, r, z) "
        + CHAIN.replace("(x,", "(v,")
        + END,
        "uint8[2, 6, 9, 9] x1, int8[6, 1, 3, 3] x2",
    ),
    "behind a convolution to a pixel": (
        "q = ConvInteger(x1, x2) n = Cast<to = 1>(q) v = QuantizeLinear(n, r, z) " + CHAIN.replace("(x,", "(v,") + END,
        "uint8[1, 3, 5, 5] x1, int8[6, 3, 5, 5] x2",
    ),
    "behind a product of one row": (
        "q = MatMulInteger(x1, x2) n = Cast<to = 1>(q) v = QuantizeLinear(n, r, z) "
        + CHAIN.replace("(x,", "(v,")
        + END,
        "int8[1, 20] x1, int8[20, 33] x2",
    ),
}  # fmt: skip


def outputs(body: str, dtype: str) -> str:
    found = "float[] y" if body.endswith("(l)") else f"{dtype}[] y"
    return f"{found}, float[] o" if " o = " in body else found


def feeds(inputs: str) -> dict[str, Any]:
    rng, found = np.random.default_rng(6), {}
    for name, dtype, shape in _inputs(inputs):
        if dtype == "float":
            found[name] = rng.standard_normal(shape).astype(np.float32)
        else:
            info = np.iinfo(dtype)
            found[name] = rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    return found


def _inputs(text: str) -> list[tuple[str, str, tuple[int, ...]]]:
    found = []
    for one in text.replace(", float", "; float").replace(", int8", "; int8").replace(", uint8", "; uint8").split("; "):
        given, name = one.rsplit(" ", 1)
        dtype, _, shape = given.partition("[")
        found.append((name, dtype, tuple(int(n) for n in shape.rstrip("]").split(","))))
    return found


@pytest.mark.sliced(3)
@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("name", CASES)
def test_lookups_are_what_they_replace(name: str, dtype: str, cpu: str) -> None:
    body, inputs = (text.replace("DTYPE", dtype) for text in CASES[name])
    body = SCALARS.replace("DTYPE", dtype) + body
    graph = parse(body, inputs, outputs(body, dtype))
    fed = feeds(inputs)
    part = part_of(graph)
    wanted = Program(part.nodes, part.inputs, part.outputs, bind).run([fed[v.name] for v in part.inputs], RunContext())
    compiled = Compiled(body, inputs, outputs(body, dtype), cpu)
    assert any("lookup" in repr(step.spec) for step in compiled.steps)
    got = compiled.run([fed[v.name] for v in part.inputs], threads=2, checked=True)
    for value, want in zip(got, wanted, strict=True):
        assert value.dtype == want.dtype
        np.testing.assert_allclose(value.astype(float), want, rtol=1e-6, atol=1e-6)
