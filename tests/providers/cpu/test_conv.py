"""Convolutions on vectors, against onnx's own evaluator in float64: geometry, types, epilogues, special numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from sardonyx.errors import InvalidArgument
from sardonyx.providers.cpu.machine import isa
from tests.providers.cpu.compiled import NHWC_VARIANTS, Compiled, forbidding
from tests.providers.cpu.running import Array

CHIPS = (None, "haswell", "skylake-avx512")
NUMPY = {"float": np.float32, "double": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture(autouse=True)
def _by_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images stay as they are on every chip."""
    forbidding(monkeypatch, *NHWC_VARIANTS)


@dataclass(frozen=True)
class Case:
    """Sizes of image and weights, and the attributes as text."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    attributes: str = ""
    then: str = "y = Identity(a)"
    """What follows the convolution ``a``; may read ``b``, with an element per filter, and ``r``, shaped like ``a``."""
    dtype: str = "float"

    @property
    def text(self) -> str:
        return f"a = Conv<{self.attributes}>(x, w, b) {self.then}".replace("Conv<>", "Conv")

    def feeds(self, seed: int = 0) -> dict[str, Array]:
        rng = np.random.default_rng(seed + sum(self.x) + sum(self.w))
        depth = max(int(np.prod(self.w[1:])), 1)
        made = {"x": rng.standard_normal(self.x), "w": rng.standard_normal(self.w) / depth**0.5}
        made["b"] = rng.standard_normal(self.w[0])
        return {name: v.astype(NUMPY[self.dtype]) for name, v in made.items()}


CASES = {
    # one tap
    "pointwise": Case((2, 5, 7, 9), (11, 5, 1, 1)),
    "pointwise, whole vectors": Case((1, 33, 16, 12), (16, 33, 1, 1), then="y = Relu(a)"),
    "pointwise, many channels": Case((1, 600, 3, 3), (9, 600, 1, 1)),
    "pointwise, several tiles of filters": Case((2, 70, 9, 13), (37, 70, 1, 1), then="y = Relu(a)"),
    "pointwise, one run": Case((1, 24, 11, 13), (21, 24, 1, 1), then="y = Relu(a)"),
    "pointwise, few pixels": Case((1, 150, 3, 3), (40, 150, 1, 1)),
    "pointwise, groups": Case((2, 36, 5, 9), (30, 12, 1, 1), "group = 3"),
    "pointwise, activation": Case((1, 60, 7, 7), (20, 60, 1, 1), "", "s = Sigmoid(a) y = Mul(a, s)"),
    "pointwise, columns apart": Case((1, 9, 5, 6), (11, 9, 1, 1), "", "y = Transpose<perm = [0, 2, 3, 1]>(a)"),
    "pointwise, stride 2": Case((2, 20, 9, 12), (40, 20, 1, 1), "strides = [2, 2]", "y = Relu(a)"),
    "pointwise, stride 2, groups": Case((1, 20, 9, 12), (80, 10, 1, 1), "strides = [2, 2], group = 2"),
    "pointwise, stride 2, padded behind": Case((1, 9, 8, 12), (40, 9, 1, 1), "strides = [2, 2], pads = [0, 0, 1, 1]"),
    "pointwise, stride 2, rows apart": Case(
        (1, 9, 8, 12), (40, 9, 1, 1), "strides = [2, 2]", "y = Concat<axis = 3>(a, a)"
    ),
    "pointwise, stride 2, in another order": Case(
        (1, 9, 8, 12), (40, 9, 1, 1), "strides = [2, 2]", "y = Transpose<perm = [0, 1, 3, 2]>(a)"
    ),
    "pointwise, every third row": Case((1, 20, 11, 12), (40, 20, 1, 1), "strides = [3, 1]", dtype="float16"),
    "pointwise, padded": Case((1, 3, 4, 5), (4, 3, 1, 1), "pads = [1, 0, 2, 1]"),
    # taps
    "3x3": Case((2, 6, 10, 11), (9, 6, 3, 3), "pads = [1, 1, 1, 1]"),
    "3x3, rows of whole vectors": Case((1, 4, 6, 16), (8, 4, 3, 3), "pads = [1, 1, 1, 1]", then="y = Relu(a)"),
    "3x3, several runs": Case((1, 70, 5, 6), (10, 70, 3, 3), "pads = [1, 1, 1, 1]"),
    "3x3, uneven pads": Case((1, 3, 7, 6), (5, 3, 3, 3), "pads = [0, 2, 1, 0]"),
    "3x3, no pads": Case((1, 3, 7, 6), (5, 3, 3, 3)),
    "3x3, stride 2": Case((1, 5, 11, 14), (6, 5, 3, 3), "pads = [1, 1, 1, 1], strides = [2, 2]"),
    "3x3, stride 3": Case((1, 4, 13, 17), (3, 4, 3, 3), "strides = [3, 3], pads = [2, 2, 2, 2]"),
    "3x3, dilation": Case((1, 3, 12, 13), (4, 3, 3, 3), "dilations = [2, 3], pads = [2, 3, 2, 3]"),
    "3x3, stride and dilation": Case((1, 3, 15, 14), (4, 3, 3, 3), "strides = [2, 2], dilations = [3, 2]"),
    "7x7, stride 2": Case((1, 3, 20, 22), (16, 3, 7, 7), "strides = [2, 2], pads = [3, 3, 3, 3]"),
    "9x9, few filters": Case((1, 4, 14, 15), (3, 4, 9, 9), "pads = [4, 4, 4, 4]"),
    "patches": Case((1, 3, 12, 8), (10, 3, 4, 4), "strides = [4, 4]"),
    "windows apart": Case((1, 3, 11, 13), (4, 3, 2, 2), "strides = [3, 4]"),
    "one filter": Case((1, 7, 9, 10), (1, 7, 3, 3), "pads = [1, 1, 1, 1]"),
    "a long row": Case((1, 3, 3, 1100), (4, 3, 3, 3), "pads = [1, 1, 1, 1]"),
    "only padding": Case((1, 2, 1, 1), (3, 2, 3, 3), "pads = [4, 4, 4, 4]"),
    # groups
    "groups": Case((2, 12, 6, 7), (20, 3, 3, 3), "group = 4, pads = [1, 1, 1, 1]"),
    "depthwise": Case((2, 5, 9, 11), (5, 1, 3, 3), "group = 5, pads = [1, 1, 1, 1]"),
    "depthwise, few rows": Case((1, 5, 3, 30), (5, 1, 3, 3), "group = 5, pads = [1, 1, 1, 1]"),
    "depthwise, stride 2": Case((1, 6, 13, 18), (6, 1, 3, 3), "group = 6, strides = [2, 2], pads = [1, 1, 1, 1]"),
    "depthwise, 5x5": Case((1, 3, 12, 7), (3, 1, 5, 5), "group = 3, pads = [2, 2, 2, 2]"),
    "depthwise, 7x7": Case((1, 3, 12, 9), (3, 1, 7, 7), "group = 3, pads = [3, 3, 3, 3]"),
    "depthwise, two filters each": Case((1, 4, 6, 7), (8, 1, 3, 3), "group = 4, pads = [1, 1, 1, 1]"),
    "depthwise, one tap": Case((1, 4, 6, 7), (4, 1, 1, 1), "group = 4"),
    # axes
    "1 axis": Case((2, 6, 31), (7, 6, 5), "pads = [2, 2]"),
    "1 axis, depthwise": Case((1, 6, 31), (6, 1, 5), "group = 6, pads = [4, 0]"),
    "one column": Case((2, 6, 31, 1), (7, 6, 5, 1), "pads = [2, 0, 2, 0], strides = [2, 1]", "y = Relu(a)"),
    "one column, padded": Case((1, 6, 31, 1), (7, 6, 5, 1), "pads = [2, 0, 2, 1]"),
    "one column, depthwise": Case((1, 6, 31, 1), (6, 1, 5, 1), "group = 6, pads = [4, 0, 0, 0]"),
    "one row of three axes": Case((1, 3, 5, 1, 7), (4, 3, 3, 1, 3), "pads = [1, 0, 1, 1, 0, 1], dilations = [1, 1, 2]"),
    "3 axes": Case((1, 3, 5, 6, 7), (4, 3, 3, 3, 3), "pads = [1, 1, 1, 1, 1, 1]"),
    "3 axes, stride": Case((1, 2, 6, 5, 9), (3, 2, 2, 3, 3), "strides = [2, 1, 2], pads = [1, 0, 1, 0, 1, 1]"),
    # automatic padding
    "same upper": Case((1, 3, 8, 9), (4, 3, 4, 3), 'auto_pad = "SAME_UPPER", strides = [2, 2]'),
    "same lower": Case((1, 3, 8, 9), (4, 3, 4, 3), 'auto_pad = "SAME_LOWER", strides = [2, 2]'),
    # what follows
    "residual": Case((1, 4, 5, 6), (8, 4, 3, 3), "pads = [1, 1, 1, 1]", "c = Add(a, a) t = Tanh(c) y = Add(t, a)"),
    "activation": Case((1, 4, 5, 6), (8, 4, 1, 1), "", "s = Sigmoid(a) y = Mul(a, s)"),
    "row by row": Case((1, 4, 5, 6), (3, 4, 3, 3), "pads = [1, 1, 1, 1]", "y = Add(a, r)"),
    "columns apart": Case((1, 4, 5, 6), (3, 4, 3, 3), "pads = [1, 1, 1, 1]", "y = Transpose<perm = [0, 2, 3, 1]>(a)"),
    # types
    "double": Case((1, 6, 7, 8), (9, 6, 3, 3), "pads = [1, 1, 1, 1]", dtype="double"),
    "half": Case((1, 6, 7, 8), (9, 6, 3, 3), "strides = [2, 2]", dtype="float16"),
    "brain": Case((1, 6, 7, 8), (9, 6, 3, 3), "pads = [1, 1, 1, 1]", dtype="bfloat16"),
    "pointwise, double": Case((1, 20, 7, 8), (19, 20, 1, 1), dtype="double"),
    "pointwise, half": Case((1, 20, 7, 8), (19, 20, 1, 1), dtype="float16"),
    # nothing
    "no batch": Case((0, 3, 4, 5), (4, 3, 3, 3)),
    "pointwise, no channels": Case((1, 0, 4, 5), (4, 0, 1, 1)),
    "no channels": Case((1, 0, 4, 5), (4, 0, 3, 3)),
}  # fmt: skip

TOLERANCE = {"float": 2e-6, "double": 1e-14, "float16": 2e-3, "bfloat16": 2e-2}


def shape(sizes: tuple[int, ...], dtype: str) -> str:
    return f"{dtype}[{','.join(map(str, sizes))}]"


def graph(case: Case) -> tuple[str, str, str]:
    feeds = case.feeds()
    extra = ", float[5,1] r" if " r)" in case.then else ""
    inputs = ", ".join(f"{shape(v.shape, case.dtype)} {name}" for name, v in feeds.items()) + extra
    rank = len(case.x)
    return case.text, inputs, f"{case.dtype}[{','.join('ABCDE'[:rank])}] y"


def expected(case: Case, feeds: dict[str, Array]) -> Array:
    """By onnx, in float64; it cannot convolve nothing."""
    wide = {name: v.astype(np.float64) for name, v in feeds.items()}
    inputs = ", ".join(f"{shape(v.shape, 'double')} {name}" for name, v in wide.items())
    outputs = f"double[{','.join('ABCDE'[: len(case.x)])}] y"
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => ({outputs}) {{ {case.text} }}'
    (y,) = ReferenceEvaluator(onnx.parser.parse_model(text)).run(None, wide)
    return np.asarray(y)


def feeds_of(case: Case, seed: int = 0) -> dict[str, Array]:
    feeds = case.feeds(seed)
    if " r)" in case.then:
        feeds["r"] = np.random.default_rng(3).standard_normal((5, 1)).astype(np.float32)
    return feeds


def assert_close(got: Array, want: Array, case: Case) -> None:
    """Within the rounding of a sum of as many terms; the result's own rounding for narrow types."""
    assert got.shape == want.shape
    tolerance = TOLERANCE[case.dtype] * max(float(np.prod(case.w[1:])) ** 0.5, 1)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_against_onnx(name: str) -> None:
    case = CASES[name]
    feeds = feeds_of(case)
    compiled = Compiled(*graph(case))
    (got,) = compiled.run(list(feeds.values()))
    if 0 in case.x or 0 in case.w:
        want = np.broadcast_to(feeds["b"].reshape(-1, *[1] * (len(case.x) - 2)), got.shape).astype(np.float64)
    else:
        want = expected(case, feeds)
    assert_close(got, want, case)
    for threads in (2, 3):
        (again,) = compiled.run(list(feeds.values()), threads=threads)
        np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize(
    ("case", "elements"),
    [
        (Case((1, 2, 12, 108), (9, 2, 4, 4), "strides = [4, 4]"), 2 * 16 * 81),
        (Case((1, 300, 5, 33), (4, 300, 1, 1)), 300 * 64),
        (Case((2, 150, 5, 33), (20, 150, 1, 1)), 150 * 36),
        (Case((1, 40, 5, 33), (20, 40, 1, 1), then="y = Relu(a)"), 40),
        (Case((1, 60, 9, 70), (9, 60, 3, 3), "pads = [1, 1, 1, 1]"), 60 * 3 * 73),
    ],
)
def test_blocks_stay_inside_their_scratch(case: Case, elements: int) -> None:
    """With a cache that an image block fills to the last element before alignment."""
    feeds = case.feeds()
    small = replace(isa.named(None), l2_nbytes=2 * 4 * elements)
    (got,) = Compiled(*graph(case), isa=small).run(list(feeds.values()), checked=True)
    assert_close(got, expected(case, feeds), case)


POINTWISE = ("pointwise, several tiles of filters", "pointwise, one run", "pointwise, groups")


@pytest.mark.sliced(7)
@pytest.mark.parametrize("cpu", CHIPS[1:])
@pytest.mark.parametrize("name", CASES)
def test_other_chips(name: str, cpu: str) -> None:
    case = CASES[name]
    feeds = feeds_of(case)
    (got,) = Compiled(*graph(case), cpu).run(list(feeds.values()))
    assert_close(got, expected(case, feeds), case)


@pytest.mark.sliced(7)
@pytest.mark.parametrize("name", CASES)
def test_every_address_is_inside(name: str) -> None:
    case = CASES[name]
    feeds = feeds_of(case)
    (got,) = Compiled(*graph(case)).run(list(feeds.values()), checked=True)
    assert_close(got, expected(case, feeds), case)


SIZED = {
    "3x3": ("pads = [1, 1, 1, 1]", (5, 3, 3, 3), [(1, 9, 9), (2, 1, 1), (1, 40, 33), (0, 3, 3), (1, 3, 700)]),
    "same": ('auto_pad = "SAME_UPPER", strides = [2, 2]', (5, 3, 3, 3), [(1, 9, 8), (2, 1, 1), (1, 40, 33)]),
    "pointwise": ("", (5, 3, 1, 1), [(1, 9, 9), (2, 1, 1), (1, 40, 33), (0, 2, 5), (1, 3, 1400)]),
    "depthwise": ("group = 3, pads = [1, 1, 1, 1]", (3, 1, 3, 3), [(1, 9, 9), (2, 1, 1), (1, 60, 70), (3, 2, 900)]),
}


@pytest.mark.parametrize("name", SIZED)
def test_dynamic_sizes(name: str) -> None:
    attributes, w, sizes = SIZED[name]
    head = f"a = Conv<{attributes}>(x, w, b) y = Relu(a)".replace("<>", "")
    inputs = f"float[n,3,h,v] x, {shape(w, 'float')} w, float[{w[0]}] b"
    compiled = Compiled(head, inputs, "float[n,c,p,q] y")
    assert len(compiled.steps) == (1 if "group" in attributes else 2), "weights are packed, then all is one kernel"
    for n, h, v in sizes:
        case = Case((n, 3, h, v), w, attributes, "y = Relu(a)")
        feeds = case.feeds()
        (got,) = compiled.run(list(feeds.values()), threads=2)
        if got.size:
            assert_close(got, expected(case, feeds), case)


def test_strided_pixels_are_copied_for_many_filters() -> None:
    attributes = "strides = [2, 2]"
    inputs, outputs = "float[n,5,h,v] x, float[40,5,1,1] w, float[40] b", "float[n,c,p,q] y"
    compiled = Compiled(f"a = Conv<{attributes}>(x, w, b) y = Relu(a)", inputs, outputs)
    assert len(compiled.steps) == 3, "elements are copied, weights are packed"
    for n, h, v in ((1, 9, 9), (2, 1, 1), (1, 40, 33), (0, 3, 3), (1, 3, 700)):
        case = Case((n, 5, h, v), (40, 5, 1, 1), attributes, "y = Relu(a)")
        feeds = case.feeds()
        (got,) = compiled.run(list(feeds.values()), threads=2)
        if got.size:
            assert_close(got, expected(case, feeds), case)


def test_constant_weights_are_packed_once() -> None:
    weights = ", ".join(f"{v:.3f}" for v in np.random.default_rng(0).standard_normal(36))
    text = f"w = Constant<value = float[2,2,3,3] {{{weights}}}>() y = Conv(x, w)"
    compiled = Compiled(text, "float[1,2,8,8] x", "float[1,2,6,6] y")
    assert [step.spec.name for step in compiled.steps] == ["conv_direct"]


def test_images_of_other_strides_are_read_in_place() -> None:
    case = Case((1, 5, 6, 7), (4, 5, 3, 3))
    feeds = case.feeds()
    text = f"t = Transpose<perm = [0, 3, 1, 2]>(x) {case.text.replace('(x,', '(t,')}"
    compiled = Compiled(text, "float[1,6,7,5] x, float[4,5,3,3] w, float[4] b", "float[1,4,4,5] y")
    assert "Loop" not in {type(g).__name__ for g in compiled.lowered.groups}
    turned = {**feeds, "x": np.ascontiguousarray(feeds["x"].transpose(0, 2, 3, 1))}
    (got,) = compiled.run(list(turned.values()))
    assert_close(got, expected(case, feeds), case)


@pytest.mark.parametrize("name", ["pointwise", "3x3", "3x3, stride 2", "depthwise"])
def test_special_numbers_stay_where_windows_see_them(name: str) -> None:
    case = CASES[name]
    feeds = case.feeds()
    x = feeds["x"]
    spots: list[tuple[Any, ...]] = [(0, 0, 3, 4), (0, 1, 5, 2), (-1, 2, 6, 6)]
    for spot, value in zip(spots, (np.nan, np.inf, -np.inf), strict=True):
        x[spot] = value
    with np.errstate(invalid="ignore"):
        want = expected(case, feeds)
    (got,) = Compiled(*graph(case)).run(list(feeds.values()))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got) * np.sign(got), np.isinf(want) * np.sign(want))
    kept = np.isfinite(want)
    np.testing.assert_allclose(got[kept], want[kept], rtol=1e-4, atol=1e-5)


def test_huge_and_tiny_numbers() -> None:
    case = Case((1, 2, 6, 6), (3, 2, 3, 3), "pads = [1, 1, 1, 1]")
    feeds = case.feeds()
    for factor in (1e-42, 1e37):
        scaled = {**feeds, "x": (feeds["x"] * factor).astype("f"), "b": feeds["b"] * 0}
        (got,) = Compiled(*graph(case)).run(list(scaled.values()))
        want = expected(case, scaled).astype(np.float32)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-44)


def test_a_window_larger_than_the_image_is_refused() -> None:
    compiled = Compiled("y = Conv(x, w)", "float[1,2,h,9] x, float[3,2,5,5] w", "float[1,3,p,5] y")
    with pytest.raises(InvalidArgument, match="larger than the padded image"):
        compiled.run([np.zeros((1, 2, 4, 9), "f"), np.zeros((3, 2, 5, 5), "f")])


@pytest.mark.parametrize("attributes", ["strides = [2, 2]", "strides = [2, 3], pads = [1, 0, 0, 2]"])
def test_transposed(attributes: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 4, 5, 6)).astype("f")
    numbers = ", ".join(f"{v:.3f}" for v in rng.standard_normal(4 * 5 * 3 * 3))
    body = f"w = Constant<value = float[4,5,3,3] {{{numbers}}}>() y = ConvTranspose<{attributes}>(x, w)"
    inputs, outputs = "float[2,4,5,6] x", "float[2,c,p,q] y"
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => ({outputs}) {{ {body} }}'
    (want,) = ReferenceEvaluator(onnx.parser.parse_model(text)).run(None, {"x": x})
    (got,) = Compiled(body, inputs, outputs).run([x], threads=2)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
