"""Windows over pixels between convolutions on tiles: depthwise ones and pooling take and write terms."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from sardonyx.providers.cpu.kernels.conv import on_tiles
from sardonyx.providers.cpu.language.values import bf16
from sardonyx.providers.cpu.layout import packed_images
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array, Memory

CHIP = "sapphirerapids"
BOUNDS = {"medium": 0.015, "highest": 1e-6}

ALONE = "c = Conv<group = N, pads = [1, 1, 1, 1]>(a, d, b) e = Relu(c) y = Conv(e, w1)"
BESIDE = {
    "3x3": f"{ALONE} h = Conv(a, w2)",
    "stride 2": f"{ALONE.replace('1]>', '1], strides = [2, 2]>')} h = Conv(a, w2)",
    "dilation": f"{ALONE.replace('1, 1, 1, 1]', '2, 0, 2, 3], dilations = [2, 3]')} h = Conv(a, w2)",
    "padded": f"{ALONE} h = Conv<pads = [1, 1, 1, 1]>(a, v)",
}
"""Depthwise convolutions of images that others want in terms."""
POOLS = {
    "max": "e = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(a) y = Conv(e, w1)",
    "max, padded": "e = MaxPool<kernel_shape = [2, 2]>(a) y = Conv<pads = [1, 1, 1, 1]>(e, v)",
    "max, large": "e = MaxPool<kernel_shape = [5, 5], pads = [2, 2, 2, 2]>(a) y = Conv(e, w1)",
    "mean": "e = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a) y = Conv(e, w1)",
}
NAMES = {"conv_depthwise_nhwc", "pool_nhwc"}


@pytest.fixture(autouse=True)
def _wherever_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are used whether they pay or not; memory is full of NaN."""
    for name in ("LEAST_SHARE", "LEAST_GAIN", "LEAST_ROWS"):
        monkeypatch.setattr(on_tiles, name, dict.fromkeys((1, 2, 3), 0))
    monkeypatch.setattr(Memory, "garbage", b"\xff")


class Net:
    """A convolution on tiles and what follows it."""

    def __init__(self, rest: str, precision: str, channels: int = 50, size: tuple[int, int] = (13, 14)) -> None:
        n = channels
        self.body = "a0 = Conv(x, w0, b) a = Relu(a0) " + rest.replace("N", str(n))
        sizes = {"x": (2, 40, *size), "w0": (n, 40, 1, 1), "b": (n,), "d": (n, 1, 3, 3), "t": (n, 1, 3, 1)}
        sizes |= {"w1": (48, n, 1, 1), "w2": (48, n, 1, 1), "v": (48, n, 3, 3)}
        sizes = {k: s for k, s in sizes.items() if f" {k}" in self.body or f"({k}," in self.body}
        rng = np.random.default_rng(0)
        self.feeds = {
            k: (rng.standard_normal(s) / (1 if k == "x" else np.prod(s[1:]) ** 0.5)).astype("f")
            for k, s in sizes.items()
        }
        self.inputs = ", ".join(f"float[{','.join(map(str, s))}] {k}" for k, s in sizes.items())
        weights = {k: v for k, v in self.feeds.items() if k != "x"}
        self.outputs = "float[A,B,C,D] y" + (", float[E,F,G,H] h" if " h = " in rest else "")
        self.compiled = Compiled(self.body, self.inputs, self.outputs, CHIP, precision=precision, constants=weights)

    @property
    def steps(self) -> list[str]:
        return [step.spec.name for step in self.compiled.steps]

    @property
    def seen(self) -> list[Any]:
        """The types of images that windows over pixels see."""
        return [dict(s.spec.statics)["x_dtype"] for s in self.compiled.steps if s.spec.name in NAMES]

    def run(self, **options: Any) -> Array:
        return self.compiled.run([self.feeds["x"]], **options)[0]

    def expected(self) -> Array:
        text = f'<ir_version: 10, opset_import: ["" : 21]> g ({self.inputs}) => ({self.outputs}) {{ {self.body} }}'
        model = ReferenceEvaluator(onnx.parser.parse_model(text.replace("float", "double")))
        with np.errstate(invalid="ignore"):
            return np.asarray(model.run(None, {k: v.astype(np.float64) for k, v in self.feeds.items()})[0])


def error(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize(
    ("name", "channels"),
    [("3x3", 50), ("3x3", 64), ("stride 2", 40), ("3x3", 16), ("dilation", 33), ("padded", 72), ("padded", 12)],
)  # fmt: skip
def test_depthwise_convolutions_see_one_part(name: str, channels: int) -> None:
    net = Net(BESIDE[name], "medium", channels)
    assert net.seen == [bf16] and net.steps.count("pack_image") == 1
    got = net.run(checked=channels == 50)
    assert error(got, net.expected()) < BOUNDS["medium"]
    np.testing.assert_array_equal(net.run(threads=3), got)
    if name == "dilation":  # the reference multiplies elements between taps by zero, which turns Inf into NaN
        return
    net.feeds["x"][1, 7, 4, 4] = np.inf
    net.feeds["x"][0, 7, 2, 2] = np.nan
    np.testing.assert_array_equal(np.isfinite(net.run()), np.isfinite(net.expected()))


def test_images_of_more_terms_are_not_read_in_place() -> None:
    """Numbers take fewer bytes."""
    net = Net(BESIDE["3x3"], "highest")
    assert bf16 not in net.seen and error(net.run(), net.expected()) < BOUNDS["highest"]


@pytest.mark.parametrize("precision", ["medium", "highest"])
@pytest.mark.parametrize("name", POOLS)
def test_pooling_writes_what_convolutions_read(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(POOLS[name], precision, channels=40)
    assert net.steps.count("pack_image") == 1
    assert (net.seen[0] is bf16) == (precision == "medium" and "max" in name)
    got = net.run(checked=(name, precision) == ("max, padded", "medium"))
    assert error(got, net.expected()) < BOUNDS[precision]
    np.testing.assert_array_equal(net.run(threads=3), got)
    if "max" in name:  # the largest of rounded numbers is the largest, rounded
        monkeypatch.setattr(packed_images, "_slides", lambda *_: False)
        apart = Net(POOLS[name], precision, channels=40)
        assert apart.steps.count("pack_image") == 2
        np.testing.assert_array_equal(apart.run(), got)


@pytest.mark.parametrize("name", ["max", "max, padded"])
def test_blocks_of_bits_are_compared_as_integers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = POOLS[name].replace("(a)", "(a0)")  # of either sign
    net = Net(rest, "medium", channels=64)
    assert [dict(s.spec.statics)["config"].compares_bits for s in net.compiled.steps if s.spec.name in NAMES] == [True]
    got = net.run(checked=True)
    assert error(got, net.expected()) < BOUNDS["medium"]
    np.testing.assert_array_equal(net.run(threads=3), got)
    monkeypatch.setattr(packed_images, "_slides", lambda *_: False)
    apart = Net(rest, "medium", channels=64)
    assert apart.steps.count("pack_image") == 2
    np.testing.assert_array_equal(apart.run(), got)
    for odd in (np.nan, -np.nan, np.inf, -np.inf):
        for one in (net, apart):
            one.feeds["x"][1, 7, 4, 4] = odd
        np.testing.assert_array_equal(apart.run(), net.run())
        assert not np.isfinite(net.run()).all()


def test_columns_of_single_pixels() -> None:
    """Some of those that touch such an image have its axes in another order."""
    rest = "c = Conv<group = N, pads = [1, 0, 1, 0]>(a, t, b) e = Relu(c) y = Conv<pads = [1, 1, 1, 1]>(e, v)"
    for more in ("", " h = Conv<pads = [1, 1, 1, 1]>(a, v)"):
        net = Net(rest + more, "medium", size=(9, 1))
        assert error(net.run(checked=True), net.expected()) < BOUNDS["medium"]


def test_single_rows() -> None:
    net = Net(BESIDE["padded"], "medium", size=(1, 40))
    assert net.seen == [bf16] and error(net.run(checked=True), net.expected()) < BOUNDS["medium"]


def test_windows_with_other_readers_are_written_in_f32() -> None:
    rest = BESIDE["3x3"].replace("y = Conv(e, w1)", "f = Conv(e, w1) s = ReduceMax(a) y = Mul(f, s)")
    net = Net(rest, "medium")
    assert bf16 not in net.seen and error(net.run(), net.expected()) < BOUNDS["medium"]


def test_nothing_is_rounded_for_windows_alone() -> None:
    """Unless they move numbers only, to where these are rounded anyhow."""
    assert bf16 not in Net(ALONE, "medium", 64).seen
    assert bf16 not in Net(POOLS["mean"], "medium", 64).seen
    assert bf16 not in Net(POOLS["max"].replace("y = Conv(e, w1)", "y = Exp(e)"), "medium", 64).seen
