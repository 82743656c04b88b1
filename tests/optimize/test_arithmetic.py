"""Pointwise expressions and conversions that say the same with fewer operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.optimize.fusions.casts import represents_all
from tests.optimize.rewritten import Case, check

PASSES = (
    "RemoveNoOps", "FuseCasts", "CancelQuantization", "FuseNotWhere", "FuseDivMul", "FuseMinMax", "FuseClips",
    "FoldClipRelu", "FoldShapeOfPointwise", "MultiplyByReciprocal", "RemoveNoOps",
)  # fmt: skip
X = {"x": (4, 5)}
BYTES = np.arange(-20, 20, dtype=np.int8)
INTS = np.arange(-20, 20, dtype=np.int64)
FLAGS = np.array([True, False, True])


def f32(*values: float) -> Any:
    return np.array(values[0] if len(values) == 1 else values, np.float32)


FUSED = {
    "one over": Case("a = Div(k, x) y = Mul(a, z)", ["Div"], {**X, "z": (4, 5)}, {"k": f32(1)}),
    "reciprocal": Case("a = Reciprocal(x) y = Mul(z, a)", ["Div"], {**X, "z": (2, 4, 5)}),
    "where not": Case(
        "a = Not(c) y = Where(a, u, v)", ["Where"], {"c": FLAGS, "u": (2, 3), "v": (3,)}
    ),
    "relu and clip": Case("a = Relu(x) y = Clip(a, l, h)", ["Clip"], X, {"l": f32(-1), "h": f32(0.5)}),
    "clip and relu": Case("a = Clip(x, l, h) y = Relu(a)", ["Clip"], X, {"l": f32(-1), "h": f32(0.5)}),
    "clips": Case(
        "a = Clip(x, l, h) y = Clip(a, m, n)", ["Clip"], X, {"l": f32(-1), "h": f32(0.5), "m": f32(-0.5), "n": f32(1)}
    ),
    "clips that do not meet": Case(
        "a = Clip(x, l, h) y = Clip(a, m)", ["Clip"], X, {"l": f32(-1), "h": f32(0.5), "m": f32(0.75)}
    ),
    "clip from zero": Case("y = Clip(x, l)", ["Relu"], X, {"l": f32(0)}),
    "relu twice": Case("a = Relu(x) y = Relu(a)", ["Relu"], X),
    "relu of a sigmoid": Case("a = Sigmoid(x) y = Relu(a)", ["Sigmoid"], X),
    "minimum of a maximum": Case("a = Max(l, x) y = Min(a, h)", ["Clip"], X, {"l": f32(-1), "h": f32(0.5)}),
    "maximum of a minimum of integers": Case(
        "a = Min(x, h) y = Max(l, a)", ["Clip"], {"x": INTS}, {"l": np.array(-3), "h": np.array(5)}, outputs="int64[] y"
    ),
    "casts through a wider type": Case("a = Cast<to=11>(x) y = Cast<to=10>(a)", ["Cast"], X, outputs="float16[] y"),
    "casts through wider integers": Case(
        "a = Cast<to=7>(x) y = Cast<to=1>(a)", ["Cast"], {"x": BYTES}, outputs="float[] y"
    ),
    "cast there and back": Case("a = Cast<to=11>(x) b = Cast<to=1>(a) y = Relu(b)", ["Relu"], X),
    "quantized again": Case(
        "a = DequantizeLinear(x, s, z) y = QuantizeLinear(a, t, z)", [], {"x": BYTES},
        {"s": f32(0.1), "t": f32(0.1), "z": np.array(3, np.int8)}, outputs="int8[] y",
    ),
    "shape of a pointwise result": Case("a = Sigmoid(x) y = Shape(a)", ["Shape"], X, outputs="int64[] y"),
    "divisor that is a power of two": Case("y = Div(x, k)", ["Mul"], X, {"k": f32(8)}),
    "negated twice": Case("a = Neg(x) b = Neg(a) y = Exp(b)", ["Exp"], X),
    "slice of everything": Case(
        "a = Slice(x, s, e) y = Exp(a)", ["Exp"], X, {"s": np.array([0, 0]), "e": np.array([2**31 - 1, 2**63 - 1])}
    ),
    "tile by ones": Case("a = Tile(x, s) y = Exp(a)", ["Exp"], X, {"s": np.array([1, 1])}, symbols={"x": "[a, b]"}),
    "reshape to its own free shape": Case(
        "a = Reshape(x, s) y = Exp(a)", ["Exp"], X, {"s": np.array([0, 5])}, symbols={"x": "[rows, 5]"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FUSED.values(), ids=FUSED.keys())
def test_fused(case: Case) -> None:
    check(case, *PASSES)


KEPT = {
    "quotient of integers": Case(
        "a = Div(k, x) y = Mul(a, x)", ["Div", "Mul"], {"x": INTS[21:]}, {"k": np.array(1)}, outputs="int64[] y",
        reason="integers",
    ),
    "bounds that cross": Case(
        "a = Clip(x, l, h) y = Relu(a)", ["Clip", "Relu"], X, {"l": f32(2), "h": f32(1)}, reason="cross"
    ),
    "bounds from outside": Case(
        "a = Relu(x) y = Clip(a, z)", ["Relu", "Clip"], {**X, "z": f32(1)}, reason="scalar constant"
    ),
    "bounds of a row": Case(
        "a = Max(x, l) y = Min(a, h)", ["Max", "Min"], X, {"l": (5,), "h": f32(1)}, reason="scalar constant"
    ),
    "clip from below zero": Case("y = Clip(x, l)", ["Clip"], X, {"l": f32(-1)}),
    "casts through a narrower type": Case(
        "a = Cast<to=10>(x) y = Cast<to=1>(a)", ["Cast", "Cast"], X, reason="f16 does not hold every f32"
    ),
    "casts through a float that rounds integers": Case(
        "a = Cast<to=1>(x) y = Cast<to=11>(a)", ["Cast", "Cast"], {"x": INTS + 2**40}, outputs="double[] y",
        reason="f32 does not hold every i64",
    ),
    "quantized with another scale": Case(
        "a = DequantizeLinear(x, s, z) y = QuantizeLinear(a, t, z)", ["DequantizeLinear", "QuantizeLinear"],
        {"x": BYTES}, {"s": f32(0.1), "t": f32(0.2), "z": np.array(3, np.int8)}, outputs="int8[] y",
        reason="scales differ",
    ),
    "quantized with another zero": Case(
        "a = DequantizeLinear(x, s, z) y = QuantizeLinear(a, s, w)", ["DequantizeLinear", "QuantizeLinear"],
        {"x": BYTES}, {"s": f32(0.1), "z": np.array(3, np.int8), "w": np.array(4, np.int8)}, outputs="int8[] y",
        reason="zero points differ",
    ),
    "divisor that is no power of two": Case("y = Div(x, k)", ["Div"], X, {"k": f32(8, 4, 2, 1, 3)}),
    "slice backwards": Case(
        "y = Slice(x, s, e, a, t)", ["Slice"], X,
        {"s": np.array([-1]), "e": np.array([-(2**63)]), "a": np.array([0]), "t": np.array([-1])},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT.keys())
def test_near_misses_are_reported_with_a_reason(case: Case) -> None:
    check(case, *PASSES)


NAMES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "float16", "float32", "float64")
SIMPLE = [dtypes.of_numpy(np.dtype(name)) for name in NAMES]


@pytest.mark.parametrize("given", SIMPLE, ids=str)
@pytest.mark.parametrize("middle", SIMPLE, ids=str)
def test_a_type_holds_another_when_every_element_survives_the_way_there_and_back(given: DType, middle: DType) -> None:
    if given.is_float:
        info = np.finfo(given.numpy)
        samples = np.array([info.max, info.tiny, info.smallest_subnormal, 1 + info.eps, -0.5], given.numpy)
    elif given.kind == "bool":
        samples = np.array([True, False])
    else:
        info = np.iinfo(given.numpy)
        samples = np.array([info.min, info.max, info.max - 1, 1, 0], given.numpy)
    with np.errstate(all="ignore"):
        back = samples.astype(middle.numpy).astype(given.numpy)
        kept = np.array_equal(back, samples) and np.array_equal(samples.astype(middle.numpy) < 0, samples < 0)
    assert represents_all(middle, given) == kept
