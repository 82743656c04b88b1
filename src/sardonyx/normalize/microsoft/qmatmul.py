"""Matrix products of 8-bit matrices: an integer product, scaled by one factor."""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_input
from sardonyx.normalize.microsoft.attention import project_and_attend
from sardonyx.normalize.microsoft.body import MICROSOFT, like, scalar, sum_given, swap_last
from sardonyx.normalize.registry import expand


def integer_product(op: Builder, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Any:
    """(A - a_zero)(B - b_zero) as f32; zero points are scalars, or vectors for the columns of B."""
    return op.Cast(op.MatMulInteger(a, b, a_zero, b_zero), to=dtypes.f32.onnx)


@expand("MatMulIntegerToFloat", domain=MICROSOFT)
def mat_mul_integer_to_float(op: Builder, node: Node) -> Any:
    a_scale, b_scale, bias = required_input(node, 2), required_input(node, 3), node.input(6)
    acc = integer_product(op, required_input(node, 0), required_input(node, 1), node.input(4), node.input(5))
    factor = op.Cast(op.Mul(a_scale, b_scale), to=dtypes.f32.onnx)
    return sum_given(op, op.CastLike(op.Mul(acc, factor), a_scale), bias)


@expand("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_mat_mul(op: Builder, node: Node) -> Any:
    """A quantized to u8 by its range, then the integer product."""
    a, a_scale, a_zero = op.DynamicQuantizeLinear(required_input(node, 0), outputs=3)
    acc = integer_product(op, a, required_input(node, 1), a_zero, node.input(3))
    return sum_given(op, op.Mul(acc, op.Mul(a_scale, required_input(node, 2))), node.input(4))


@expand("QGemm", domain=MICROSOFT)
def q_gemm(op: Builder, node: Node) -> Any:
    """alpha A'B' + C, where C is an i32 in units of the product; quantized if an output scale is given."""
    a = swap_last(op, required_input(node, 0)) if node.attrs.get("transA", 0) else required_input(node, 0)
    b = swap_last(op, required_input(node, 3)) if node.attrs.get("transB", 0) else required_input(node, 3)
    acc = op.MatMulInteger(a, b, node.input(2), node.input(5))
    c, y_scale, y_zero = node.input(6), node.input(7), node.input(8)
    wide = op.Cast(sum_given(op, acc, c), to=dtypes.f32.onnx)
    factor = op.Mul(required_input(node, 1), required_input(node, 4))
    alpha = node.attrs.get("alpha", 1.0)
    if alpha != 1.0:
        factor = op.Mul(factor, op.const(alpha))
    if y_scale is None:
        return op.Mul(wide, factor)
    units = op.Mul(wide, op.Div(factor, scalar(op, y_scale)))
    return op.QuantizeLinear(units, op.const(1.0), like(op, 0.0, a) if y_zero is None else scalar(op, y_zero))


@expand("QAttention", domain=MICROSOFT)
def q_attention(op: Builder, node: Node) -> tuple[Value, ...]:
    """Attention with an 8-bit input projection."""
    x, weight, bias, x_scale, w_scale = (required_input(node, i) for i in range(5))
    acc = integer_product(op, x, weight, node.input(6), node.input(7))
    factor = op.Cast(op.Mul(x_scale, w_scale), to=dtypes.f32.onnx)
    projected = op.Add(op.CastLike(op.Mul(acc, factor), bias), bias)
    return project_and_attend(op, node, x, projected, 5, 8, None)
