"""Convolutions on tiles, emulated: geometry, precision, special numbers, threads; against onnx in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from sardonyx.providers.cpu.kernels.conv import on_tiles
from sardonyx.providers.cpu.program.steps import Unrepresentable
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array
from tests.providers.cpu.test_conv import Case, expected, graph, shape

CHIP = "sapphirerapids"
BOUNDS = {"highest": 4e-7, "high": 2e-5, "medium": 8e-3}
"""Of the error, in shares of the sum of absolute products."""

CASES = {
    # pixels of all rows as one line
    "pointwise": Case((2, 50, 5, 7), (60, 50, 1, 1)),
    "pointwise, one tile and a pixel": Case((1, 64, 1, 17), (64, 64, 1, 1)),
    "pointwise, padded": Case((1, 32, 4, 5), (32, 32, 1, 1), "pads = [1, 0, 2, 1]"),
    "3x3": Case((1, 60, 7, 7), (64, 60, 3, 3), "pads = [1, 1, 1, 1]"),
    "3x3, batch": Case((3, 32, 5, 4), (32, 32, 3, 3), "pads = [1, 1, 1, 1]"),
    "3x3, uneven pads": Case((1, 32, 6, 9), (50, 32, 3, 3), "pads = [0, 2, 1, 0]"),
    "3x3, no pads": Case((1, 32, 6, 21), (32, 32, 3, 3)),
    "3x3, dilation": Case((1, 32, 12, 13), (32, 32, 3, 3), "dilations = [2, 3], pads = [2, 3, 2, 3]"),
    "3x3, many filters and runs": Case((1, 100, 9, 10), (100, 100, 3, 3), "pads = [1, 1, 1, 1]"),
    "5x1": Case((1, 32, 9, 6), (32, 32, 5, 1), "pads = [2, 0, 2, 0]"),
    "only padding": Case((1, 32, 1, 1), (32, 32, 3, 3), "pads = [4, 4, 4, 4]"),
    # row by row
    "3x3, stride 2": Case((2, 32, 11, 14), (32, 32, 3, 3), "pads = [1, 1, 1, 1], strides = [2, 2]"),
    "3x3, stride 2, wide": Case((1, 32, 3, 75), (32, 32, 3, 3), "pads = [1, 1, 1, 1], strides = [2, 2]"),
    "1x1, stride 2": Case((1, 64, 7, 13), (64, 64, 1, 1), "strides = [2, 2]"),
    "3x3, strides and dilation": Case((1, 32, 15, 14), (32, 32, 3, 3), "strides = [1, 3], dilations = [3, 2]"),
    "patches": Case((1, 32, 12, 24), (32, 32, 4, 4), "strides = [4, 4]"),
    # few channels
    "3 channels, 7x7": Case((2, 3, 20, 41), (32, 3, 7, 7), "strides = [2, 2], pads = [3, 3, 3, 3]"),
    "3 channels, 6x6": Case((1, 3, 14, 15), (32, 3, 6, 6), "strides = [2, 2], pads = [2, 2, 2, 2]"),
    "12 channels, 3x3": Case((1, 12, 6, 9), (32, 12, 3, 3), "pads = [1, 1, 1, 1]"),
    "11 channels, apart": Case((1, 11, 9, 40), (32, 11, 3, 3), "strides = [1, 3], dilations = [1, 2]"),
    # axes
    "1 axis": Case((2, 50, 31), (60, 50, 5), "pads = [2, 2]"),
    "1 axis, stride": Case((1, 50, 70), (32, 50, 4), "strides = [2], pads = [1, 2]"),
    "3 axes": Case((1, 32, 4, 5, 6), (32, 32, 3, 3, 3), "pads = [1, 1, 1, 1, 1, 1]"),
    "3 axes, stride": Case((1, 32, 5, 6, 9), (32, 32, 2, 3, 3), "strides = [2, 1, 2], pads = [1, 0, 1, 0, 1, 1]"),
    # types
    "half": Case((1, 32, 7, 8), (32, 32, 3, 3), "pads = [1, 1, 1, 1]", dtype="float16"),
    "brain": Case((1, 32, 7, 8), (32, 32, 3, 3), "pads = [1, 1, 1, 1]", dtype="bfloat16"),
}  # fmt: skip
ROUNDING = {"float": 0.0, "float16": 1e-3, "bfloat16": 8e-3}


@pytest.fixture(autouse=True)
def _wherever_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are used whether they pay or not."""
    for name in ("LEAST_SHARE", "LEAST_GAIN", "LEAST_ROWS"):
        monkeypatch.setattr(on_tiles, name, dict.fromkeys((1, 2, 3), 0))


def compiled(case: Case, weights: Array, precision: str = "highest") -> Compiled:
    found = Compiled(*graph(case), CHIP, precision=precision, constants={"w": weights})
    assert "conv_amx" in [step.spec.name for step in found.steps]
    return found


def magnitude(case: Case, feeds: dict[str, Array]) -> Array:
    """The sum of absolute products."""
    return expected(replace(case, then="y = Identity(a)"), {name: np.abs(v) for name, v in feeds.items()})


def run(case: Case, feeds: dict[str, Array], precision: str = "highest", **options: Any) -> Array:
    (got,) = compiled(case, feeds["w"], precision).run([v for n, v in feeds.items() if n != "w"], **options)
    return got


@pytest.mark.parametrize("name", CASES)
def test_against_onnx(name: str) -> None:
    case = CASES[name]
    feeds = case.feeds()
    got = run(case, feeds, checked=True)
    error = np.abs(got.astype(np.float64) - expected(case, feeds))
    assert np.max(error / magnitude(case, feeds)) < BOUNDS["highest"] + ROUNDING[case.dtype]


@pytest.mark.sliced(7)
@pytest.mark.parametrize("precision", ["high", "medium"])
@pytest.mark.parametrize("name", CASES)
def test_precisions(name: str, precision: str) -> None:
    case = CASES[name]
    feeds = case.feeds()
    share = np.abs(run(case, feeds, precision) - expected(case, feeds)) / magnitude(case, feeds)
    assert np.max(share) < BOUNDS[precision] + ROUNDING[case.dtype]
    assert np.max(share) > BOUNDS[precision] / 1000, "more exact than it should be: is it another kernel?"


def test_highest_is_as_exact_as_f32() -> None:
    case = Case((1, 256, 6, 6), (32, 256, 3, 3), "pads = [1, 1, 1, 1]")
    feeds = case.feeds()
    want = expected(case, feeds)
    plain = Compiled(*graph(case), "skylake-avx512").run(list(feeds.values()))[0]
    ours, theirs = (np.sqrt(np.mean((v - want) ** 2)) for v in (run(case, feeds), plain))
    assert ours < theirs


@pytest.mark.parametrize("name", ["3x3, batch", "3x3, many filters and runs", "3x3, stride 2"])
def test_threads_change_nothing(name: str) -> None:
    case = CASES[name]
    feeds = case.feeds()
    made = compiled(case, feeds["w"])
    args = [feeds["x"], feeds["b"]]
    (one,) = made.run(args)
    for threads in (2, 3):
        np.testing.assert_array_equal(made.run(args, threads=threads)[0], one)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("name", ["pointwise", "3x3", "3x3, stride 2"])
def test_special_numbers_stay_where_windows_see_them(name: str, precision: str) -> None:
    case = CASES[name]
    feeds = case.feeds()
    for spot, value in zip(
        [(0, 0, 3, 4), (0, 31, 2, 2), (-1, 32 % case.x[1], 1, 3)], (np.nan, np.inf, -np.inf), strict=True
    ):
        feeds["x"][spot] = value
    with np.errstate(invalid="ignore"):
        want = expected(case, feeds)
    got = run(case, feeds, precision)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got) * np.sign(got), np.isinf(want) * np.sign(want))
    kept = np.isfinite(want)
    np.testing.assert_allclose(got[kept], want[kept], atol=10 * BOUNDS[precision])


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("factor", [1e-42, 1e-33, 1e25, 1e37])
def test_huge_and_tiny_numbers(factor: float, precision: str) -> None:
    case = Case((1, 32, 6, 6), (32, 32, 3, 3), "pads = [1, 1, 1, 1]")
    feeds = case.feeds()
    feeds = {**feeds, "x": (feeds["x"] * factor).astype("f"), "b": feeds["b"] * 0}
    got = run(case, feeds, precision)
    # Tiles have no denormals, and images in several terms are lifted above them.
    smallest = {"medium": 2.0**-126 * 30, "high": 1e-43, "highest": 1e-43}[precision]
    share = np.maximum(np.abs(got - expected(case, feeds)) - smallest, 0) / magnitude(case, feeds)
    assert np.max(share) < BOUNDS[precision] * 4


def scattered(rng: np.random.Generator, low: float, high: float, *shape: int) -> Array:
    """Numbers of all magnitudes from 10^low to 3 * 10^high, zeros among them."""
    signs = rng.choice([-1.0, 0.0, 1.0, 1.0], shape)
    return (signs * rng.uniform(1, 3, shape) * 10.0 ** rng.uniform(low, high, shape)).astype(np.float32)


def small_gates(rng: np.random.Generator) -> tuple[Array, Array]:
    """Channels that a gate has closed, and filters that read some of them alone, with large weights."""
    x, w = rng.standard_normal((1, 64, 6, 9)).astype("f"), scattered(rng, -3, 3, 64, 64, 1, 1)
    x[:, 16:] *= (10.0 ** rng.uniform(-44, -20, (48, 1, 1))).astype("f")
    w[:32, :16] = 0
    w[:16] *= np.float32(1e15)
    return x, w


def selected(rng: np.random.Generator) -> tuple[Array, Array]:
    """Each filter is a channel, times a power of ten."""
    w = np.diag(10.0 ** rng.integers(-25, 15, 64)).astype("f").reshape(64, 64, 1, 1)
    return scattered(rng, -45, 38, 1, 64, 6, 9), w


MIXTURES = {
    "all magnitudes": lambda rng: (scattered(rng, -45, 38, 1, 64, 6, 9), scattered(rng, -29, 17, 64, 64, 1, 1)),
    "small ones": lambda rng: (scattered(rng, -45, -20, 1, 64, 6, 9), scattered(rng, -20, 17, 64, 64, 1, 1)),
    "of one pixel each": lambda rng: (
        (rng.standard_normal((1, 64, 6, 9)) * 10.0 ** rng.uniform(-45, 37, (1, 1, 6, 9))).astype("f"),
        scattered(rng, -2, 2, 64, 64, 1, 1),
    ),
    "one large number in each pixel": lambda rng: (
        np.concatenate((scattered(rng, 0, 20, 1, 1, 6, 9), scattered(rng, -45, -30, 1, 63, 6, 9)), axis=1),
        scattered(rng, -10, 17, 64, 64, 1, 1) * (rng.random((1, 64, 1, 1)) < 0.5),
    ),
    "small gates": small_gates,
    "selected": selected,
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("mixture", MIXTURES)
def test_small_numbers_among_others(mixture: str, precision: str, seed: int) -> None:
    """The error of a result is bounded by its own products, even where all of them are denormal."""
    x, w = (np.asarray(v, np.float32) for v in MIXTURES[mixture](np.random.default_rng(seed)))
    case = Case(x.shape, w.shape)
    feeds = {**case.feeds(), "x": x, "w": w}
    feeds["b"] = feeds["b"] * 0
    got = run(case, feeds, precision).astype(np.float64)
    pixels, weights = x[0].reshape(64, -1).astype(np.float64), w.reshape(64, 64).astype(np.float64)
    true, size = weights @ pixels, np.abs(weights) @ np.abs(pixels)
    got, kept = got.reshape(true.shape), size < 3e38
    assert np.count_nonzero(kept) > 100
    share = {"highest": BOUNDS["highest"], "high": 2.0**-12.9}[precision]  # two terms keep 22 bits of huge numbers
    assert np.all(np.abs(got - true)[kept] <= (share * size + 64 * 2.0**-149)[kept])


def test_huge_numbers_among_others() -> None:
    """Of one pixel only: what does not see it is not made anew, and what does is right."""
    case = CASES["3x3"]
    feeds = case.feeds()
    feeds["x"][0, 5, 3, 3] = 3e38
    share = np.abs(run(case, feeds) - expected(case, feeds)) / magnitude(case, feeds)
    assert np.max(share) < BOUNDS["highest"]


def test_weights_that_are_not_representable_are_reported() -> None:
    case = CASES["pointwise"]
    feeds = case.feeds()
    feeds["w"][3, 2] = np.inf
    with pytest.raises(Unrepresentable):
        run(case, feeds)


ENDINGS = {
    "activation": "s = Sigmoid(a) y = Mul(a, s)",
    "more than one result of the sums": "t = Tanh(a) y = Add(t, a)",
    "row by row": "y = Add(a, r)",
    "pixel by pixel": "y = Transpose<perm = [0, 2, 3, 1]>(a)",
}


@pytest.mark.parametrize("then", ENDINGS.values(), ids=list(ENDINGS))
@pytest.mark.parametrize("filters", [32, 45])
def test_epilogues(then: str, filters: int) -> None:
    case = Case((2, 32, 5, 9), (filters, 32, 3, 3), "pads = [1, 1, 1, 1]", then)
    feeds = case.feeds()
    if " r)" in then:
        feeds["r"] = np.random.default_rng(3).standard_normal((5, 1)).astype(np.float32)
    np.testing.assert_allclose(run(case, feeds), expected(case, feeds), rtol=1e-5, atol=1e-5)


def test_sizes_are_numbers_of_the_run() -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((32, 32, 3, 3)).astype("f") / 20
    for attributes in ("pads = [1, 1, 1, 1]", "pads = [1, 1, 1, 1], strides = [2, 2]"):
        text = f"a = Conv<{attributes}>(x, w, b) y = Relu(a)"
        inputs = "float[n,32,h,v] x, float[32,32,3,3] w, float[32] b"
        made = Compiled(text, inputs, "float[n,32,p,q] y", CHIP, constants={"w": w})
        assert made.steps[-1].spec.name == "conv_amx"
        for n, h, v in ((1, 9, 9), (2, 1, 1), (1, 3, 40), (0, 3, 3)):
            case = Case((n, 32, h, v), w.shape, attributes, "y = Relu(a)")
            feeds = {**case.feeds(), "w": w}
            (got,) = made.run([feeds["x"], feeds["b"]], threads=2)
            if got.size:
                np.testing.assert_allclose(got, expected(case, feeds), rtol=1e-5, atol=1e-5)


CHAIN = """
    a0 = Conv(x, w0, b0) a = Relu(a0)
    c0 = Conv<pads = [1, 1, 1, 1]>(a, w1, b0) c = Relu(c0)
    d = Conv(c, w2, b0) s = Add(d, a) r = Relu(s)
    e = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(r, w3, b1)
    f = Conv<strides = [2, 2]>(r, w4, b1) t = Add(e, f)
    h = Conv<pads = [2, 2, 2, 2], dilations = [2, 2]>(t, w5, b0) y = Sigmoid(h)
    g = GlobalMaxPool(t)
"""
SHAPES = [(50, 60, 1, 1), (50, 50, 3, 3), (50, 50, 1, 1), (64, 50, 3, 3), (64, 50, 1, 1), (50, 64, 3, 3)]


@pytest.mark.parametrize(("poison", "precision"), [(None, "highest"), (np.inf, "highest"), (None, "medium")])
def test_images_pass_between_convolutions_as_bf16_terms(poison: float | None, precision: str) -> None:
    rng = np.random.default_rng(0)
    constants = {f"w{i}": (rng.standard_normal(s) / np.prod(s[1:]) ** 0.5).astype("f") for i, s in enumerate(SHAPES)}
    constants |= {f"b{i}": rng.standard_normal(n).astype("f") for i, n in enumerate((50, 64))}
    x = rng.standard_normal((2, 60, 13, 15)).astype("f")
    if poison is not None:
        x[1, 3, 4, 5] = poison
    every = {"x": x, **constants}
    inputs = ", ".join(f"{shape(v.shape, 'float')} {name}" for name, v in every.items())
    outputs = "float[2,50,7,8] y, float[2,64,1,1] g"
    made = Compiled(CHAIN, inputs, outputs, CHIP, precision=precision, constants=constants)
    names = [step.spec.name for step in made.steps]
    assert names.count("pack_image") == 1, "one image is not a convolution's"
    got = made.run([x], checked=precision == "medium")
    wide = inputs.replace("float", "double"), outputs.replace("float", "double")
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({wide[0]}) => ({wide[1]}) {{ {CHAIN} }}'
    with np.errstate(invalid="ignore"):
        model = ReferenceEvaluator(onnx.parser.parse_model(text))
        want = model.run(None, {name: v.astype(np.float64) for name, v in every.items()})
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5 if precision == "highest" else 0.05)
    for threads in (2, 3) if precision == "highest" else ():
        for one, again in zip(got, made.run([x], threads=threads), strict=True):
            np.testing.assert_array_equal(one, again)


def test_an_image_is_split_once_for_all_that_read_it() -> None:
    rng = np.random.default_rng(0)
    constants = {name: (rng.standard_normal((32, 32, 3, 3)) / 17).astype("f") for name in ("v", "w")}
    body = "a = Conv<pads = [1, 1, 1, 1]>(x, v) c = Conv<pads = [1, 1, 1, 1]>(x, w) y = Concat<axis = 1>(a, c)"
    inputs = "float[1,32,5,6] x, float[32,32,3,3] v, float[32,32,3,3] w"
    made = Compiled(body, inputs, "float[1,64,5,6] y", CHIP, constants=constants)
    assert [step.spec.name for step in made.steps].count("pack_image") == 1
    case = Case((1, 32, 5, 6), (64, 32, 3, 3), "pads = [1, 1, 1, 1]")
    feeds = {"x": case.feeds()["x"], "w": np.concatenate(list(constants.values())), "b": np.zeros(64, "f")}
    np.testing.assert_allclose(made.run([feeds["x"]])[0], expected(case, feeds), rtol=1e-5, atol=1e-5)
