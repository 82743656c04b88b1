"""Pointwise convolutions with the depthwise ones that read them, against onnx.reference and the two by themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from sardonyx.providers.cpu.kernels.conv import pointwise_depthwise
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array, Memory

CHIPS = ("haswell", "skylake-avx512", "sapphirerapids")
BETWEEN = {
    "relu6": "c = Clip(b, zero, six)",
    "swish": "s = Sigmoid(b) c = Mul(b, s)",
    "nothing": "c = Identity(b)",
}
CONSTANTS = {"zero": np.float32(0), "six": np.float32(6)}


@dataclass(frozen=True)
class Case:
    """Images (batch, rows, columns) of some channels, how many there are between, and a window over those."""

    x: tuple[int, int, int]
    depth: int
    filters: int
    kernel: tuple[int, int] = (3, 3)
    window: str = "pads = [1, 1, 1, 1]"
    between: str = "relu6"

    @property
    def body(self) -> str:
        return f"""a = Transpose<perm = [0, 3, 1, 2]>(x) b = Conv(a, w1, b1) {BETWEEN[self.between]}
                   d = Conv<group = {self.filters}, {self.window}>(c, w2, b2)
                   e = Relu(d) y = Transpose<perm = [0, 2, 3, 1]>(e)"""

    def weights(self) -> dict[str, Array]:
        rng, n = np.random.default_rng(self.depth), self.filters
        shapes = {"w1": (n, self.depth, 1, 1), "b1": (n,), "w2": (n, 1, *self.kernel), "b2": (n,)}
        sizes = {"w1": self.depth**-0.5, "b1": 1.0, "w2": 0.4, "b2": 1.0}
        found = {name: (rng.standard_normal(d) * sizes[name]).astype(np.float32) for name, d in shapes.items()}
        return {**found, **{name: np.asarray(v) for name, v in CONSTANTS.items()}}

    def image(self) -> Array:
        return np.random.default_rng(1).standard_normal((*self.x, self.depth)).astype(np.float32)


CASES = {
    "three vectors": Case((1, 14, 14), 24, 144),
    "two vectors, stride 2": Case((1, 15, 12), 16, 64, window="pads = [1, 1, 1, 1], strides = [2, 2]"),
    "one vector": Case((1, 9, 20), 10, 80, between="swish"),
    "5x5": Case((1, 13, 9), 17, 48, (5, 5), "pads = [2, 2, 2, 2]", "swish"),
    "5x5, stride 2": Case((1, 12, 13), 40, 96, (5, 5), "pads = [2, 2, 2, 2], strides = [2, 2]"),
    "dilation": Case((1, 16, 11), 16, 32, (3, 3), "pads = [2, 2, 2, 2], dilations = [2, 2]", "nothing"),
    "windows that leave rows out": Case((1, 17, 10), 16, 48, (1, 2), "strides = [3, 2]"),
    "no padding": Case((2, 10, 10), 32, 96, window="pads = [0, 0, 0, 0]"),
    "padding on one side": Case((1, 11, 8), 16, 48, window="pads = [0, 0, 1, 1], strides = [2, 2]"),
    "columns fewer than a tile has pixels": Case((1, 40, 3), 16, 96),
    "one column": Case((1, 30, 1), 16, 48),
    "one row": Case((2, 1, 40), 16, 48),
    "few pixels, many channels": Case((1, 7, 7), 160, 192),
    "a batch": Case((3, 8, 9), 24, 48),
    "no whole vectors": Case((1, 9, 12), 24, 58),
    "a vector and a half": Case((2, 8, 9), 12, 24, between="swish"),
    "seven vectors in pairs": Case((1, 9, 8), 16, 112),
    "less than a vector": Case((1, 10, 11), 16, 9, window="pads = [1, 1, 1, 1], strides = [2, 2]"),
    "no batch": Case((0, 8, 9), 24, 48),
}


def compiled(case: Case, cpu: str, *, sizes: str = "n,h,w", precision: str = "highest") -> Compiled:
    inputs = f"float[{sizes},{case.depth}] x, float[{case.filters},{case.depth},1,1] w1, float[{case.filters}] b1"
    inputs += f", float[{case.filters},1,{case.kernel[0]},{case.kernel[1]}] w2, float[{case.filters}] b2"
    inputs += ", float zero, float six"
    outputs = f"float[n,p,q,{case.filters}] y"
    return Compiled(case.body, inputs, outputs, cpu, constants=case.weights(), precision=precision)


def expected(case: Case, x: Array) -> Array:
    """Of onnx.reference, in float64."""
    names = ", ".join(("double[n,h,w,c] x", *(f"double{list(v.shape) or ''} {k}" for k, v in case.weights().items())))
    text = f'<ir_version: 9, opset_import: ["" : 18]> g ({names}) => (double[n,p,q,c] y) {{ {case.body} }}'
    model = onnx.parser.parse_model(text)
    feeds = {"x": x, **case.weights()}
    (found,) = ReferenceEvaluator(model).run(None, {k: np.asarray(v, np.float64) for k, v in feeds.items()})
    return np.asarray(found)


def names_of(made: Compiled) -> list[str]:
    return [step.spec.name for step in made.steps]


@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("name", CASES)
def test_against_the_reference(name: str, cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "garbage", b"\xff")  # NaN
    case = CASES[name]
    made, x = compiled(case, cpu), case.image()
    assert names_of(made) == ["conv_pointwise_depthwise"]
    (got,) = made.run([x])
    np.testing.assert_allclose(got, expected(case, x), rtol=2e-5, atol=2e-5)
    for threads in (2, 3, 7):
        np.testing.assert_array_equal(made.run([x], threads=threads)[0], got)


WIDTHS = ("three vectors", "no whole vectors", "seven vectors in pairs")


@pytest.mark.parametrize("cpu", CHIPS[:2])
@pytest.mark.parametrize("name", [*WIDTHS, "5x5", "columns fewer than a tile has pixels"])
def test_every_address_is_inside(name: str, cpu: str) -> None:
    case = CASES[name]
    made, x = compiled(case, cpu), case.image()
    np.testing.assert_array_equal(made.run([x], threads=2, checked=True)[0], made.run([x])[0])


@pytest.mark.parametrize("name", ["three vectors", "two vectors, stride 2", "one vector"])
def test_a_pair_is_the_two_bit_for_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    x = case.image()
    (together,) = compiled(case, "skylake-avx512").run([x])
    monkeypatch.setattr(pointwise_depthwise, "MAX_DEPTH", 0)
    alone = compiled(case, "skylake-avx512")
    assert names_of(alone) == ["conv_nhwc", "conv_depthwise_nhwc"]
    np.testing.assert_array_equal(together, alone.run([x])[0])


def test_nan_and_infinity_reach_their_windows_alone() -> None:
    case = CASES["three vectors"]
    x = case.image()
    x[0, 3, 4, 5], x[0, 10, 13, 2] = np.nan, np.inf
    (got,), want = compiled(case, "skylake-avx512").run([x]), expected(case, x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    there = np.isfinite(want)
    np.testing.assert_allclose(got[there], want[there], rtol=2e-5, atol=2e-5)


def test_an_intermediate_with_another_reader_is_written() -> None:
    case = CASES["three vectors"]
    body = case.body.replace("e = Relu(d)", "e = Add(d, c)")
    shared = Case(case.x, case.depth, case.filters)
    inputs = "float[n,h,w,24] x, float[144,24,1,1] w1, float[144] b1, float[144,1,3,3] w2, float[144] b2"
    made = Compiled(
        body, f"{inputs}, float zero, float six", "float[n,p,q,144] y", CHIPS[1], constants=shared.weights()
    )
    assert "conv_pointwise_depthwise" not in names_of(made)


@pytest.mark.parametrize("cpu", CHIPS)
def test_sums_of_another_type_are_not_made_together(cpu: str) -> None:
    case = CASES["three vectors"]
    weights = {name: v.astype(np.float64) if name in ("w2", "b2") else v for name, v in case.weights().items()}
    body = case.body.replace("d = Conv", "f = Cast<to = 11>(c) d = Conv").replace("(c, w2", "(f, w2")
    inputs = "float[n,h,w,24] x, float[144,24,1,1] w1, float[144] b1, double[144,1,3,3] w2, double[144] b2"
    made = Compiled(body, f"{inputs}, float zero, float six", "double[n,p,q,144] y", cpu, constants=weights)
    assert names_of(made) == ["conv_nhwc", "conv_depthwise_nhwc"]
    (got,) = made.run([case.image()])
    np.testing.assert_allclose(got, expected(case, case.image()), rtol=2e-5, atol=2e-5)


ALONE = {
    "a window of one element": Case((1, 30, 30), 16, 48, (1, 1), "strides = [1, 1]"),
    "rows too few for bands": Case((1, 3, 90), 16, 48),
    "rows that fill the cache": Case((1, 8, 3000), 16, 48),
}


@pytest.mark.parametrize("name", ALONE)
def test_the_fused_kernel_is_not_used_for_large_rows(name: str) -> None:
    sizes = ",".join(map(str, ALONE[name].x))
    assert "conv_pointwise_depthwise" not in names_of(compiled(ALONE[name], "skylake-avx512", sizes=sizes))


def test_tiles_are_chosen_for_few_bf16_terms() -> None:
    names = names_of(compiled(CASES["three vectors"], "sapphirerapids", sizes="1,14,14", precision="medium"))
    assert "conv_pointwise_depthwise" not in names and "conv_amx" in names
