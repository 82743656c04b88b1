"""Depthwise convolutions of bytes by dot products of four taps, bit for bit beside the operators' own meanings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.providers.cpu.machine.isa import Isa, named
from tests.lower.agree import parse, part_of
from tests.providers.cpu.compiled import Compiled
from tests.slices import some

CHIPS = {
    "amx": named("sapphirerapids"),
    "avx512": named("cascadelake"),
    "avx2": replace(named("haswell"), byte_dot=True, is_emulated=True),
    "emulated": replace(named("cascadelake"), is_emulated=True),
}
CHANNELS = (2, 5, 16, 31, 32, 40, 64, 80, 100, 130)
KERNELS = ((3, 3), (5, 5), (1, 3), (4, 2), (7, 7), (2, 1), (1, 17), (1, 9), (17, 1))


def geometry(seed: int) -> tuple[str, str, dict[str, np.ndarray]]:
    """A convolution drawn at random: its body, its input, and its arrays."""
    rng = np.random.default_rng(seed)
    channels, (high, wide) = int(rng.choice(CHANNELS)), KERNELS[rng.integers(len(KERNELS))]
    strides, dilations = (int(n) for n in rng.integers(1, 4, 2)), (int(n) for n in rng.choice([1, 1, 2], 2))
    s, d = list(strides), list(dilations)
    reach = [(high - 1) * d[0] + 1, (wide - 1) * d[1] + 1]
    pads = [int(rng.integers(0, reach[i % 2])) for i in range(4)]
    size = [int(rng.integers(r, r + 20)) for r in reach]
    signed = bool(rng.integers(2))
    dtype, to = "int8" if signed else "uint8", ("uint8", "int8")[int(rng.integers(2))]
    zero, point = (int(rng.integers(0, 100)), int(rng.choice([0, 11])))
    factor = 2.0 ** -round(np.log2(60 * (high * wide) ** 0.5))
    body = (
        f"z = Constant<value = {dtype} {{{zero}}}>() p = Constant<value = {to} {{{point}}}>() "
        f"u = Constant<value = float {{{factor!r}}}>() one = Constant<value = float {{1.0}}>() "
        "t = Transpose<perm = [0, 3, 1, 2]>(x) "
        f"a = ConvInteger<group = {channels}, strides = {s}, dilations = {d}, pads = {pads}>(t, k, z) "
        "b = Add(a, c) f = Cast<to = 1>(b) g = Mul(f, u) q = QuantizeLinear(g, one, p) "
    )
    info = np.iinfo(dtype)
    arrays = {
        "x": rng.integers(info.min, info.max, (2, *size, channels), endpoint=True).astype(dtype),
        "k": rng.integers(-128, 127, (channels, 1, high, wide), endpoint=True).astype(np.int8),
        "c": rng.integers(-3000, 3000, (1, channels, 1, 1)).astype(np.int32),
    }
    return body, to, arrays


def check(seed: int, isa: Isa, more: str = "", *, is_dynamic: bool = False) -> None:
    body, to, arrays = geometry(seed)
    body += f"{more} y = Transpose<perm = [0, 2, 3, 1]>({'v' if more else 'q'})"
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    fixed = ", ".join(f"{array.dtype} {shapes[name]} {name}".replace(" [", "[") for name, array in arrays.items())
    given = fixed
    if is_dynamic:
        given = fixed.replace(str(shapes["x"]), f"[n, h, w, {shapes['x'][3]}]")
    outputs = f"{to}[] y"
    part = part_of(parse(body, fixed, outputs))
    (want,) = Program(part.nodes, part.inputs, part.outputs, bind).run(
        [arrays[v.name] for v in part.inputs], RunContext()
    )
    constants = {name: arrays[name] for name in ("k", "c")}
    made = Compiled(body, given, outputs, isa=isa, constants=constants)
    assert "conv_depthwise_dot" in [step.spec.name for step in made.steps]
    (got,) = made.run([arrays["x"]], threads=2, checked=True)
    assert len(np.unique(want)) > 1
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("seed", some(range(80), 20))
def test_any_geometry(seed: int, chip: str) -> None:
    check(seed, CHIPS[chip], is_dynamic=seed % 3 == 0)


@pytest.mark.parametrize("chip", ["amx", "avx512"])
@pytest.mark.parametrize("seed", range(2))
def test_activations_are_looked_up(seed: int, chip: str) -> None:
    activation = (
        "r = DequantizeLinear(q, u1, p) e = Sigmoid(r) h = QuantizeLinear(e, u2, p) i = DequantizeLinear(h, u2, p) "
        "j = Mul(r, i) v = QuantizeLinear(j, u1, p) "
    )
    scales = "u1 = Constant<value = float {0.0625}>() u2 = Constant<value = float {0.00390625}>() "
    check(seed, CHIPS[chip], scales + activation)
