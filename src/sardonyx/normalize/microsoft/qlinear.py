"""QLinear operators: dequantize, compute in f32, quantize.

Quantizing follows onnxruntime, which divides by the scale, rounds half to even, adds the zero point and saturates;
average pooling adds the zero point before it rounds, which matters because ties are frequent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import InvalidGraph
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_attribute, required_input
from sardonyx.normalize.microsoft.body import (
    MICROSOFT,
    channels_first,
    channels_last,
    like,
    scalar,
    shared_attributes,
)
from sardonyx.normalize.microsoft.conv import NHWC, POOL
from sardonyx.normalize.registry import expand


def real(op: Builder, node: Node, i: int) -> Any:
    """Dequantize inputs i, i+1 and i+2: a quantized tensor, its scale and its zero point."""
    zero = node.input(i + 2)
    return op.DequantizeLinear(
        required_input(node, i), scalar(op, required_input(node, i + 1)), None if zero is None else scalar(op, zero)
    )


def quantized(op: Builder, node: Node, x: Value, i: int) -> Any:
    """Quantize ``x`` with the scale at input i and the zero point at i+1, to the type of the node's data."""
    zero = node.input(i + 1)
    return op.QuantizeLinear(
        x,
        scalar(op, required_input(node, i)),
        like(op, 0.0, required_input(node, 0)) if zero is None else scalar(op, zero),
    )


@expand("QLinearAdd", domain=MICROSOFT)
def q_linear_add(op: Builder, node: Node) -> Any:
    return quantized(op, node, op.Add(real(op, node, 0), real(op, node, 3)), 6)


@expand("QLinearMul", domain=MICROSOFT)
def q_linear_mul(op: Builder, node: Node) -> Any:
    return quantized(op, node, op.Mul(real(op, node, 0), real(op, node, 3)), 6)


@expand("QLinearSigmoid", domain=MICROSOFT)
def q_linear_sigmoid(op: Builder, node: Node) -> Any:
    return quantized(op, node, op.Sigmoid(real(op, node, 0)), 3)


@expand("QLinearLeakyRelu", domain=MICROSOFT)
def q_linear_leaky_relu(op: Builder, node: Node) -> Any:
    return quantized(op, node, op.LeakyRelu(real(op, node, 0), alpha=node.attrs.get("alpha", 0.01)), 3)


@expand("QLinearReduceMean", domain=MICROSOFT)
def q_linear_reduce_mean(op: Builder, node: Node) -> Any:
    mean = op.ReduceMean(
        real(op, node, 0), op.const(required_attribute(node, "axes")), keepdims=required_attribute(node, "keepdims")
    )
    return quantized(op, node, mean, 3)


@expand("QLinearWhere", domain=MICROSOFT)
def q_linear_where(op: Builder, node: Node) -> Any:
    chosen = op.Where(required_input(node, 0), real(op, node, 1), real(op, node, 4))
    return op.QuantizeLinear(chosen, scalar(op, required_input(node, 7)), scalar(op, required_input(node, 8)))


@expand("QLinearConcat", domain=MICROSOFT)
def q_linear_concat(op: Builder, node: Node) -> Any:
    """Inputs are the output's scale and zero point, then tensor, scale and zero point of each operand."""
    if len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        raise InvalidGraph("inputs must be 2 and then 3 for each part", where=node.label, got=len(node.inputs))
    parts = [real(op, node, i) for i in range(2, len(node.inputs), 3)]
    joined = op.Concat(*parts, axis=required_attribute(node, "axis"))
    return op.QuantizeLinear(joined, scalar(op, required_input(node, 0)), scalar(op, required_input(node, 1)))


@expand("QLinearSoftmax", domain=MICROSOFT)
def q_linear_softmax(op: Builder, node: Node) -> Any:
    """Softmax along ``axis``, or, as before opset 13, over all axes from it on.

    onnxruntime multiplies by floor(1 / scale); for the usual scale of 1/256 that equals division by the scale.
    """
    x = required_input(node, 0)
    wide = real(op, node, 0)
    if required_attribute(node, "opset") < 13:
        axis = node.attrs.get("axis", 1)
        rank = x.rank
        if rank is not None and axis % rank == rank - 1:
            y = op.Softmax(wide, axis=-1)
        else:
            y = op.Reshape(op.Softmax(op.Flatten(wide, axis=axis), axis=-1), op.Shape(x))
    else:
        y = op.Softmax(wide, axis=node.attrs.get("axis", -1))
    step = op.Reciprocal(op.Floor(op.Reciprocal(scalar(op, required_input(node, 3)))))
    zero = node.input(4)
    return op.QuantizeLinear(y, step, like(op, 0.0, x) if zero is None else scalar(op, zero))


def average_pool(op: Builder, node: Node, last: bool) -> Any:
    x, rank = required_input(node, 0), required_input(node, 0).rank
    wide = real(op, node, 0)
    pooled = op.AveragePool(
        channels_first(op, wide, rank) if last else wide, **shared_attributes(node, *POOL, "count_include_pad")
    )
    y = rounded(op, node, pooled, x)
    return channels_last(op, y, rank) if last else y


def rounded(op: Builder, node: Node, y: Value, x: Value) -> Any:
    """round(y / scale + zero point), saturated."""
    if x.dtype is None:
        return quantized(op, node, y, 3)
    limits = np.iinfo(x.dtype.numpy)
    units = op.Div(y, scalar(op, required_input(node, 3)))
    zero = node.input(4)
    if zero is not None:
        units = op.Add(units, op.Cast(scalar(op, zero), to=dtypes.f32.onnx))
    return op.Cast(op.Clip(op.Round(units), op.const(float(limits.min)), op.const(float(limits.max))), to=x.dtype.onnx)


@expand("QLinearAveragePool", domain=MICROSOFT)
def q_linear_average_pool(op: Builder, node: Node) -> Any:
    return average_pool(op, node, bool(node.attrs.get("channels_last", 0)))


@expand("QLinearAveragePool", domain=NHWC)
def nhwc_q_linear_average_pool(op: Builder, node: Node) -> Any:
    return average_pool(op, node, True)


@expand("QLinearGlobalAveragePool", domain=MICROSOFT)
def q_linear_global_average_pool(op: Builder, node: Node) -> Any:
    """The mean over all axes but batch and channel."""
    last, rank, wide = node.attrs.get("channels_last", 0), required_input(node, 0).rank, real(op, node, 0)
    mean = op.GlobalAveragePool(channels_first(op, wide, rank) if last else wide)
    return quantized(op, node, channels_last(op, mean, rank) if last else mean, 3)
