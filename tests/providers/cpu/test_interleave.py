"""Interleaving of a planes planes, and deinterleaving."""

from __future__ import annotations

import numpy as np
import pytest

from tests.providers.cpu.compiled import Compiled

RNG = np.random.default_rng(0)
TYPES = {"float": "f4", "double": "f8", "float16": "f2", "int64": "i8", "uint8": "u1", "bool": "?"}
CHIPS = [None, "haswell", "sapphirerapids"]


def names(made: Compiled) -> list[str]:
    return [step.spec.name for step in made.steps]


def given(dtype: str, *shape: int) -> np.ndarray:
    bits = RNG.integers(0, 256, (*shape, np.dtype(TYPES[dtype]).itemsize), np.uint8)
    return (bits & 1).astype(bool)[..., 0] if dtype == "bool" else bits.view(TYPES[dtype])[..., 0]


@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("planes", [2, 3, 4, 5, 6, 7, 8, 11, 12, 15])
def test_interleave_and_deinterleave(planes: int, cpu: str | None) -> None:
    """Whole vectors, partial ones, several chunks; the bits of NaN are preserved."""
    for dtype, long in (("float", 1), ("float", 40), ("uint8", 37), ("double", 19), ("int64", 2100)):
        made = Compiled(
            "y = Transpose<perm = [0, 2, 1]>(x) z = Transpose<perm = [0, 2, 1]>(w)",
            f"{dtype}[2,{planes},{long}] x, {dtype}[2,{long},{planes}] w", f"{dtype}[A,B,C] y, {dtype}[D,E,F] z", cpu,
        )  # fmt: skip
        assert names(made) == ["interleave"] * 2 or long == 1
        x, w = given(dtype, 2, planes, long), given(dtype, 2, long, planes)
        for threads in (1, 3):
            y, z = made.run([x, w], threads=threads, checked=True)
            assert y.tobytes() == np.ascontiguousarray(x.transpose(0, 2, 1)).tobytes()
            assert z.tobytes() == np.ascontiguousarray(w.transpose(0, 2, 1)).tobytes()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (0, 3, 1, 2)])
def test_images(dtype: str, perm: tuple[int, ...]) -> None:
    shape = (2, 3, 7, 9) if perm[3] == 1 else (2, 7, 9, 3)
    inputs = f"{dtype}[n,{shape[1]},{shape[2]},{shape[3]}] x"
    made = Compiled(f"y = Transpose<perm = {list(perm)}>(x)", inputs, f"{dtype}[A,B,C,D] y")
    assert names(made) == ["interleave"]
    for count in (0, 1, 2):
        x = given(dtype, count, *shape[1:])
        (y,) = made.run([x], threads=2, checked=True)
        assert y.tobytes() == np.ascontiguousarray(x.transpose(perm)).tobytes()


@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (0, 3, 1, 2)])
def test_fused_expression(perm: tuple[int, ...]) -> None:
    """A mean per channel is one element per plane; results may be narrower."""
    shape, colours = ((1, 3, 20, 30), "3,1,1") if perm[3] == 1 else ((1, 20, 30, 3), "3")
    body = f"s = Sub(x, m) t = Mul(s, f) h = Cast<to = 10>(t) y = Transpose<perm = {list(perm)}>(h)"
    size = ",".join(map(str, shape))
    made = Compiled(body, f"float[{size}] x, float[{colours}] m, float[1] f", "float16[A,B,C,D] y")
    x, m, f = (RNG.standard_normal(s).astype("f") for s in (shape, (3, 1, 1) if perm[3] == 1 else (3,), (1,)))
    assert names(made) == ["interleave"]
    (y,) = made.run([x, m, f], threads=2, checked=True)
    np.testing.assert_array_equal(y, ((x - m) * f).astype(np.float16).transpose(perm))


def test_other_kernels() -> None:
    """Sixteen rows fill tiles of a transpose; equal layouts need no transpose."""
    transposed = Compiled("y = Transpose<perm = [1, 0]>(x)", "float[16,100] x", "float[A,B] y")
    assert names(transposed) == ["transpose"]
    alike = Compiled("y = Neg(x)", "float[100,4] x", "float[A,B] y")
    assert names(alike) == ["fused_loop"]


@pytest.mark.parametrize("cpu", [*CHIPS, "neoverse-n1"])
@pytest.mark.parametrize(("rows", "length"), [(1, 5), (3, 16), (7, 53)])
def test_pairs_with_many_operations(rows: int, length: int, cpu: str | None) -> None:
    """Two numbers in each byte, with a scale and a zero point for each row."""
    body = (
        "a = Constant<value = uint8[2] {0, 4}>() b = Constant<value = uint8 {15}>() c = Constant<value = int64 {-1}>() "
        f"d = Constant<value = int64[2] {{{rows}, {2 * length}}}>() u = Unsqueeze(x, c) "
        'v = BitShift<direction = "RIGHT">(u, a) w = BitwiseAnd(v, b) r = Reshape(w, d) '
        "q = DequantizeLinear<axis = 0>(r, s, z) y = Where(f, q, s0)"
    )
    inputs = f"uint8[{rows},{length}] x, float[{rows}] s, uint8[{rows}] z, bool[{rows},1] f, float s0"
    made = Compiled(body, inputs, "float[A,B] y", cpu)
    assert names(made) == ["interleave"]
    x, z = given("uint8", rows, length), given("uint8", rows) & 15
    s, f = RNG.uniform(0.5, 2, rows).astype("f"), np.arange(rows)[:, None] % 2 == 0
    (y,) = made.run([x, s, z, f, np.zeros((), "f")], threads=2, checked=True)
    codes = np.stack([x & 15, x >> 4], -1).reshape(rows, -1).astype("f")
    np.testing.assert_array_equal(y, np.where(f, (codes - z[:, None]) * s[:, None], np.float32(0)))
