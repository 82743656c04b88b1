"""QuantizeLinear and DequantizeLinear for types that ai.onnx added later, and integer sums and products."""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node
from sardonyx.normalize.edits import required_attribute, required_input
from sardonyx.normalize.microsoft.body import MICROSOFT, scalar
from sardonyx.normalize.registry import expand


def linear(op: Builder, node: Node, op_type: str) -> Any:
    """Per tensor without ``axis``, per axis with it."""
    axis, scale, zero = node.attrs.get("axis"), required_input(node, 1), node.input(2)
    if axis is None:
        scale, zero = scalar(op, scale), None if zero is None else scalar(op, zero)
    return op.call("", op_type, required_input(node, 0), scale, zero, axis=axis)


@expand("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(op: Builder, node: Node) -> Any:
    return linear(op, node, "QuantizeLinear")


@expand("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(op: Builder, node: Node) -> Any:
    return linear(op, node, "DequantizeLinear")


@expand("ReduceSumInteger", domain=MICROSOFT)
def reduce_sum_integer(op: Builder, node: Node) -> Any:
    x = required_input(node, 0)
    signed = x.dtype is None or x.dtype.kind == "int"
    wide = op.Cast(x, to=dtypes.i32.onnx if signed else dtypes.of_name("u32").onnx)
    return op.ReduceSum(wide, op.const(required_attribute(node, "axes")), keepdims=required_attribute(node, "keepdims"))


@expand("MulInteger", domain=MICROSOFT)
def mul_integer(op: Builder, node: Node) -> Any:
    """(A - a_zero)(B - b_zero) in i32, element by element."""

    def offset(i: int) -> Any:
        wide, zero = op.Cast(required_input(node, i), to=dtypes.i32.onnx), node.input(i + 1)
        return wide if zero is None else op.Sub(wide, op.Cast(scalar(op, zero), to=dtypes.i32.onnx))

    return op.Mul(offset(0), offset(2))


@expand("MatMulInteger16", domain=MICROSOFT)
def mat_mul_integer16(op: Builder, node: Node) -> Any:
    """A product of 16-bit matrices, accumulated in 32 bits."""
    a, b = required_input(node, 0), required_input(node, 1)
    unsigned = a.dtype is not None and b.dtype is not None and a.dtype.kind == b.dtype.kind == "uint"
    to = dtypes.of_name("u32").onnx if unsigned else dtypes.i32.onnx
    return op.MatMul(op.Cast(a, to=to), op.Cast(b, to=to))
