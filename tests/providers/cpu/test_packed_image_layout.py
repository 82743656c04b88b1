"""Packed images in the compact layout, read and written by convolutions on emulated tiles; against onnx."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from sardonyx.providers.cpu.kernels.conv.packed_image import ImageFormat, PackedImageLayout, most_compact, window_tiles
from tests.providers.cpu.compiled import Compiled, forcing
from tests.providers.cpu.running import Array
from tests.providers.cpu.test_conv import Case, expected, shape
from tests.providers.cpu.test_conv_amx import BOUNDS, CHIP, magnitude, run

WINDOWS = {
    "1x1": (1, 1, ""),
    "3x3": (3, 3, "pads = [1, 1, 1, 1]"),
    "7x7, stride 2": (7, 7, "pads = [3, 3, 3, 3], strides = [2, 2]"),
    "1x5": (1, 5, "pads = [0, 2, 0, 2]"),
    "5x1": (5, 1, "pads = [2, 0, 2, 0]"),
    "3x3, dilation": (3, 3, "dilations = [2, 2]"),
    "2x9, stride 8": (2, 9, "strides = [1, 8]"),
}
CHANNELS = (1, 3, 4, 7, 12, 16, 24, 40, 48, 80)
PRECISIONS = ("highest", "high", "medium")


@pytest.fixture(autouse=True)
def _wherever_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    forcing(monkeypatch, "conv.int8_slices", "conv.on_tiles")


CASES = [
    pytest.param(channels, *window, PRECISIONS[i % 3], id=f"{channels} channels, {name}")
    for i, (channels, (name, window)) in enumerate(product(CHANNELS, WINDOWS.items()))
]


@pytest.mark.parametrize(("channels", "high", "wide", "attributes", "precision"), CASES)
def test_channels_and_windows(channels: int, high: int, wide: int, attributes: str, precision: str) -> None:
    case = Case((1, channels, 7, 10 * wide + 7), (12 + channels % 13, channels, high, wide), attributes)
    feeds = case.feeds()
    got = run(case, feeds, precision, checked=True)
    assert np.max(np.abs(got - expected(case, feeds)) / magnitude(case, feeds)) < BOUNDS[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("channels", "filters"), [(1, 16), (3, 20), (16, 48), (40, 8), (80, 80)])
def test_special_numbers_of_neighbours_do_not_count(channels: int, filters: int, precision: str) -> None:
    """Tiles read them, beyond the taps of a window."""
    case = Case((2, channels, 5, 20), (filters, channels, 3, 3), "pads = [1, 1, 1, 1]")
    feeds = case.feeds()
    feeds["w"][0, 0, 0, 0] = 0  # times infinity, which windows do see
    for spot, value in (((0, 0, 3, 4), np.nan), ((0, -1, 0, 12), np.inf), ((1, channels // 2, 4, 19), -np.inf)):
        feeds["x"][spot] = value
    with np.errstate(invalid="ignore"):
        want = expected(case, feeds)
    got = run(case, feeds, precision)
    assert np.isfinite(want).mean() > 0.8
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got) * np.sign(got), np.isinf(want) * np.sign(want))
    kept = np.isfinite(want)
    np.testing.assert_allclose(got[kept], want[kept], atol=10 * BOUNDS[precision])


SECONDS = {
    "3x3": "y = Conv<pads = [1, 1, 1, 1]>(a, w)",
    "stride 2": "y = Conv<strides = [2, 2]>(a, w)",
    "also read by others": "c = Conv<pads = [1, 1, 1, 1]>(a, w) m = GlobalMaxPool(a) n = ReduceSum(m) y = Add(c, n)",
    "two readers": "c = Conv<pads = [1, 1, 1, 1]>(a, w) d = Conv<pads = [2, 2, 2, 2], dilations = [2, 2]>(a, w) "
    "y = Add(c, d)",
}


def _model(body: str, feeds: dict[str, Array]) -> tuple[str, ReferenceEvaluator]:
    inputs = ", ".join(f"{shape(v.shape, 'float')} {name}" for name, v in feeds.items())
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => (float[A,B,C,D] y) {{ {body} }}'
    return inputs, ReferenceEvaluator(onnx.parser.parse_model(text.replace("float", "double")))


CHAINS = [
    (3, "high", "3x3"), (12, "highest", "stride 2"), (16, "medium", "3x3"), (16, "highest", "also read by others"),
    (40, "highest", "3x3"), (48, "high", "stride 2"), (80, "high", "two readers"),
]  # fmt: skip


@pytest.mark.parametrize(("channels", "precision", "second"), CHAINS)
def test_a_convolution_packs_for_the_next(channels: int, precision: str, second: str) -> None:
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((2, 40, 9, 11)),
        "v": rng.standard_normal((channels, 40, 3, 3)) / 19,
        "w": rng.standard_normal((40, channels, 3, 3)) / (channels * 9) ** 0.5,
    }
    feeds = {name: v.astype(np.float32) for name, v in feeds.items()}
    body = f"a0 = Conv(x, v) a = Relu(a0) {SECONDS[second]}"
    inputs, model = _model(body, feeds)
    constants = {name: v for name, v in feeds.items() if name != "x"}
    made = Compiled(body, inputs, "float[A,B,C,D] y", CHIP, precision=precision, constants=constants)
    names = [step.spec.name for step in made.steps]
    assert names[:3] == ["pack_image", "conv_amx", "conv_amx"] or second == "also read by others"
    assert names.count("pack_image") == 1
    for odd in (None, np.inf) if precision == "highest" else (None,):
        if odd is not None:
            feeds["x"][1, 3, 4, 5] = odd
        with np.errstate(invalid="ignore"):
            (want,) = model.run(None, {name: v.astype(np.float64) for name, v in feeds.items()})
        (got,) = made.run([feeds["x"]], checked=odd is None)
        np.testing.assert_allclose(
            got, want, rtol=1e-5, atol={"highest": 2e-5, "high": 2e-4, "medium": 0.05}[precision]
        )
        np.testing.assert_array_equal(made.run([feeds["x"]], threads=3)[0], got)


@pytest.mark.parametrize("channels", [1, 3, 6, 12, 40])
def test_nhwc_inputs(channels: int) -> None:
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((2, 6, 21, channels)).astype(np.float32),
        "w": (rng.standard_normal((16, channels, 3, 3)) / (channels * 9) ** 0.5).astype(np.float32),
    }
    body = "t = Transpose<perm = [0, 3, 1, 2]>(x) y = Conv(t, w)"
    inputs, model = _model(body, feeds)
    made = Compiled(body, inputs, "float[A,B,C,D] y", CHIP, constants={"w": feeds["w"]})
    assert [step.spec.name for step in made.steps][-2:] == ["pack_image", "conv_amx"]
    (want,) = model.run(None, {name: v.astype(np.float64) for name, v in feeds.items()})
    np.testing.assert_allclose(made.run([feeds["x"]], checked=True)[0], want, rtol=1e-5, atol=1e-5)


ROW = (1, 1, 1), (1, 1, 1)
WINDOW = (1, 3, 3), (1, 1, 1)
LAYOUTS = {
    # channels, windows, numbers from pixel to pixel (0: blocks), tiles
    "grey": (1, [((1, 7, 7), (1, 1, 1))], 1, 7),
    "colours, seven taps": (3, [((1, 7, 7), (1, 1, 1))], 4, 7),
    "half a block": (16, [WINDOW], 16, 6),
    "half a block, one tap": (16, [ROW], 16, 1),
    "a block, nearly": (28, [WINDOW], 0, 9),
    "blocks": (64, [WINDOW], 0, 18),
    "two blocks and a half": (80, [WINDOW], 80, 24),
    "two blocks and a half, one tap": (80, [ROW], 0, 3),
    "for two": (80, [WINDOW, ROW], 80, 27),
    "eights": (40, [WINDOW], 40, 12),
    "taps apart": (40, [((1, 3, 3), (1, 2, 2))], 48, 18),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_pixel_strides_suit_the_readers(name: str) -> None:
    channels, windows, close, tiles = LAYOUTS[name]
    found = most_compact(
        PackedImageLayout(ImageFormat.of_terms(1), 1, channels, (1, 8, 8), (0, 0, 0), (0, 0, 0)), windows
    )
    assert (found.compact, sum(window_tiles(found, *window) for window in windows)) == (close, tiles)
