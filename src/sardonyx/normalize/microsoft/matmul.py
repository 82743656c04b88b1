"""Matrix products with fused transposes, factor and activation."""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_attribute, required_input
from sardonyx.normalize.microsoft.activation import activate
from sardonyx.normalize.microsoft.body import MICROSOFT, like, permute, shared_attributes, swap_last
from sardonyx.normalize.registry import expand


def operand(op: Builder, x: Value, *, batch: int, transpose: int) -> Any:
    """An operand with its matrix in the last two axes; with ``batch``, its first axis is the matrix's first."""
    r = x.rank
    if r == 1 or not (batch or transpose):
        return x
    if not batch or r == 2:
        return swap_last(op, x) if transpose else x
    if transpose:
        return permute(op, x, "i...j->...ji", None if r is None else [*range(1, r), 0])
    return permute(op, x, "i...j->...ij", None if r is None else [*range(1, r - 1), 0, r - 1])


def product(op: Builder, node: Node) -> Any:
    flags = node.attrs.get
    a = operand(op, required_input(node, 0), batch=flags("transBatchA", 0), transpose=flags("transA", 0))
    b = operand(op, required_input(node, 1), batch=flags("transBatchB", 0), transpose=flags("transB", 0))
    y, alpha = op.MatMul(a, b), flags("alpha", 1.0)
    return y if alpha == 1.0 else op.Mul(y, like(op, alpha, required_input(node, 0)))


@expand("FusedMatMul", domain=MICROSOFT)
def fused_mat_mul(op: Builder, node: Node) -> Any:
    """alpha * A' B', where ' optionally swaps the last two axes, and optionally takes the first axis as a matrix
    axis.
    """
    return product(op, node)


@expand("TransposeMatMul", domain=MICROSOFT)
def transpose_mat_mul(op: Builder, node: Node) -> Any:
    return product(op, node)


@expand("FusedMatMulActivation", domain=MICROSOFT)
def fused_mat_mul_activation(op: Builder, node: Node) -> Any:
    kind = required_attribute(node, "activation")
    if kind in ("Softmax", "LogSoftmax", "Hardmax"):
        return op.call("", kind, product(op, node), axis=node.attrs.get("activation_axis", -1))
    return activate(op, node, product(op, node), kind, parameters(node))


def parameters(node: Node) -> dict[str, float]:
    """The activation's parameters, for operators with an attribute for each."""
    names = ("alpha", "beta", "gamma")
    return {p: node.attrs[f"activation_{p}"] for p in names if f"activation_{p}" in node.attrs}


@expand("FusedGemm", domain=MICROSOFT)
def fused_gemm(op: Builder, node: Node) -> Any:
    gemm = op.Gemm(
        required_input(node, 0),
        required_input(node, 1),
        node.input(2),
        **shared_attributes(node, "alpha", "beta", "transA", "transB"),
    )
    return activate(op, node, gemm, node.attrs.get("activation"), parameters(node))


@expand("GemmFloat8", domain=MICROSOFT)
def gemm_float8(op: Builder, node: Node) -> Any:
    """activation(alpha * scaleA A' * scaleB B' + beta C) / scaleY, computed in f32, in the type ``dtype`` names."""
    factors = [node.input(i) for i in (3, 4, 5)]
    a, b = (op.Cast(required_input(node, i), to=dtypes.f32.onnx) for i in (0, 1))
    a, b = (x if s is None else op.Mul(x, s) for x, s in zip((a, b), factors[:2], strict=True))
    c = node.input(2)
    beta = node.attrs.get("beta", 0.0)
    bias = None if c is None or beta == 0.0 else op.Cast(c, to=dtypes.f32.onnx)
    y = op.Gemm(a, b, bias, beta=beta, **shared_attributes(node, "alpha", "transA", "transB"))
    kind = node.attrs.get("activation", "NONE")
    if kind == "GELU":
        y = op.Gelu(y)
    elif kind not in ("NONE", ""):
        y = activate(op, node, y, kind.capitalize(), {})
    if factors[2] is not None:
        y = op.Div(y, factors[2])
    return op.Cast(y, to=node.attrs.get("dtype", dtypes.f32.onnx))
