"""Images that matrix products write and convolutions read: stored as both want them, with no transposed copies."""

from __future__ import annotations

import numpy as np
import pytest

from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array

CHIPS = ("x86-64", "haswell", "skylake-avx512", "sapphirerapids", "neoverse-n1")
HEAD = """
    m = MatMul(p, u) ma = Add(m, a) mt = Transpose<perm = [0, 2, 1]>(ma)
    si = Constant<value = int64[4] {0, 24, 8, 8}>() i = Reshape(mt, si)
    n = MatMul(q, v) na = Add(n, b) nt = Transpose<perm = [0, 2, 1]>(na)
    sj = Constant<value = int64[4] {0, 40, 4, 4}>() j = Reshape(nt, sj)
    s = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}>()
    r = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(j, , s)
    c = Concat<axis = 1>(i, r) k = Conv(c, w) l = Relu(k) y = Conv<pads = [1, 1, 1, 1]>(l, z)
"""
"""A segmentation head: tokens of two resolutions become images, are joined and convolved."""
WEIGHTS = {"u": (20, 24), "a": (24,), "v": (20, 40), "b": (40,), "w": (48, 64, 1, 1), "z": (32, 48, 3, 3)}


def convolved(x: Array, w: Array) -> Array:
    pad = w.shape[2] // 2
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    return np.einsum("nchwij,fcij->nfhw", np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3)), w)


def doubled(x: Array, axis: int) -> Array:
    """Twice as large along an axis, by linear interpolation between centers of pixels."""
    size = x.shape[axis]
    before, after = (x.take(np.clip(np.arange(size) + d, 0, size - 1), axis) for d in (-1, 1))
    return np.stack((0.75 * x + 0.25 * before, 0.75 * x + 0.25 * after), axis + 1).reshape(
        *x.shape[:axis], 2 * size, *x.shape[axis + 1 :]
    )


def expected(p: Array, q: Array, w: dict[str, Array]) -> Array:
    i = (p @ w["u"] + w["a"]).transpose(0, 2, 1).reshape(-1, 24, 8, 8)
    j = (q @ w["v"] + w["b"]).transpose(0, 2, 1).reshape(-1, 40, 4, 4)
    joined = np.concatenate((i, doubled(doubled(j, 2), 3)), 1)
    return convolved(np.maximum(convolved(joined, w["w"]), 0), w["z"])


@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("batch", ["2", "n"], ids=["fixed", "open"])
def test_a_segmentation_head(batch: str, cpu: str) -> None:
    rng = np.random.default_rng(6)
    weights = {k: (rng.standard_normal(s) / np.sqrt(np.prod(s[-1:]))).astype(np.float32) for k, s in WEIGHTS.items()}
    given = ", ".join(f"float[{','.join(map(str, w.shape))}] {k}" for k, w in weights.items())
    inputs = f"float[{batch},64,20] p, float[{batch},16,20] q, {given}"
    found = Compiled(HEAD, inputs, f"float[{batch},32,8,8] y", cpu, constants=weights)
    assert sum(step.spec.name == "transpose" for step in found.steps) <= 1  # of the result
    for n in (2, 1, 3) if batch == "n" else (2,):
        p, q = (rng.standard_normal((n, tokens, 20)).astype(np.float32) for tokens in (64, 16))
        (got,), (again,) = found.run([p, q], checked=True), found.run([p, q], threads=3)
        wide = {k: v.astype(np.float64) for k, v in weights.items()}
        np.testing.assert_allclose(
            got, expected(p.astype(np.float64), q.astype(np.float64), wide), rtol=1e-4, atol=1e-4
        )
        np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize("cpu", CHIPS)
def test_tokens_of_an_image(cpu: str) -> None:
    """A convolution's image, read by a product as rows of channels."""
    rng = np.random.default_rng(7)
    w, u = (rng.standard_normal(s).astype(np.float32) / 8 for s in ((48, 20, 3, 3), (48, 33)))
    body = """k = Conv<pads = [1, 1, 1, 1]>(x, w) l = Relu(k) s = Constant<value = int64[3] {0, 48, -1}>()
        t = Reshape(l, s) r = Transpose<perm = [0, 2, 1]>(t) y = MatMul(r, u)"""
    found = Compiled(body, "float[2,20,6,7] x, float[48,20,3,3] w, float[48,33] u", "float[2,42,33] y", cpu,
                     constants={"w": w, "u": u})  # fmt: skip
    x = rng.standard_normal((2, 20, 6, 7)).astype(np.float32)
    (got,) = found.run([x], threads=2, checked=True)
    image = np.maximum(convolved(x.astype(np.float64), w.astype(np.float64)), 0)
    np.testing.assert_allclose(got, image.reshape(2, 48, 42).transpose(0, 2, 1) @ u, rtol=1e-4, atol=1e-4)
