"""Convolutions of NHWC images: the cases of ``test_conv``, on every chip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sardonyx.providers.cpu.kernels.conv import nhwc
from sardonyx.providers.cpu.layout import nhwc as nhwc_layout
from tests.providers.cpu.compiled import Compiled, forbidding
from tests.providers.cpu.running import Array
from tests.providers.cpu.test_conv import CASES, Case, assert_close, expected, feeds_of, graph

MORE = {
    "many filters": Case((2, 24, 9, 10), (70, 24, 3, 3), "pads = [1, 1, 1, 1]", "y = Relu(a)"),
    "many pixels": Case((1, 12, 31, 33), (40, 12, 1, 1), "", "s = Sigmoid(a) y = Mul(a, s)"),
    "several runs of a tap": Case((1, 300, 4, 5), (34, 300, 3, 3), "pads = [1, 1, 1, 1]"),
    "two runs, then in registers": Case((1, 64, 9, 11), (70, 64, 1, 1), "", "y = Relu(a)"),
    "runs of taps, then in registers": Case((2, 12, 9, 10), (40, 12, 3, 3), "pads = [1, 1, 1, 1]", "y = Relu(a)"),
    "81 taps inside the image": Case((1, 20, 12, 13), (8, 20, 9, 9)),
    "three filters": Case((2, 40, 7, 9), (3, 40, 3, 3), "pads = [1, 1, 1, 1]", "y = Sigmoid(a)"),
    "one filter, one tap": Case((1, 24, 9, 11), (1, 24, 1, 1)),
    "one pixel each": Case((3, 96, 1, 1), (24, 96, 1, 1), "", "y = Relu(a)"),
    "one pixel of many": Case((2, 20, 5, 4), (70, 20, 5, 4)),
    "one pixel and its border": Case((1, 12, 1, 1), (17, 12, 3, 3), "pads = [1, 1, 1, 1]"),
    "one pixel, groups": Case((2, 24, 1, 1), (36, 8, 1, 1), "group = 3"),
    "then pooled": Case((1, 16, 9, 11), (24, 16, 3, 3), "pads = [1, 1, 1, 1]", "y = MaxPool<kernel_shape = [2, 2]>(a)"),
    "then a mean": Case((2, 16, 9, 11), (24, 16, 1, 1), "", "r = Relu(a) y = GlobalAveragePool(r)"),
    "read twice": Case((2, 6, 5, 7), (8, 6, 1, 1), "", "m = GlobalAveragePool(a) s = Sigmoid(m) y = Mul(a, s)"),
    "joined": Case((2, 6, 5, 7), (8, 6, 1, 1), "", "t = Tanh(a) c = Concat<axis = 1>(a, t) y = Relu(c)"),
    "the largest of all": Case(
        (2, 6, 4, 4), (8, 6, 1, 1), "",
        "s = Constant<value_ints = [2, 128]>() f = Reshape(a, s) i = ArgMax<axis = 1>(f) y = Cast<to = 1>(i)",
    ),
    "reshaped": Case((2, 6, 4, 4), (8, 6, 1, 1), "", "s = Constant<value_ints = [2, 128]>() y = Reshape(a, s)"),
}  # fmt: skip
ALL = {**CASES, **MORE}


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """On every chip, and term by term."""
    monkeypatch.setattr(nhwc_layout, "MIN_NHWC_LANES", 1)
    forbidding(monkeypatch, "conv.winograd_nhwc")


def compiled(case: Case, feeds: dict[str, Array], cpu: str | None = None) -> Compiled:
    return Compiled(*graph(case), cpu, constants={"w": feeds["w"]})


def given(feeds: dict[str, Array]) -> list[Array]:
    return [v for name, v in feeds.items() if name != "w"]


def wanted(case: Case, feeds: dict[str, Array], shape: tuple[int, ...]) -> Array:
    if 0 in case.x or 0 in case.w:
        return np.broadcast_to(feeds["b"].reshape(-1, *[1] * (len(case.x) - 2)), shape).astype(np.float64)
    return expected(case, feeds)


@pytest.mark.parametrize("name", ALL)
def test_against_onnx(name: str) -> None:
    case = ALL[name]
    feeds = feeds_of(case)
    made = compiled(case, feeds)
    (got,) = made.run(given(feeds))
    assert_close(got, wanted(case, feeds, got.shape), case)
    for threads in (2, 3):
        (again,) = made.run(given(feeds), threads=threads)
        np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize("name", ["many filters", "several runs of a tap", "groups", "three filters"])
def test_weights_packed_by_numpy_or_by_a_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = ALL[name]
    feeds = feeds_of(case)
    (small,) = compiled(case, feeds).run(given(feeds))
    monkeypatch.setattr(nhwc, "NUMPY_NBYTES", 0)
    monkeypatch.setattr(nhwc, "numpy_panels", None)
    (large,) = compiled(case, feeds).run(given(feeds))
    np.testing.assert_array_equal(small, large)


FEW = {
    "16 filters, whole tiles": Case(
        (2, 16, 5, 40), (16, 16, 3, 3), "pads = [1, 1, 1, 1]", "s = Sigmoid(a) y = Mul(a, s)"
    ),
    "tiles round the ends of rows": Case((1, 16, 7, 43), (16, 16, 3, 3), "pads = [1, 1, 1, 1]"),
    "rows shorter than a tile": Case((1, 20, 30, 9), (12, 20, 3, 3), "pads = [1, 1, 1, 1]"),
    "more than the outermost pixels beside the image": Case((1, 16, 9, 47), (16, 16, 5, 7), "pads = [2, 3, 2, 3]"),
    "nothing but padding": Case((1, 16, 1, 24), (16, 16, 1, 1), "pads = [1, 1, 1, 1]"),
    "32 filters, stride 2": Case((1, 16, 11, 40), (32, 16, 3, 3), "pads = [1, 1, 1, 1], strides = [2, 2]"),
    "stride 3, one row of taps": Case((1, 24, 4, 75), (20, 24, 1, 3), "pads = [0, 1, 0, 1], strides = [1, 3]"),
    "dilated": Case((1, 16, 12, 48), (16, 16, 3, 3), "pads = [2, 2, 2, 2], dilations = [2, 2]"),
    "pointwise, over the ends of rows": Case((2, 24, 5, 13), (16, 24, 1, 1)),
    "pointwise, with a stride": Case((1, 24, 9, 49), (16, 24, 1, 1), "strides = [2, 2]"),
    "groups of 16": Case((1, 32, 6, 48), (32, 16, 3, 3), "pads = [1, 1, 1, 1], group = 2"),
    "more taps than a word has bits": Case((1, 16, 11, 56), (16, 16, 9, 9)),
    "3 axes": Case((1, 16, 4, 5, 24), (16, 16, 3, 3, 3), "pads = [1, 1, 1, 1, 1, 1]"),
    "3 axes, wide padding": Case((1, 16, 3, 4, 4), (16, 16, 1, 1, 1), "pads = [0, 0, 1, 0, 0, 1]"),
}  # fmt: skip
"""Filters that fill one or two vectors: tiles of many neighbours."""


@pytest.mark.sliced(3)
@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("name", FEW)
def test_neighbours_share_addresses(name: str, is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nhwc, "LARGE", 0 if is_large else np.inf)
    case = FEW[name]
    feeds = feeds_of(case)
    made = compiled(case, feeds, "skylake-avx512")
    configs = [dict(step.spec.statics)["config"] for step in made.steps if step.spec.name == "conv_nhwc"]
    told = [config.even for config in configs if config.even is not None]
    assert told and all((even > 0) == is_large for even in told)
    (got,) = made.run(given(feeds), checked=True)
    assert_close(got, wanted(case, feeds, got.shape), case)
    for threads in (2, 3):
        (again,) = made.run(given(feeds), threads=threads)
        np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize("name", ["16 filters, whole tiles", "tiles round the ends of rows", "32 filters, stride 2"])
@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_special_numbers_reach_their_neighbours_only(name: str, odd: float) -> None:
    case = replace(FEW[name], then="y = Identity(a)")
    feeds = feeds_of(case)
    feeds["x"][0, 3, 2, ::19] = odd
    (got,) = compiled(case, feeds, "skylake-avx512").run(given(feeds))
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(wanted(case, feeds, got.shape)))


def test_short_sums_are_two_k_blocks() -> None:
    """Sums of 64 terms round less than one chain of multiply-adds does: half as much along the way."""
    rng, channels = np.random.default_rng(0), 64
    x = np.abs(rng.standard_normal((1, channels, 12, 13), np.float32))
    w = rng.standard_normal((48, channels, 1, 1), np.float32)
    b = np.zeros(48, np.float32)
    case = Case(x.shape, w.shape)
    (got,) = compiled(case, {"w": w}, "skylake-avx512").run([x, b])
    exact, chain = np.zeros(got.shape), np.zeros(got.shape, np.float32)
    for c in range(channels):
        product = x[:, c : c + 1].astype(np.float64) * w[None, :, c].astype(np.float64)
        exact, chain = exact + product, (chain + product).astype(np.float32)
    assert np.linalg.norm(got - exact) < 0.85 * np.linalg.norm(chain - exact)


@pytest.mark.sliced(7)
@pytest.mark.parametrize("name", ALL)
def test_every_address_is_inside(name: str) -> None:
    case = ALL[name]
    feeds = feeds_of(case)
    (got,) = compiled(case, feeds, "skylake-avx512").run(given(feeds), checked=True)
    assert_close(got, wanted(case, feeds, got.shape), case)
