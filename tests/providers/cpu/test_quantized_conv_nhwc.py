"""Convolutions of NHWC bytes by dot products of four channels, bit for bit beside the operators' own meanings."""

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
    "avx512": named("cascadelake"),
    "avx2": replace(named("haswell"), byte_dot=True, is_emulated=True),
    "emulated": replace(named("cascadelake"), is_emulated=True),
}
CHANNELS, FILTERS = (4, 8, 12, 24, 40, 132), (1, 3, 16, 20, 24, 40, 48, 64, 77, 100, 144)
KERNELS = ((1, 1), (1, 1), (3, 3), (5, 5), (1, 3), (4, 2))


def geometry(seed: int, *, is_stem: bool, is_quantized: bool = False) -> tuple[str, str, dict[str, np.ndarray]]:
    """A convolution drawn at random: its body, its input, and its arrays. The image of a stem is NCHW, and quantized
    by the model, if wanted.
    """
    rng = np.random.default_rng(seed)
    (high, wide), groups = KERNELS[rng.integers(len(KERNELS))], int(rng.choice([1, 1, 1, 2]))
    channels, filters = int(rng.choice(CHANNELS)), int(rng.choice(FILTERS))
    s, d = [int(n) for n in rng.choice([1, 1, 2, 3], 2)], [int(n) for n in rng.choice([1, 1, 2], 2)]
    if is_stem:
        (high, wide), groups, channels = ((3, 3), (7, 7), (2, 3))[seed % 3], 1, 2 + seed % 2
        d[1] = 1
    reach = [(high - 1) * d[0] + 1, (wide - 1) * d[1] + 1]
    pads = [int(rng.integers(0, reach[i % 2])) for i in range(4)]
    size = [int(rng.integers(r, r + 18)) for r in reach]
    dtype, to = (("uint8", "int8")[int(rng.integers(2))] for _ in range(2))
    zero, point = int(rng.integers(0, 100)), int(rng.choice([0, 11]))
    factor = 2.0 ** -round(np.log2(60 * (high * wide * channels) ** 0.5))
    image = "Identity(x)" if is_stem else "Transpose<perm = [0, 3, 1, 2]>(x)"
    if is_quantized:
        image = "QuantizeLinear(x, one, least)"
    body = (
        f"z = Constant<value = {dtype} {{{zero}}}>() p = Constant<value = {to} {{{point}}}>() "
        f"u = Constant<value = float {{{factor!r}}}>() one = Constant<value = float {{1.0}}>() "
        f"least = Constant<value = {dtype} {{{np.iinfo(dtype).min}}}>() t = {image} "
        f"a = ConvInteger<group = {groups}, strides = {s}, dilations = {d}, pads = {pads}>(t, k, z) "
        "b = Add(a, c) f = Cast<to = 1>(b) g = Mul(f, u) q = QuantizeLinear(g, one, p) "
    )
    info, shape = np.iinfo(dtype), (2, channels, *size) if is_stem else (2, *size, groups * channels)
    arrays = {
        "x": rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype),
        "k": rng.integers(-128, 127, (groups * filters, channels, high, wide), endpoint=True).astype(np.int8),
        "c": rng.integers(-3000, 3000, (1, groups * filters, 1, 1)).astype(np.int32),
    }
    if is_quantized:
        arrays["x"] = (rng.integers(0, 255, shape, endpoint=True)).astype(np.float32)
    return body, to, arrays


def check(
    seed: int, isa: Isa, more: str = "", *, is_dynamic: bool = False, is_stem: bool = False, is_quantized: bool = False
) -> None:
    body, to, arrays = geometry(seed, is_stem=is_stem, is_quantized=is_quantized)
    body += f"{more} y = Transpose<perm = [0, 2, 3, 1]>({'v' if more else 'q'})"
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    types = {name: str(array.dtype).replace("float32", "float") for name, array in arrays.items()}
    fixed = ", ".join(f"{types[name]} {shapes[name]} {name}".replace(" [", "[") for name in arrays)
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
    assert [step.spec.name for step in made.steps if step.spec.name.startswith("conv")] == ["conv_int8_nhwc"]
    (got,) = made.run([arrays["x"]], threads=2, checked=True)
    assert len(np.unique(want)) > 1
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("seed", some(range(100), 10))
def test_any_geometry(seed: int, chip: str) -> None:
    check(seed, CHIPS[chip], is_dynamic=seed % 3 == 0)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("seed", some(range(40), 8))
def test_first_layers(seed: int, chip: str) -> None:
    check(seed, CHIPS[chip], is_stem=True)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("seed", some(range(6), 1))
def test_first_layers_that_follow_a_quantizelinear(seed: int, chip: str) -> None:
    check(seed, CHIPS[chip], is_stem=True, is_quantized=True)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("seed", some(range(6), 1))
def test_activations_are_looked_up(seed: int, chip: str) -> None:
    activation = (
        "r = DequantizeLinear(q, u1, p) e = Sigmoid(r) h = QuantizeLinear(e, u2, p) i = DequantizeLinear(h, u2, p) "
        "j = Mul(r, i) v = QuantizeLinear(j, u1, p) "
    )
    scales = "u1 = Constant<value = float {0.0625}>() u2 = Constant<value = float {0.00390625}>() "
    check(seed, CHIPS[chip], scales + activation)
