"""Fuses and folds operators around matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.affine import (
    Affine,
    Array,
    Constant,
    batch_norm,
    constant,
    factor,
    lazy,
    normalized,
    per_channel,
    wide,
)
from sardonyx.optimize.pattern import Match, Var, attribute


def _swaps_matrix_axes(perm: list[int] | None) -> bool:
    return perm is None or perm == [1, 0]


class Matrix(Var):
    """Matches a value of rank 2, or of unknown rank."""

    def match(self, value: Value | None, m: Match) -> Iterator[Match]:
        if value is not None and value.rank in (2, None):
            yield from super().match(value, m)


@fusion
class FuseMatMulAdd(Fusion):
    """MatMul(a, b) + c  ->  Gemm(a, b, c), for matrices."""

    def pattern(self, op: Any, c: Any) -> Any:
        return op.MatMul(Matrix("a"), Matrix("b")) + c

    def rewrite(self, op: Builder, m: Match) -> Any:
        require(m.a.rank == 2 and m.b.rank == 2, "a rank is not known", m.a if m.a.rank is None else m.b)
        require(m.a.dtype is not None and m.a.dtype.is_float, "Gemm of integers is not faster", m.a)
        _require_addend(m.c, m.a.shape[0], m.b.shape[1])
        return op.Gemm(m.a, m.b, m.c)


@fusion
class FuseGemmAdd(Fusion):
    """Gemm(a, b) + c  ->  Gemm(a, b, c); two constant terms become one."""

    def pattern(self, op: Any, a: Any, b: Any, c: Any) -> Any:
        gemm = op.Gemm(a, b, op.optional("old"), name="gemm")
        return op.call("", ("Add", "Sum"), gemm, c)

    def rewrite(self, op: Builder, m: Match) -> Any:
        gemm = m.node("gemm")
        rows, cols = _gemm_sizes(gemm)
        _require_addend(m.c, rows, cols)
        if m.old is None:
            return op.Gemm(m.a, m.b, m.c, **{**gemm.attrs, "beta": 1.0})
        c, old = constant(m.c, "the term"), constant(m.old, "the term that it has already")
        beta = float(attribute(gemm, "beta"))
        shape = np.broadcast_shapes(c.shape, old.shape)
        total = lazy(c.dtype, shape, lambda: wide(c) + beta * wide(old), c.name)
        return op.Gemm(m.a, m.b, total, **{**gemm.attrs, "beta": 1.0})


@fusion
class FuseGemmTranspose(Fusion):
    """Gemm(Transpose(a), b)  ->  Gemm(a, b, transA), for either operand."""

    shares = True

    def pattern(self, op: Any, a: Any, b: Any) -> Any:
        turned_a, turned_b = (
            op.Transpose(a, name="transA", perm=_swaps_matrix_axes),
            op.Transpose(b, name="transB", perm=_swaps_matrix_axes),
        )
        pairs = ((turned_a, turned_b), (turned_a, b), (a, turned_b))
        return tuple(op.Gemm(*pair, op.optional("c"), name="gemm") for pair in pairs)

    def rewrite(self, op: Builder, m: Match) -> Any:
        gemm = m.node("gemm")
        attrs = dict(gemm.attrs)
        for name in ("transA", "transB"):
            if any(pattern.name == name for pattern in m.nodes):
                attrs[name] = 1 - int(attribute(gemm, name))
        return op.Gemm(m.a, m.b, m.c, **attrs)


@fusion
class FuseTransposeGemm(Fusion):
    """Transpose(Gemm(a, b))  ->  Gemm(b, a), with each operand transposed."""

    def pattern(self, op: Any, a: Any, b: Any) -> Any:
        return op.Transpose(op.Gemm(a, b, None, name="gemm"), perm=_swaps_matrix_axes)

    def rewrite(self, op: Builder, m: Match) -> Any:
        gemm = m.node("gemm")
        transposed = {"transA": 1 - int(attribute(gemm, "transB")), "transB": 1 - int(attribute(gemm, "transA"))}
        return op.Gemm(m.b, m.a, alpha=attribute(gemm, "alpha"), **transposed)


class FoldIntoGemm(Fusion):
    """affine(Gemm(a, b, c))  ->  Gemm(a, b', c'); also for a MatMul of matrices."""

    def affine(self, m: Match, cols: int) -> Affine:
        raise NotImplementedError

    def rewrite(self, op: Builder, m: Match) -> Any:
        gemm, weight = m.node("gemm"), constant(m.b, "the weight")
        require(m.a.rank == 2 and len(weight.shape) == 2, "the factors are not matrices", m.a)
        axis = 0 if gemm.onnx_op == "Gemm" and attribute(gemm, "transB") else 1
        cols = weight.shape[axis]
        affine = self.affine(m, cols)
        c = None
        if m.c is not None or affine.shift is not None:
            c = _new_term(gemm, weight, None if m.c is None else per_channel(m.c, cols, 2, 1), cols, affine)
        return op.Gemm(m.a, _scaled(weight, axis, affine), c, **{**gemm.attrs, "beta": 1.0})


@fusion
class FoldGemmBatchNorm(FoldIntoGemm):
    """BatchNormalization(Gemm(a, b, c))  ->  Gemm(a, b', c')."""

    def pattern(self, op: Any, a: Any, b: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        gemm = op.call("", ("Gemm", "MatMul"), a, b, op.optional("c"), name="gemm")
        return normalized(op, gemm, scale, bias, mean, var)

    def affine(self, m: Match, cols: int) -> Affine:
        return batch_norm(m, cols)


@fusion
class FoldGemmMul(FoldIntoGemm):
    """Gemm(a, b, c) * k  ->  Gemm(a, b * k, c * k)."""

    def pattern(self, op: Any, a: Any, b: Any) -> Any:
        gemm, k = op.Gemm(a, b, op.optional("c"), name="gemm"), Constant("k")
        return op.call("", ("Mul", "Div"), gemm, k, name="tail")

    def affine(self, m: Match, cols: int) -> Affine:
        return factor(per_channel(m.k, cols, 2, 1), m.node("tail").op_type)


@fusion
class FoldMatMulBatchNorm(Fusion):
    """BatchNormalization(Transpose(MatMul(a, b)))  ->  Transpose(MatMul(a, b') + c'), with channels last before the
    Transpose.
    """

    def pattern(self, op: Any, a: Any, b: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        transposed = op.Transpose(op.MatMul(a, b, name="product"), name="transpose")
        return normalized(op, transposed, scale, bias, mean, var)

    def rewrite(self, op: Builder, m: Match) -> Any:
        weight, perm = constant(m.b, "the weight"), m.node("transpose").attrs.get("perm")
        require(len(weight.shape) == 2, "the weight is not a matrix", m.b)
        require(perm is not None and perm[1] == len(perm) - 1, "the columns of the product are not the channels")
        cols = weight.shape[1]
        affine = batch_norm(m, cols)
        assert affine.shift is not None
        product = op.MatMul(m.a, _scaled(weight, 1, affine))
        shifted = op.Add(product, lazy(weight.dtype, (cols,), affine.shift, f"{weight.name}/bias"))
        product.type = shifted.type = m.node("product").output.type
        return op.Transpose(shifted, perm=perm)


def _require_addend(c: Value, rows: Any, cols: Any) -> None:
    """Refuse unless Gemm's addend broadcasts to the product without enlarging it."""
    require(c.shape is not None and len(c.shape) <= 2, "the addend is not known to have at most two axes", c)
    assert c.shape is not None
    wanted = (rows, cols)[2 - len(c.shape) :]
    fits = all(d == 1 or (d is not None and d == w) for d, w in zip(c.shape, wanted, strict=True))
    require(fits, "the term may be larger than the product", c)


def _gemm_sizes(gemm: Node) -> tuple[Any, Any]:
    a, b = gemm.inputs[0], gemm.inputs[1]
    require(a is not None and a.rank == 2 and b is not None and b.rank == 2, "the factors are not known matrices")
    assert a is not None and a.shape is not None and b is not None and b.shape is not None
    return a.shape[1 if attribute(gemm, "transA") else 0], b.shape[0 if attribute(gemm, "transB") else 1]


def _scaled(weight: Tensor, axis: int, affine: Affine) -> Tensor:
    scale = affine.scale
    assert scale is not None
    along = (1, -1) if axis == 1 else (-1, 1)
    return lazy(weight.dtype, weight.shape, lambda: wide(weight) * scale().reshape(along), weight.name)


def _new_term(gemm: Node, weight: Tensor, c: Any, cols: int, affine: Affine) -> Tensor:
    scale, shift, beta = affine.scale, affine.shift, float(gemm.attrs.get("beta", 1.0))
    assert scale is not None

    def compute() -> Array:
        total = np.zeros(cols, np.float32) if c is None else beta * c() * scale()
        return total if shift is None else total + shift()

    return lazy(weight.dtype, (cols,), compute, f"{weight.name}/bias")
