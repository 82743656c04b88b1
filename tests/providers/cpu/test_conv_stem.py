"""Stem convolutions whose rows are transposed as they are needed."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.providers.cpu.kernels.conv import stem
from sardonyx.providers.cpu.layout import nhwc
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.test_conv import Case, assert_close, expected, feeds_of, graph

WIDE = "skylake-avx512"
CASES = {
    "as MobileNet has it": Case((2, 3, 33, 97), (32, 3, 3, 3), "pads = [1, 1, 1, 1], strides = [2, 2]", "y = Relu(a)"),
    "of a ResNet": Case((1, 3, 30, 41), (20, 3, 7, 7), "pads = [3, 3, 3, 3], strides = [2, 2]"),
    "patches": Case((1, 3, 24, 36), (48, 3, 4, 4), "strides = [4, 4]"),
    "several panels": Case((1, 3, 9, 130), (150, 3, 3, 3), "pads = [1, 1, 1, 1]", "s = Sigmoid(a) y = Mul(a, s)"),
    "two channels, padding on one side": Case((1, 2, 7, 19), (5, 2, 2, 3), "pads = [0, 2, 1, 0]"),
    "four channels, rows far apart": Case((2, 4, 19, 21), (17, 4, 3, 2), "pads = [4, 1, 0, 1], dilations = [2, 1]"),
    "narrower than a vector": Case((1, 3, 6, 3), (16, 3, 3, 3), "pads = [1, 1, 1, 1]"),
    "more padding than image": Case((1, 3, 2, 2), (8, 3, 5, 5), "pads = [4, 4, 4, 4]"),
    "strides beyond the window": Case((1, 3, 20, 50), (16, 3, 2, 2), "strides = [3, 5]"),
}


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (nhwc, stem):
        monkeypatch.setattr(module, "MIN_NHWC_LANES", 1)


@pytest.mark.parametrize("cpu", [None, "haswell", WIDE])
@pytest.mark.parametrize("name", CASES)
def test_against_onnx(name: str, cpu: str | None) -> None:
    case = CASES[name]
    feeds = feeds_of(case)
    made = Compiled(*graph(case), cpu, constants={"w": feeds["w"]})
    names = [step.spec.name for step in made.steps]
    assert names[0] == "conv_nhwc" and names[1:] in (["transpose"], ["interleave"]), "no copy stands before it"
    (got,) = made.run([feeds["x"], feeds["b"]], checked=cpu == WIDE)
    assert_close(got, expected(case, feeds), case)
    for threads in (2, 3):
        (again,) = made.run([feeds["x"], feeds["b"]], threads=threads)
        np.testing.assert_array_equal(again, got)


def test_an_infinity_affects_only_windows_that_contain_it() -> None:
    """Padding is zero times any weight, and columns outside a block are not checked."""
    case = Case((1, 3, 12, 120), (16, 3, 3, 3), "pads = [1, 1, 1, 1], strides = [2, 2]")
    feeds = feeds_of(case)
    feeds["x"][0, 1, 5, 64], feeds["x"][0, 2, 11, 119] = np.inf, np.nan
    (got,) = Compiled(*graph(case), WIDE, constants={"w": feeds["w"]}).run([feeds["x"], feeds["b"]])
    with np.errstate(invalid="ignore"):
        want = expected(case, feeds)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    finite = np.isfinite(want)
    np.testing.assert_allclose(got[finite], want[finite], rtol=1e-5, atol=1e-5)


def test_others_are_copied() -> None:
    """Those of an open size; and where filters are few, so that dot products are quicker."""
    for filters, size in ((8, "H,W"), (2, "9,11")):
        case = Case((1, 3, 9, 11), (filters, 3, 3, 3), "pads = [1, 1, 1, 1]")
        feeds = feeds_of(case)
        text, inputs, outputs = graph(case)
        inputs = inputs.replace("float[1,3,9,11]", f"float[1,3,{size}]")
        made = Compiled(text, inputs, outputs, WIDE, constants={"w": feeds["w"]})
        assert not any("plane_row" in step.args for step in made.steps)
        (got,) = made.run([feeds["x"], feeds["b"]])
        assert_close(got, expected(case, feeds), case)


LARGE = {
    "patches": Case((1, 3, 160, 200), (24, 3, 32, 32), "strides = [32, 32]"),
    "patches, padded": Case((2, 3, 110, 70), (20, 3, 20, 20), "strides = [20, 20], pads = [3, 5, 10, 2]"),
    "overlapping": Case((1, 2, 40, 45), (17, 2, 17, 31), "strides = [2, 3], dilations = [2, 1]"),
}


@pytest.mark.parametrize("cpu", ["haswell", WIDE])
@pytest.mark.parametrize("name", LARGE)
def test_windows_of_many_taps(name: str, cpu: str) -> None:
    """The kernel counts rows of taps: all taps are more than its tables hold."""
    case = LARGE[name]
    feeds = feeds_of(case)
    made = Compiled(*graph(case), cpu, constants={"w": feeds["w"]})
    assert "conv_nhwc" in [step.spec.name for step in made.steps]
    (got,) = made.run([feeds["x"], feeds["b"]], checked=True)
    assert_close(got, expected(case, feeds), case)
    (again,) = made.run([feeds["x"], feeds["b"]], threads=3)
    np.testing.assert_array_equal(again, got)
