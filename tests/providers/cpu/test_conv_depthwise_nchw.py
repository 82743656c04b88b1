"""Depthwise convolutions of NCHW images, against onnx's own evaluator in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sardonyx.providers.cpu.machine import isa
from tests.providers.cpu.compiled import NHWC_VARIANTS, Compiled, forbidding
from tests.providers.cpu.test_conv import CHIPS, Case, assert_close, expected, graph


@pytest.fixture(autouse=True)
def _by_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images stay as they are on every chip."""
    forbidding(monkeypatch, *NHWC_VARIANTS)


def case(size: tuple[int, ...], window: tuple[int, ...], attributes: str = "", then: str = "y = Relu(a)") -> Case:
    channels = size[1]
    attributes = f"group = {channels}, {attributes}" if attributes else f"group = {channels}"
    return Case(size, (channels, 1, *window), attributes, then)


ONES, HALVED = "pads = [1, 1, 1, 1]", "strides = [2, 2]"
CASES = {
    "7 rows": case((2, 5, 7, 7), (3, 3), ONES),
    "14 rows": case((1, 5, 14, 13), (3, 3), ONES),
    "rows that 7 does not divide": case((1, 5, 15, 16), (3, 3), ONES),
    "few rows": case((1, 5, 3, 30), (3, 3), ONES),
    "narrow": case((1, 5, 14, 3), (3, 3), ONES),
    "5x5": case((1, 5, 14, 14), (5, 5), "pads = [2, 2, 2, 2]"),
    "several blocks": case((1, 3, 90, 111), (3, 3), ONES),
    "dilated": case((1, 3, 20, 21), (3, 3), "dilations = [2, 3], pads = [2, 3, 2, 3]"),
    "only padding": case((1, 2, 1, 1), (3, 3), "pads = [4, 4, 4, 4]"),
    # strides: rows and columns in phases
    "stride 2": case((1, 6, 14, 14), (3, 3), f"{HALVED}, {ONES}"),
    "stride 2, 5x5, uneven pads": case((1, 6, 14, 14), (5, 5), f"{HALVED}, pads = [1, 2, 2, 1]"),
    "stride 2, no pads": case((1, 6, 17, 31), (3, 3), HALVED),
    "stride 2, narrow": case((1, 6, 17, 5), (3, 3), HALVED),
    "stride 2, pads 3": case((1, 4, 11, 12), (3, 3), f"{HALVED}, pads = [3, 3, 3, 3]"),
    "stride 2, a long row": case((1, 2, 9, 2500), (3, 3), f"{HALVED}, {ONES}"),
    "stride 2, even dilation": case((1, 4, 23, 25), (3, 3), f"{HALVED}, dilations = [2, 2]"),
    "stride 2, odd dilation": case((1, 4, 23, 25), (3, 3), f"{HALVED}, dilations = [3, 3]"),
    "stride 2, one column of taps": case((1, 4, 23, 25), (3, 1), HALVED),
    "stride 3": case((1, 4, 23, 25), (3, 3), f"strides = [3, 3], {ONES}"),
    "stride 4, dilation 3": case((1, 4, 33, 35), (3, 3), "strides = [4, 4], dilations = [3, 3]"),
    "windows apart": case((1, 4, 23, 25), (2, 2), "strides = [3, 3]"),
    "3 axes": case((1, 3, 5, 9, 10), (3, 3, 2), "pads = [1, 1, 0, 2, 1, 1], strides = [1, 2, 1]"),
    # what follows
    "sums only": case((1, 5, 14, 14), (3, 3), ONES, "y = Identity(a)"),
    "residual": case((1, 5, 14, 14), (3, 3), ONES, "c = Sub(a, x) y = Relu(c)"),
    "activation": case((1, 5, 14, 14), (3, 3), ONES, "s = Sigmoid(a) y = Mul(a, s)"),
    "columns apart": case((1, 5, 14, 14), (3, 3), ONES, "y = Transpose<perm = [0, 2, 3, 1]>(a)"),
    # types
    "half": replace(case((1, 5, 14, 14), (3, 3), HALVED), dtype="float16"),
    "double": replace(case((1, 5, 14, 14), (3, 3), HALVED), dtype="double"),
}


@pytest.mark.sliced(3)
@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("name", CASES)
def test_against_onnx(name: str, cpu: str | None) -> None:
    made = CASES[name]
    feeds = made.feeds()
    compiled = Compiled(*graph(made), cpu)
    (got,) = compiled.run(list(feeds.values()), checked=True)
    assert_close(got, expected(made, feeds), made)
    for threads in (2, 3):
        (again,) = compiled.run(list(feeds.values()), threads=threads)
        np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize("name", ["stride 2", "stride 2, a long row", "several blocks"])
def test_blocks_of_few_rows(name: str) -> None:
    """With a small cache, so that blocks have few rows and tiles of rows do not divide some of them."""
    made = CASES[name]
    feeds = made.feeds()
    for nbytes in (1 << 11, 1 << 13):
        small = replace(isa.named(None), l1_nbytes=nbytes)
        (got,) = Compiled(*graph(made), isa=small).run(list(feeds.values()), checked=True)
        assert_close(got, expected(made, feeds), made)


def test_padding_is_that_of_the_plane_at_hand() -> None:
    """Of 3-D images: which planes of a window are padding differs from plane to plane."""
    made = case((2, 2, 4, 7, 8), (3, 3, 3), "pads = [2, 1, 1, 2, 1, 1]")
    feeds = made.feeds()
    for threads in (1, 2):
        (got,) = Compiled(*graph(made)).run(list(feeds.values()), threads=threads)
        assert_close(got, expected(made, feeds), made)
