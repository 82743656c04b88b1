"""3 x 3 convolutions with fewer products, pixel by pixel: every geometry, what follows, and whatever numbers."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.providers.cpu import isa
from sardonyx.providers.cpu.kernels import conv_winograd, conv_winograd_pixels
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Memory
from tests.providers.cpu.test_conv_winograd import EPS, SAME, compiled, exact, kinds, random

CHIPS = [chip for chip in (None, "skylake-avx512") if isa.named(chip).lanes == 16 and not isa.named(chip).amx]
NAME = "convolve_winograd_pixels"
TWO = "pads = [1, 1, 1, 1]"


@pytest.fixture(autouse=True)
def _wherever_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where it does not pay; and scratch memory is not zero."""
    monkeypatch.setattr(Memory, "garbage", b"\xff")
    monkeypatch.setattr(conv_winograd_pixels, "LEAST_FOURS", 1)
    monkeypatch.setattr(conv_winograd, "GAIN", 0.0)


GEOMETRIES = [
    # channels, filters, batch, high, wide, pads
    (16, 16, 1, 8, 8, SAME),
    (64, 24, 1, 14, 14, SAME),
    (33, 70, 2, 13, 19, (0, 0, 0, 0)),
    (130, 17, 1, 7, 7, SAME),
    (16, 20, 1, 9, 160, (2, 2, 2, 2)),
    (200, 130, 1, 9, 9, SAME),
    (17, 70, 3, 40, 3, SAME),
    (20, 33, 1, 5, 700, (1, 0, 1, 2)),
    (64, 8 * 40, 1, 6, 6, (0, 2, 1, 0)),
    (24, 48, 2, 50, 2, SAME),
    (400, 64, 1, 15, 17, SAME),
]


@pytest.mark.parametrize("chip", CHIPS, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_kernel(geometry: tuple[int, int, int, int, int, tuple[int, ...]], chip: str | None) -> None:
    channels, filters, batch, high, wide, pads = geometry
    w, x = random(filters, channels, 3, 3, scale=(9 * channels) ** -0.5), random(batch, channels, high, wide)
    found = compiled(w, (batch, high, wide), pads, chip)
    assert kinds(found)[NAME] == 1
    results = [found.run([x], threads=threads, checked=threads == 2)[0] for threads in (1, 2, 3)]
    assert all(np.array_equal(y, results[0]) for y in results)
    true, size = exact(x, w, pads)
    bias = random(filters)[:, None, None]
    off = results[0] - np.maximum(true + bias, 0)
    assert np.all(np.abs(off) <= 8 * EPS * (size + np.abs(bias)))
    assert np.linalg.norm(off) <= 3e-7 * np.linalg.norm(true)


@pytest.mark.parametrize("chip", CHIPS, ids=str)
def test_what_follows_and_sizes_of_the_run(chip: str | None) -> None:
    w = random(24, 16, 3, 3, scale=0.1)
    found = compiled(w, ("N", "H", "W"), SAME, chip, "s = Add(z, r) y = Sigmoid(s)")
    assert kinds(found)[NAME] == 1
    for shape in ((1, 16, 9, 9), (2, 16, 30, 17), (1, 16, 1, 1), (0, 16, 5, 5)):
        x, r = random(*shape), random(shape[0], 24, *shape[2:])
        want = 1 / (1 + np.exp(-(exact(x, w, SAME)[0] + random(24)[:, None, None] + r)))
        np.testing.assert_allclose(found.run([x, r], threads=2, checked=True)[0], want, rtol=2e-6)


@pytest.mark.parametrize("chip", CHIPS, ids=str)
@pytest.mark.parametrize(
    "then",
    ["c = Concat<axis = 1>(a, b) y = Conv(c, u)", "c = Add(a, b) d = Relu(c) e = Conv(a, v) y = Add(d, e)"],
    ids=["joined", "read again"],
)
def test_between_others(then: str, chip: str | None) -> None:
    """Images of which they see, or write, some channels, and rows that do not follow each other."""
    weights = {
        "p": random(32, 16, 1, 1, scale=0.2), "w": random(24, 32, 3, 3, scale=0.1),
        "v": random(24, 24, 1, 1, scale=0.1), "u": random(40, 48, 1, 1, scale=0.1),
    }  # fmt: skip
    body = f"i = Conv(x, p) a = Conv<{TWO}>(i, w) b = Conv<{TWO}>(i, w) {then}"
    used = {k: w for k, w in weights.items() if f" {k})" in body or f" {k}," in body}
    inputs = "float[2,16,12,13] x, " + ", ".join(f"float{list(w.shape)} {k}" for k, w in used.items())
    found, x = Compiled(body, inputs, "float[A,B,C,D] y", chip, constants=used), random(2, 16, 12, 13)
    assert kinds(found)[NAME] >= 1
    (got,) = found.run([x], threads=2, checked=True)

    def single(a: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.einsum("bcyx,fc->bfyx", a, w[:, :, 0, 0].astype(np.float64))

    a = exact(single(x.astype(np.float64), weights["p"]), weights["w"], SAME)[0]
    want = (
        single(np.concatenate([a, a], 1), weights["u"])
        if "Concat" in then
        else np.maximum(a + a, 0) + single(a, weights["v"])
    )
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


@pytest.mark.parametrize("chip", CHIPS, ids=str)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, np.finfo(np.float32).max, 1e-41])
def test_numbers_that_sums_do_not_carry(bad: float, chip: str | None) -> None:
    w, x = random(20, 16, 3, 3, scale=0.1), random(2, 16, 11, 13)
    x[1, 3, 4, 5] = x[1, 2, 0, 0] = bad
    found = compiled(w, (2, 11, 13), SAME, chip, "y = Identity(z)")
    assert kinds(found)[NAME] == 1
    y = found.run([x], threads=2, checked=True)[0]
    true = exact(x, w, SAME)[0] + random(20)[:, None, None]
    np.testing.assert_array_equal(np.isnan(y), np.isnan(true))
    there = np.isfinite(true)
    np.testing.assert_array_equal(y[~there], true[~there].astype(np.float32))
    scale = np.abs(true[there]).max()
    np.testing.assert_allclose(y[there] / scale, true[there] / scale, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chip", CHIPS, ids=str)
def test_what_is_large_elsewhere_does_not_matter(chip: str | None) -> None:
    """Outputs that do not see a number of another size are as near as without it."""
    w, x = random(16, 16, 3, 3, scale=0.1), random(1, 16, 12, 12)
    found = compiled(w, (1, 12, 12), SAME, chip, "y = Identity(z)")
    for row, column in ((2, 2), (3, 4), (5, 5), (0, 11)):
        large = x.copy()
        large[0, :, row, column] = 1e6
        y = found.run([large])[0]
        true, size = exact(large, w, SAME)
        far = np.ones((12, 12), bool)
        far[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2] = False
        off = np.abs(y - true - random(16)[:, None, None])
        assert np.all(off[..., far] <= 8 * EPS * (size[..., far] + 3))


@pytest.mark.parametrize("attributes", ["strides = [2, 2]", "dilations = [2, 2], pads = [2, 2, 2, 2]", "group = 2"])
def test_other_windows_are_multiplied_term_by_term(attributes: str) -> None:
    w = random(32, 16 if "group" in attributes else 32, 3, 3)
    inputs = f"float[1,32,12,12] x, float{list(w.shape)} w"
    found = Compiled(f"y = Conv<{attributes}>(x, w)", inputs, "float[B,F,Y,X] y", "skylake-avx512", constants={"w": w})
    assert NAME not in kinds(found)


@pytest.mark.parametrize(
    ("channels", "size", "chip"),
    [(12, (1, 40, 40), "skylake-avx512"), (64, (1, 7, 7), "skylake-avx512"),
        (64, (1, 90, 1), "skylake-avx512"),
        (64, (1, 40, 40), "sapphirerapids"),
     (64, (1, 40, 40), "haswell")],
)  # fmt: skip
def test_where_it_does_not_pay(
    channels: int, size: tuple[int, int, int], chip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few channels, few pixels beside many weights, columns of one, tiles, few registers; batches are many pixels."""
    monkeypatch.undo()
    assert NAME not in kinds(compiled(random(64, channels, 3, 3), size, SAME, chip))
    assert (NAME in kinds(compiled(random(64, channels, 3, 3), (4, *size[1:]), SAME, chip))) == (size[1] == 7)
