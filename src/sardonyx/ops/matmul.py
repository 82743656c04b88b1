"""Matrix products: MatMul, Gemm, Einsum, their integer and quantized forms, and Det."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx import errors
from sardonyx.ops.limits import check_elements
from sardonyx.ops.precision import Array, exact_type, narrow, requantize, require, widen, wrap_int32
from sardonyx.ops.registry import op

_CERTAINLY_SMALL = 1 << 26
"""Below this product of the operands' sizes the result needs no check: it is no larger, unless the depth is 0."""


def _is_float(x: Array) -> bool:
    return x.dtype.kind not in "iu"


def product(what: str, a: Array, b: Array) -> Array:
    """numpy's matmul, with our error messages."""
    try:
        if a.size * b.size > _CERTAINLY_SMALL or not a.size:
            batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            rows, columns = a.shape[-2:-1], b.shape[-1:] if b.ndim > 1 else ()
            check_elements(math.prod(batch + rows + columns), a.dtype, f"output of {what}")
        return np.asarray(np.matmul(a, b))
    except ValueError:
        raise errors.InvalidArgument(f"{what}: the shapes of the operands do not fit", got=(a.shape, b.shape)) from None


@op("MatMul")
def matmul(a: Array, b: Array) -> Array:
    if _is_float(a):
        return narrow(product("MatMul", widen(a), widen(b)), a.dtype)
    return product("MatMul", a, b)


@op("Gemm")
def gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """alpha A' B' + beta C, where ' optionally transposes."""
    require(a.ndim == 2 and b.ndim == 2, "Gemm: A and B must be matrices", got=(a.shape, b.shape))
    dtype = a.dtype
    if _is_float(a):
        a, b = widen(a), widen(b)
    elif alpha != 1 or (c is not None and beta != 1):
        a, b = a.astype(np.float64), b.astype(np.float64)
    y = product("Gemm", a.T if transA else a, b.T if transB else b)
    if alpha != 1:
        y *= y.dtype.type(alpha)
    if c is not None and beta != 0:
        fits = c.ndim <= 2 and all(n in (1, m) for n, m in zip(c.shape[::-1], y.shape[::-1], strict=False))
        require(fits, "Gemm: C does not broadcast to the product", expected=y.shape, got=c.shape)
        y += c.astype(y.dtype, copy=False) if beta == 1 else c.astype(y.dtype) * y.dtype.type(beta)
    return narrow(y, dtype)


def _along(v: Array, axis: int, x: Array) -> Array:
    """A scale or zero point (a scalar, one per row (axis -2) or column (-1), or of full rank), broadcastable to
    ``x``.
    """
    if v.ndim != 1 or v.size == 1:
        return v.reshape(()) if v.size == 1 else v
    size = x.shape[axis] if x.ndim > 1 else 1
    require(v.size == size, "a vector of scales or zero points must match its axis", expected=size, got=v.size)
    return v[:, None] if axis == -2 else v


def _accumulate(what: str, a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Array:
    """Exact products of 8-bit integers minus their zero points, as floats with integer values."""
    dtype = exact_type(a.shape[-1] if a.ndim else 1) if not _is_float(a) else np.dtype(np.float32)
    left, right = a.astype(dtype), b.astype(dtype)
    if a_zero is not None:
        left = left - _along(a_zero, -2, a).astype(dtype)
    if b_zero is not None:
        right = right - _along(b_zero, -1, b).astype(dtype)
    return product(what, left, right)


@op("MatMulInteger")
def matmul_integer(
    a: Array,
    b: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    *,
    max_terms: int = 0,
) -> Array:
    """``max_terms`` is ours: sums of more products may not fit i32, which is an error then."""
    sums = _accumulate("MatMulInteger", a, b, a_zero_point, b_zero_point)
    if max_terms and a.shape[-1] > max_terms:
        largest = np.abs(sums).max(initial=0)
        require(largest < 1 << 31, "MatMulInteger: a sum does not fit i32", expected="less than 2^31", got=largest)
    return wrap_int32(sums)


@op("QLinearMatMul")
def qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    acc = _accumulate("QLinearMatMul", a, b, a_zero_point, b_zero_point)
    left, right = _along(widen(a_scale), -2, a), _along(widen(b_scale), -1, b)
    return requantize(acc, np.asarray(left * right / _along(widen(y_scale), -2, a)), _along(y_zero_point, -2, a))


def _einsum_size(equation: str, inputs: Sequence[Array]) -> int:
    """Elements of the result of a valid equation; numpy's intermediates are no larger."""
    left, arrow, right = equation.partition("->")
    sizes: dict[str, int] = {}
    broadcast = 1
    for term, x in zip(left.split(","), inputs, strict=False):
        before, dots, after = term.partition("...")
        sizes.update(zip(before, x.shape, strict=False))
        sizes.update(zip(reversed(after), reversed(x.shape), strict=False))
        if dots:
            broadcast = max(broadcast, math.prod(x.shape[len(before) : x.ndim - len(after)]))
    labels = right if arrow else "".join(c for c in left if left.count(c) == 1)
    return math.prod(sizes.get(c, 1) for c in labels) * broadcast


@op("Einsum")
def einsum(*inputs: Array, equation: str) -> Array:
    terms = [widen(x) if _is_float(x) else x for x in inputs]
    equation = equation.replace(" ", "")
    check_elements(_einsum_size(equation, inputs), terms[0].dtype, "the result of Einsum")
    try:
        y = np.einsum(equation, *terms, optimize=len(terms) > 1)
    except ValueError as error:
        shapes = [x.shape for x in inputs]
        raise errors.InvalidArgument(f"Einsum {equation!r}: {error}", got=shapes) from None
    return narrow(y, inputs[0].dtype)


@op("Det")
def det(x: Array) -> Array:
    require(x.ndim >= 2 and x.shape[-1] == x.shape[-2], "Det: the last two axes must be square", got=x.shape)
    return narrow(np.linalg.det(widen(x)), x.dtype)
