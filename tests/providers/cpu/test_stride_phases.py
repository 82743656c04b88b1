"""Strided windows over the phases of an image: the same sums, from fewer tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sardonyx.providers.cpu.kernels.conv.packed_image import ImageFormat, PackedImageLayout
from sardonyx.providers.cpu.kernels.conv.stride_phases import StridePhases
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Memory
from tests.providers.cpu.test_packed_windows import BOUNDS, CHIP, Net, error

LAYERS = {
    "3x3": "y = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(a, v)",
    "padded behind": "y = Conv<strides = [2, 2], pads = [0, 0, 1, 1]>(a, v)",
    "not padded": "y = Conv<strides = [2, 2]>(a, v)",
    "1x1": "y = Conv<strides = [2, 2]>(a, w1)",
    "rows": "y = Conv<strides = [2, 1], pads = [1, 1, 1, 1]>(a, v)",
    "columns": "y = Conv<strides = [1, 3], pads = [1, 1, 1, 1]>(a, v)",
    "beside others": "h = Conv(a, w2) c = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(a, v) y = Relu(c)",
    "added": "c = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(a, v) e = Conv<strides = [2, 2]>(a, w1) y = Add(c, e)",
}


@pytest.fixture(autouse=True)
def _garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is full of NaN."""
    monkeypatch.setattr(Memory, "garbage", b"\xff")


def folds(net: Net) -> int:
    return net.steps.count("split_stride_phases")


@pytest.mark.parametrize(
    ("name", "channels", "size"),
    [
        ("3x3", 64, (14, 14)), ("3x3", 60, (13, 14)), ("3x3", 96, (9, 40)), ("padded behind", 64, (14, 14)),
        ("not padded", 62, (15, 13)), ("1x1", 64, (14, 14)), ("1x1", 50, (13, 13)), ("rows", 64, (14, 7)),
        ("columns", 64, (7, 14)), ("beside others", 64, (14, 14)), ("added", 64, (14, 14)),
    ],
)  # fmt: skip
def test_sums_are_the_same(name: str, channels: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StridePhases, "pays", lambda *_: True)
    net = Net(LAYERS[name], "medium", channels, size)
    assert folds(net) == LAYERS[name].count("strides")
    got = net.run(checked=True)
    assert error(got, net.expected()) < BOUNDS["medium"]
    np.testing.assert_array_equal(net.run(threads=3), got)
    monkeypatch.setattr(StridePhases, "pays", lambda *_: False)
    plain = Net(LAYERS[name], "medium", channels, size)
    assert folds(plain) == 0
    np.testing.assert_array_equal(plain.run(), got)
    for odd in (np.inf, np.nan):
        for one in (net, plain):
            one.feeds["x"][1, 7, 4, 4] = odd
        np.testing.assert_array_equal(net.run(), plain.run())


@pytest.mark.parametrize("name", ["3x3", "1x1"])
def test_any_number_of_images(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StridePhases, "pays", lambda *_: True)
    net = Net(LAYERS[name], "medium", 64, (14, 14))
    weights = {k: v for k, v in net.feeds.items() if k != "x"}
    inputs = net.inputs.replace("float[2,40", "float[n,40")
    made = Compiled(net.body, inputs, net.outputs, CHIP, precision="medium", constants=weights)
    assert [step.spec.name for step in made.steps].count("split_stride_phases") == 1
    for count in (0, 1, 3):
        x = np.resize(net.feeds["x"], (count, 40, 14, 14))
        (got,) = made.run([x], threads=2, checked=True)
        assert got.shape == (count, 48, 7, 7)
        np.testing.assert_array_equal(got[:2], net.run()[: min(count, 2)])


@pytest.mark.parametrize(
    ("channels", "filters", "taps", "size", "pays"),
    [
        (512, 512, 3, 7, True), (1024, 2048, 1, 7, True), (256, 256, 3, 14, False), (512, 1024, 1, 14, False),
        (512, 32, 1, 7, False), (64, 64, 3, 64, False),
    ],
)  # fmt: skip
def test_profitable_shapes(channels: int, filters: int, taps: int, size: int, pays: bool) -> None:
    """Rows of seven leave half of a tile empty, and those of 14 or 64 little; few filters are not worth the copy."""
    image = PackedImageLayout(ImageFormat.of_terms(1), 1, channels, (1, 2 * size, 2 * size), (0, 1, 1), (0, 1, 1))
    phases = StridePhases.of(image, (1, taps, taps), (1, 2, 2), (1, 1, 1), (1, size, size))
    assert phases is not None
    assert phases.pays(channels // 32 * taps**2, filters, (1, size, size)) == pays


def test_nodes_that_are_not_folded() -> None:
    image = PackedImageLayout(ImageFormat.of_terms(1), 1, 64, (1, 14, 14), (0, 1, 1), (0, 1, 1))
    window = (1, 3, 3), (1, 2, 2), (1, 1, 1), (1, 7, 7)
    assert StridePhases.of(image, *window) is not None
    for other in (
        replace(image, format=ImageFormat.of_terms(3)),
        replace(image, compact=8),
        replace(image, size=(2, 14, 14)),
    ):
        assert StridePhases.of(other, *window) is None
    assert StridePhases.of(image, (1, 3, 3), (1, 1, 1), (1, 1, 1), (1, 14, 14)) is None
    assert StridePhases.of(image, (1, 3, 3), (1, 2, 2), (1, 2, 2), (1, 7, 7)) is None
