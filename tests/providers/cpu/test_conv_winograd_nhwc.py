"""Winograd convolutions of NHWC images among other groups, and where they do not pay. What NCHW and NHWC have in common
is in ``test_conv_winograd``."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.providers.cpu.kernels.common.window import MIN_NHWC_LANES
from sardonyx.providers.cpu.machine import isa
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array
from tests.providers.cpu.test_conv_winograd import CHIPS, NAMES, SAME, compiled, exact, kinds, random

NAME = NAMES["NHWC"]
pytestmark = pytest.mark.skipif(isa.named(None).lanes < MIN_NHWC_LANES, reason="images are NCHW")
PADS = "pads = [1, 1, 1, 1]"


WEIGHTS = {
    "p": random(32, 16, 1, 1, scale=0.2), "w": random(24, 32, 3, 3, scale=0.1), "o": random(24, 32, 3, 3, scale=0.2),
    "s": random(24, 32, 1, 1, scale=0.1), "v": random(24, 24, 1, 1, scale=0.1), "u": random(40, 48, 1, 1, scale=0.1),
}  # fmt: skip


def single(a: Array, name: str) -> Array:
    return np.einsum("bcyx,fc->bfyx", a, WEIGHTS[name][:, :, 0, 0].astype(np.float64))


@pytest.mark.parametrize("chip", CHIPS, ids=str)
@pytest.mark.parametrize(
    ("body", "count"),
    [
        (f"a = Conv<{PADS}>(i, w) b = Conv(i, s) c = Concat<axis = 1>(a, b) y = Conv(c, u)", 1),
        (f"a = Conv<{PADS}>(i, w) b = Conv<{PADS}>(i, o) c = Add(a, b) d = Relu(c) e = Conv(a, v) y = Add(d, e)", 2),
    ],
    ids=["some channels of an image", "read again"],
)
def test_between_others(body: str, count: int, chip: str | None) -> None:
    used = {k: w for k, w in WEIGHTS.items() if k == "p" or f" {k})" in body}
    inputs = "float[2,16,12,13] x, " + ", ".join(f"float{list(w.shape)} {k}" for k, w in used.items())
    found = Compiled(f"i = Conv(x, p) {body}", inputs, "float[A,B,C,D] y", chip, constants=used)
    assert kinds(found)[NAME] == count
    x = random(2, 16, 12, 13)
    i = single(x.astype(np.float64), "p")
    a = exact(i, WEIGHTS["w"], SAME)[0]
    if count == 1:
        want = single(np.concatenate([a, single(i, "s")], 1), "u")
    else:
        want = np.maximum(a + exact(i, WEIGHTS["o"], SAME)[0], 0) + single(a, "v")
    (got,) = found.run([x], threads=2, checked=True)
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


@pytest.mark.parametrize(
    ("channels", "size", "chip"),
    [
        (12, (1, 40, 40), "skylake-avx512"),
        (64, (1, 7, 7), "skylake-avx512"),
        (64, (1, 90, 1), "skylake-avx512"),
        (64, (1, 40, 40), "sapphirerapids"),
        (64, (1, 40, 40), "haswell"),
    ],
)
def test_unprofitable_shapes(channels: int, size: tuple[int, int, int], chip: str) -> None:
    """Few channels, few pixels for their weights, columns of one, tiles, few registers; batches are many pixels."""
    assert NAME not in kinds(compiled(random(64, channels, 3, 3), size, SAME, chip))
    assert (NAME in kinds(compiled(random(64, channels, 3, 3), (4, *size[1:]), SAME, chip))) == (size[1] == 7)
