"""Scales of quantized sums as one multiply-add, against the separate operators' own meanings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from sardonyx import dtypes
from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.providers.cpu.codegen.launch import launch
from sardonyx.providers.cpu.kernels.math.quantization import saturate
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i64
from sardonyx.providers.cpu.machine import isa
from tests.lower.agree import parse, part_of
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.test_byte_tables import feeds

CHIPS = ("sapphirerapids", "cascadelake", "haswell", "x86-64", "neoverse-n1")
HALVES = {"s": 2.0**-6, "t": 2.0**-4, "u": 2.0**-13}
"""Scales that are powers of two: reals in between are exact."""
REALS = {"s": 0.0171, "t": 0.0613, "u": 0.000137}
TENTHS = {"s": 0.1, "t": 0.5, "u": 0.01}
"""Scales with which sums are often within a rounding error of a half."""
FOLDING = ("conv_depthwise_dot",)
"""Kernels that take the multiply-add as arguments; elsewhere it is in the epilogue."""
MOST_DIFFERENT = 1e-3
"""Share of elements that may be off by one."""
POINTS = (
    "z = Constant<value = DTYPE {37}>() w = Constant<value = DTYPE {0}>() "
    "c = Constant<value = int32[5] {7, -90, 1000, 0, 3}>() "
)
SUMS = "d = ConvInteger(x, k, z) e = Add(d, e5) f = Cast<to = 1>(e) g = Mul(f, u) q = QuantizeLinear(g, t, POINT) "
FIVE = "o = Constant<value = int64[4] {1, 5, 1, 1}>() e5 = Reshape(c, o) "
CASES = {
    "a convolution": (FIVE + SUMS.replace("q =", "y ="), "DTYPE[2, 3, 9, 9] x, int8[5, 3, 3, 3] k"),
    "a depthwise convolution": (
        FIVE + SUMS.replace("ConvInteger", "ConvInteger<group = 5>").replace("q =", "y ="),
        "DTYPE[2, 5, 9, 9] x, int8[5, 1, 3, 3] k",
    ),
    "a product": (
        "d = MatMulInteger(x, k, z) e = Add(d, c) f = Cast<to = 1>(e) g = Mul(f, u) y = QuantizeLinear(g, t, POINT)",
        "DTYPE[33, 20] x, int8[20, 5] k",
    ),
    "a residual": (
        FIVE + SUMS + "a = DequantizeLinear(q, t, POINT) b = DequantizeLinear(p, s, z) h = Add(a, b) "
        "y = QuantizeLinear(h, s, z)",
        "DTYPE[2, 3, 9, 9] x, int8[5, 3, 3, 3] k, DTYPE[2, 5, 7, 7] p",
    ),
    "a sum of bytes": (
        "a = DequantizeLinear(x, t, POINT) b = DequantizeLinear(p, s, z) h = Add(a, b) y = QuantizeLinear(h, t, z)",
        "DTYPE[3, 77] x, DTYPE[3, 77] p",
    ),
}  # fmt: skip


@pytest.mark.sliced(3)
@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("name", ["a convolution", "a depthwise convolution", "a product"])
def test_zero_points_and_biases_move_no_half(name: str, dtype: str, cpu: str) -> None:
    check(name, TENTHS, "w", dtype, cpu, most_different=0)


@pytest.mark.sliced(4)
@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("point", ["z", "w"])
@pytest.mark.parametrize("are_exact", [True, False], ids=["powers of two", "other scales"])
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_operators(name: str, are_exact: bool, point: str, dtype: str, cpu: str) -> None:
    check(name, HALVES if are_exact else REALS, point, dtype, cpu, most_different=0 if are_exact else MOST_DIFFERENT)


def check(name: str, scales: Mapping[str, float], point: str, dtype: str, cpu: str, *, most_different: float) -> None:
    body, inputs = (text.replace("DTYPE", dtype) for text in CASES[name])
    known = " ".join(f"{n} = Constant<value = float {{{v!r}}}>()" for n, v in scales.items())
    body = f"{known} {POINTS.replace('DTYPE', dtype)} {body.replace('POINT', point)}"
    outputs = f"{dtype}[] y"
    fed, part = feeds(inputs), part_of(parse(body, inputs, outputs))
    (want,) = Program(part.nodes, part.inputs, part.outputs, bind).run([fed[v.name] for v in part.inputs], RunContext())
    constants = {"k": fed["k"]} if "k" in fed else {}
    compiled = Compiled(body, inputs, outputs, cpu, constants=constants)
    is_folded = any("saturate" in repr(step.spec) or step.spec.definition.name in FOLDING for step in compiled.steps)
    assert is_folded == (cpu != "x86-64")
    (got,) = compiled.run([array for name, array in fed.items() if name not in constants], threads=2, checked=True)
    assert got.dtype == want.dtype and len(np.unique(want)) > 20
    apart = np.abs(got.astype(int) - want.astype(int))
    assert apart.max() <= 1 and (apart > 0).mean() <= most_different


@kernel(lambda dtype, lanes: {"x": (f32,), "zero": (dtype,), "y": (dtype,), "count": i64})
def saturate_all(k: Kernel, x: Buf, zero: Buf, y: Buf, count: Val, *, dtype: Any, lanes: int) -> None:
    point = k.splat(zero.load(), lanes)
    with k.loop(0, count, lanes) as i:
        y.store(i, saturate(k, [x.load(i, lanes), point], dtype))


@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("lanes", [4, 8, 16, 32, 64])
@pytest.mark.parametrize("name", ["i8", "u8"])
def test_halves_are_rounded_to_even_and_all_numbers_saturate(
    name: str, lanes: int, cpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isa, "current", lambda: isa.named(cpu))
    dtype = dtypes.of_name(name)
    x = np.concatenate([np.arange(-700, 700) / 2, [2.0**30 - 64, -(2.0**30), 40000, -40000]]).astype(np.float32)
    x = np.pad(x, (0, -len(x) % 64))
    for zero in (0, 3, 100):
        y = np.zeros(len(x), dtype.numpy)
        launch(saturate_all(dtype=dtype, lanes=lanes), x=x, zero=np.asarray([zero], dtype.numpy), y=y, count=len(x))
        info = np.iinfo(dtype.numpy)
        np.testing.assert_array_equal(y, np.clip(np.rint(x.astype(float)) + zero, info.min, info.max))
