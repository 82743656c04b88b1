"""Fuses operators between DequantizeLinear and QuantizeLinear into onnxruntime's quantized operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.affine import Constant
from sardonyx.optimize.fusions.checks import number, result
from sardonyx.optimize.pattern import Match, attribute
from sardonyx.optimize.spelling import MICROSOFT
from sardonyx.optimize.spelling.quantized_values import (
    KERNELS,
    Produced,
    Quantized,
    bias_in_units,
    dequantized,
    quantized,
    require_product,
    require_same,
)


def conv(op: Builder, node: Node, y: Quantized) -> Any:
    x, w = dequantized(node.input(0)), dequantized(node.input(1), axis=0)
    require_product(x, w, y)
    zeros = w.zeros()
    require((zeros == zeros.reshape(-1)[0]).all(), "the zero point differs between channels", w.zero)
    bias = bias_in_units(op, node.input(2), x, w, 0)
    return op.QLinearConv(*x.inputs(op), *w.inputs(op), *y.steps(op), bias, **node.attrs)


def matmul(op: Builder, node: Node, y: Quantized) -> Any:
    a, b = dequantized(node.input(0)), dequantized(node.input(1), axis=-1)
    require(b.is_per_tensor or b.q.rank == 2, "only a matrix has a scale for each column", b.q)
    require_product(a, b, y)
    return op.QLinearMatMul(*a.inputs(op), *b.inputs(op), *y.steps(op))


def gemm(op: Builder, node: Node, y: Quantized | None) -> Any:
    columns = 0 if attribute(node, "transB") else 1
    a, b = dequantized(node.input(0)), dequantized(node.input(1), axis=columns)
    require_product(a, b, y)
    require(attribute(node, "alpha") == 1, "there is a factor", node.outputs[0])
    require(node.input(2) is None or attribute(node, "beta") == 1, "the bias has a factor", node.input(2))
    bias = bias_in_units(op, node.input(2), a, b, columns)
    attrs = {"alpha": 1.0, "transA": attribute(node, "transA"), "transB": attribute(node, "transB")}
    return op.call(MICROSOFT, "QGemm", *a.inputs(op), *b.inputs(op), bias, *(y.steps(op) if y else ()), **attrs)


def binary(op: Builder, node: Node, y: Quantized) -> Any:
    a, b = (dequantized(v) for v in node.inputs)
    require_same(a, b, y)
    return op.call(MICROSOFT, f"QLinear{node.op_type}", *a.inputs(op), *b.inputs(op), *y.steps(op))


def unary(op: Builder, op_type: str, x: Value | None, y: Quantized, **attrs: Any) -> Any:
    given = dequantized(x)
    require_same(given, y)
    return op.call(MICROSOFT, op_type, *given.inputs(op), *y.steps(op), **attrs)


def sigmoid(op: Builder, node: Node, y: Quantized) -> Any:
    return unary(op, "QLinearSigmoid", node.input(0), y)


def leaky_relu(op: Builder, node: Node, y: Quantized) -> Any:
    return unary(op, "QLinearLeakyRelu", node.input(0), y, alpha=float(attribute(node, "alpha")))


def relu(op: Builder, node: Node, y: Quantized) -> Any:
    return unary(op, "QLinearLeakyRelu", node.input(0), y, alpha=0.0)


def softmax(op: Builder, node: Node, y: Quantized) -> Any:
    """onnxruntime multiplies by floor(1 / scale); for results up to 1 the error is less than one step."""
    require(y.scale.item() <= 1, "the scale exceeds every result", y.scale)
    return unary(op, "QLinearSoftmax", node.input(0), y, axis=attribute(node, "axis"), opset=13)


def average_pool(op: Builder, node: Node, y: Quantized) -> Any:
    attrs = dict(node.attrs)
    dilations = attrs.pop("dilations", None)
    require(not isinstance(dilations, list) or set(dilations) <= {1}, "the window is dilated", node.outputs[0])
    return unary(op, "QLinearAveragePool", node.input(0), y, **attrs)


def global_average_pool(op: Builder, node: Node, y: Quantized) -> Any:
    return unary(op, "QLinearGlobalAveragePool", node.input(0), y, channels_last=0)


def concat(op: Builder, node: Node, y: Quantized) -> Any:
    parts = [dequantized(v) for v in node.inputs]
    require_same(y, *parts)
    inputs = [v for part in parts for v in part.inputs(op)]
    return op.call(MICROSOFT, "QLinearConcat", *y.steps(op), *inputs, axis=node.attrs["axis"])


def where(op: Builder, node: Node, y: Quantized) -> Any:
    a, b = (dequantized(v) for v in node.inputs[1:])
    require_same(a, b, y)
    return op.call(MICROSOFT, "QLinearWhere", node.inputs[0], *a.inputs(op), *b.inputs(op), *y.steps(op))


GROUPS: dict[str, Callable[[Builder, Node, Quantized], Any]] = {
    "Add": binary,
    "AveragePool": average_pool,
    "Concat": concat,
    "Conv": conv,
    "Gemm": gemm,
    "GlobalAveragePool": global_average_pool,
    "LeakyRelu": leaky_relu,
    "MatMul": matmul,
    "Mul": binary,
    "Relu": relu,
    "Sigmoid": sigmoid,
    "Softmax": softmax,
    "Where": where,
}


@fusion
class SpellQLinear(Fusion):
    """QuantizeLinear(f(DequantizeLinear(a), ...))  ->  f on integers: QLinearConv, QLinearAdd, QGemm ..."""

    def pattern(self, op: Any, s: Any) -> Any:
        return op.QuantizeLinear(Produced(*GROUPS, name="f"), s, op.optional("z"), name="quantize")

    def rewrite(self, op: Builder, m: Match) -> Any:
        f = m.node("f")
        return GROUPS[f.op_type](op, f, quantized(m.node("quantize")))


@fusion
class SpellQLinearAveragePool(Fusion):
    """cast(clip(round(AveragePool(DequantizeLinear(x)) / s + z)))  ->  QLinearAveragePool(x), which rounds so."""

    def pattern(self, op: Any, x: Any, low: Any, high: Any) -> Any:
        pooled, s, r, z = Produced("AveragePool", name="pool"), Constant("s"), Constant("r"), Constant("z")
        units = op.either(pooled / s, pooled * r)
        return op.Cast(op.Clip(op.Round(op.either(units + z, units)), low, high), name="cast")

    def rewrite(self, op: Builder, m: Match) -> Any:
        y = result(m)
        require(y.dtype in KERNELS, "onnxruntime has no kernel for the integers", y)
        assert y.dtype is not None
        limits = np.iinfo(y.dtype.numpy)
        clipped = number(m.low, "the least value") == limits.min and number(m.high, "the largest") == limits.max
        require(clipped, "the result is not clipped to its type", y)
        scale = number(m.s, "the scale") if "s" in m.values else 1 / number(m.r, "the factor")
        zero = number(m.z, "the zero point") if "z" in m.values else 0.0
        require(zero.is_integer() and limits.min <= zero <= limits.max, "the zero point is no integer", y)
        steps = (op.const(np.array(v, t)) for v, t in ((scale, np.float32), (zero, y.dtype.numpy)))
        return average_pool(op, m.node("pool"), Quantized(y, *steps))


@fusion
class SpellIntegerGemm(Fusion):
    """Gemm(DequantizeLinear(a), DequantizeLinear(b), c)  ->  QGemm with a float result."""

    shares = True

    def pattern(self, op: Any, a: Any, b: Any, s: Any, t: Any) -> Any:
        left = op.DequantizeLinear(a, s, op.optional("z"))
        right = op.DequantizeLinear(b, t, op.optional("y"))
        return op.Gemm(left, right, op.optional("c"), name="gemm")

    def rewrite(self, op: Builder, m: Match) -> Any:
        return gemm(op, m.node("gemm"), None)


@fusion
class FoldQuantizedClip(Fusion):
    """QuantizeLinear(Relu(x)), QuantizeLinear(Clip(x))  ->  QuantizeLinear(x), if its own range clips at least as
    much.
    """

    def pattern(self, op: Any, x: Any, s: Any) -> Any:
        clipped = op.either(op.Relu(x), op.Clip(x, op.optional("low"), op.optional("high")))
        return op.QuantizeLinear(clipped, s, op.optional("z"), name="quantize")

    def rewrite(self, op: Builder, m: Match) -> Any:
        node = m.node("quantize")
        y = quantized(node)
        limits, zero, scale = np.iinfo(y.dtype.numpy), int(y.zeros().reshape(())), y.scale.item()
        bounds = (m.values.get("low"), m.values.get("high")) if "low" in m.values else (0.0, None)
        low, high = (number(v, "a bound") if isinstance(v, Value) else v for v in bounds)
        require(low is None or low <= (limits.min - zero) * scale, "it clips more than the integers do", m.x)
        require(high is None or high >= (limits.max - zero) * scale, "it clips more than the integers do", m.x)
        require(m.x.dtype is dtypes.f32, "the reals are not known to be f32", m.x)
        return op.QuantizeLinear(m.x, m.s, m.z, **node.attrs)
