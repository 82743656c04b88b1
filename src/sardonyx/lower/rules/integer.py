"""Exact products of 8-bit integers with zero points, in i32.

The sum over k of (a - p)(b - q) is  S - p (B - k q) - q A,  where S, A and B are the sums of a b, of a and of b. S is a
contraction of the integers as they are. B is a constant if b is, and A is needed only if q is not 0. The right operand
is always signed: 128 is subtracted from unsigned numbers and from their zero point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle
from sardonyx.lower.groups import Contraction, View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.pointwise import as_type
from sardonyx.lower.rules.quantize import requantized
from sardonyx.lower.rules.reduce import apply, divide, minus, times
from sardonyx.lower.sizes import Refused, sub
from sardonyx.records import Record, replace

Array = np.ndarray[Any, Any]
BYTES = (dtypes.i8, dtypes.u8)


class Term(Record):
    """Integers in the correction for zero points, which broadcast to the product's box."""

    view: View
    known: Tensor | None = None
    """Their content if it is a constant."""
    is_zero: bool = False

    @staticmethod
    def of(low: Lowering, tensor: Tensor, *, is_zero: bool = False) -> Term:
        return Term(low.constant(tensor), tensor, is_zero)

    @staticmethod
    def rows(low: Lowering, view: View) -> Term:
        """The sums along the last axis of a view, in i32."""
        content = constant_of(view)
        if content is None:
            return Term(summed(low, view))
        return Term.of(
            low, Tensor(dtypes.i32, content.shape[:-1], lambda: np.asarray(content.numpy().sum(-1, dtype=np.int32)))
        )


def signed(e: Emitter, x: Expr) -> Expr:
    return e.cast(e.cast(x, dtypes.i32) - 128, dtypes.i8)


def widened(e: Emitter, x: Expr, *, subtracted: int = 0) -> Expr:
    wide = e.cast(x, dtypes.i32)
    return wide - subtracted if subtracted else wide


def minus_product(e: Emitter, total: Expr, x: Expr, y: Expr) -> Expr:
    return total - e.cast(x, dtypes.i32) * y


def as_signed(low: Lowering, view: View) -> View:
    """Unsigned bytes minus 128, as signed bytes."""
    tensor = view.storage.tensor
    if tensor is not None:
        where = None if tensor.origin is None else ("signed", tensor.origin)

        def flip() -> Array:
            return np.asarray((tensor.peek() ^ np.uint8(128)).view(np.int8))

        moved = Tensor(dtypes.i8, tensor.shape, flip, origin=where, view=flip)
        made = low.constant(moved)
        return View(made.storage, view.shape, view.strides, view.offset)
    body, out = ExpressionBuilder(), low.temporary(dtypes.i8, view.shape)
    low.loop(view.shape, body, [(apply(body, signed, body.operand(view), dtype=dtypes.i8), out)])
    return out


def summed(low: Lowering, view: View) -> View:
    """The sums along the last axis, in i32."""
    out = low.temporary(dtypes.i32, view.shape[:-1])
    body = ExpressionBuilder()
    total = body.reduce("sum", apply(body, widened, body.operand(view), dtype=dtypes.i32), dtypes.i32)
    low.loop(view.shape, body, [(total, out)], reduced=1)
    return out


def constant_of(view: View) -> Tensor | None:
    """The elements of a view of a constant as a tensor; None if it is no constant."""
    tensor, sizes = view.storage.tensor, (*view.shape, *view.strides, view.offset)
    if tensor is None or not all(isinstance(d, int) for d in sizes):
        return None
    if views.is_whole(view):
        return tensor if tensor.shape == view.shape else _tensor(view.dtype, view, lambda: tensor.numpy().reshape(-1))
    return _tensor(view.dtype, view, lambda: tensor.numpy().reshape(-1))


def _tensor(dtype: DType, view: View, flat: Callable[[], Array]) -> Tensor:
    shape = tuple(int(d) for d in view.shape)

    def fetch() -> Array:
        content = flat()
        steps = [int(s) * content.itemsize for s in view.strides]
        return np.array(np.lib.stride_tricks.as_strided(content[int(view.offset) :], shape, steps), order="C")

    return Tensor(dtype, shape, fetch)


def combined(dtype: DType, fn: Callable[..., Array], *tensors: Tensor) -> Tensor:
    """A constant computed from others by broadcasting, when it is first needed."""
    shape = np.broadcast_shapes(*(t.shape for t in tensors))

    def fetch() -> Array:
        with np.errstate(all="ignore"):
            found = np.asarray(fn(*(t.numpy() for t in tensors)), dtype.numpy)
        return np.array(np.broadcast_to(found, shape), order="C")

    return Tensor(dtype, shape, fetch)


class Product:
    """The epilogue of an exact integer product: corrections for zero points, requantization."""

    def __init__(self, low: Lowering, shape: tuple[Known, ...], summed: DType = dtypes.i32) -> None:
        """``summed`` is the type of the sums: i32, or a float type that represents them exactly."""
        self.low, self.box = low, shape
        self.body = ExpressionBuilder([summed])
        self.result: Handle = ~0
        if summed is not dtypes.i32:
            self.result = apply(self.body, widened, ~0, dtype=dtypes.i32)

    def subtract(self, amount: Term, factor: Term) -> None:
        """Subtract the product of two terms."""
        if amount.is_zero or factor.is_zero:
            return
        body, (x, y) = self.body, (amount, factor)
        if x.known is not None and y.known is not None:
            both = combined(dtypes.i32, np.multiply, x.known, y.known)
            taken = body.operand(self.low.fit(self.low.constant(both), self.box))
            self.result = apply(body, minus, self.result, taken, dtype=dtypes.i32)
            return
        args = [body.operand(self.low.fit(t.view, self.box)) for t in (x, y)]
        self.result = apply(body, minus_product, self.result, *args, dtype=dtypes.i32)

    def requantize(self, scales: list[View], zero: View, to: DType) -> None:
        """acc * (a b / y) + zero, rounded and saturated; the scales a, b, y are f32 and broadcast to the box."""
        known = [constant_of(v) for v in scales]
        a, b, y = known
        body = self.body
        if a is not None and b is not None and y is not None:
            ratio = combined(dtypes.f32, lambda a, b, y: a * b / y, a, b, y)
            factor = body.operand(self.low.fit(self.low.constant(ratio), self.box))
        else:
            left, right, under = (body.operand(self.low.fit(v, self.box)) for v in scales)
            factor = apply(body, times, left, right, dtype=dtypes.f32)
            factor = apply(body, divide, factor, under, dtype=dtypes.f32)
        real = apply(body, _times_real, self.result, factor, dtype=dtypes.f32)
        self.result = apply(body, requantized, real, body.operand(self.low.fit(zero, self.box)), dtype=to, to=to)


def _times_real(e: Emitter, x: Expr, factor: Expr) -> Expr:
    return e.cast(x, dtypes.f32) * factor


class Matrices(Record):
    """The operands and the result of a matrix product, vectors as matrices of one row or column."""

    a: View
    b: View
    out: View
    is_row: bool
    is_column: bool

    @staticmethod
    def of(low: Lowering, a: View, b: View, out: View) -> Matrices:
        if not a.shape or not b.shape or a.dtype not in BYTES or b.dtype not in BYTES:
            raise Refused(f"{low.node.op_type} of {a.dtype} times {b.dtype} is not compiled")
        is_row, is_column = len(a.shape) == 1, len(b.shape) == 1
        if is_row:
            a, out = views.inserted(a, 0), views.inserted(out, len(out.shape) - (not is_column))
        if is_column:
            b, out = views.inserted(b, 1), views.inserted(out, len(out.shape))
        low.require(f"{low.node.op_type}: the shapes of the operands do not fit", b.shape[-2], a.shape[-1])
        if isinstance(b.shape[-2], int):  # constant weights are packed ahead for a depth that is known
            a = replace(a, shape=(*a.shape[:-1], b.shape[-2]))
        return Matrices(a, b, out, is_row, is_column)

    def quantization_parameter(self, low: Lowering, view: View, *, rows: bool) -> View:
        """A scale or zero point, which is a scalar, a vector along rows or columns, or of full rank."""
        if view.shape in ((), (1,)):
            return low.reshaped(view, ())
        if len(view.shape) == 1:
            if rows:
                low.require("a vector of scales or zero points does not fit", view.shape[0], self.a.shape[-2])
                return views.inserted(view, 1)
            low.require("a vector of scales or zero points does not fit", view.shape[0], self.b.shape[-1])
            return view
        if self.is_row or self.is_column:
            raise Refused("a matrix of scales for a vector is not compiled")
        return view


def product(low: Lowering, m: Matrices, a_zero: View | None, b_zero: View | None) -> tuple[Product, View]:
    """The epilogue with the corrections for zero points, and the signed right operand."""
    b, depth, offset = m.b, m.a.shape[-1], 0
    if b.dtype is dtypes.u8:
        b, offset = as_signed(low, b), 128
    p = Product(low, m.out.shape)
    q = zero_point(low, b_zero, offset)
    left = zero_point(low, a_zero, 0)
    if not left.is_zero:
        last = len(b.shape) - 1
        sums = Term.rows(low, views.permuted(b, [*range(last - 1), last, last - 1]))
        p.subtract(left, minus_zero_points(low, _along_rows(low, sums), q, depth))
    if not q.is_zero:
        p.subtract(q, Term(views.inserted(summed(low, m.a), len(m.a.shape) - 1)))
    return p, b


def zero_point(low: Lowering, view: View | None, subtracted: int) -> Term:
    """A zero point minus a number, in i32."""
    if view is None:
        return Term.of(low, Tensor.of(np.asarray(-subtracted, np.int32)), is_zero=not subtracted)
    known = constant_of(view)
    if known is not None:
        found = known.numpy().astype(np.int32) - np.int32(subtracted)
        return Term.of(low, Tensor.of(found), is_zero=not found.any())
    if not subtracted:
        return Term(view)
    body, out = ExpressionBuilder(), low.temporary(dtypes.i32, view.shape)
    shape = view.shape or (1,)
    value = apply(body, widened, body.operand(low.fit(view, shape)), dtype=dtypes.i32, subtracted=subtracted)
    low.loop(shape, body, [(value, low.fit(out, shape))])
    return Term(out)


def _along_rows(low: Lowering, term: Term) -> Term:
    """One number per column, as a matrix of one row."""
    known, axis = term.known, len(term.view.shape) - 1
    if known is None:
        return Term(views.inserted(term.view, axis))
    shape = (*known.shape[:-1], 1, known.shape[-1])
    return Term.of(low, Tensor(known.dtype, shape, lambda: known.numpy().reshape(shape)))


def minus_zero_points(low: Lowering, sums: Term, zero: Term, depth: Known) -> Term:
    """Sums of ``depth`` numbers minus a zero point each: sums - depth * zero."""
    if zero.is_zero:
        return sums
    known, other = sums.known, zero.known
    if known is not None and other is not None and isinstance(depth, int):
        return Term.of(low, combined(dtypes.i32, lambda s, q: s - np.int32(depth) * q, known, other))
    box = max((v.shape for v in (sums.view, zero.view)), key=len)
    body, out = ExpressionBuilder(), low.temporary(dtypes.i32, box)
    args = [body.operand(low.fit(v, box)) for v in (sums.view, zero.view, low.number(depth))]
    low.loop(box, body, [(apply(body, minus_product, args[0], args[2], args[1], dtype=dtypes.i32), out)])
    return Term(out)


def finish(low: Lowering, m: Matrices, b: View, p: Product) -> None:
    *batch, rows, n = m.out.shape
    depth = m.a.shape[-1]
    a, b = low.fit(m.a, (*batch, rows, depth)), low.fit(b, (*batch, depth, n))
    expression = p.body.expression([p.result])
    low.groups.append(
        Contraction((low.node,), expression, tuple(p.body.views), (m.out,), tuple(batch), rows, n, depth, a, b)
    )  # fmt: skip


def _optional(low: Lowering, v: Value | None) -> View | None:
    return None if v is None else low.view(v)


def _quantization_parameter(low: Lowering, m: Matrices, v: Value | None, *, rows: bool) -> View | None:
    view = _optional(low, v)
    return None if view is None else m.quantization_parameter(low, view, rows=rows)


@rule("MatMulInteger")
def matmul_integer(low: Lowering, node: Node) -> None:
    m = Matrices.of(low, low.view(low.input(0)), low.view(low.input(1)), low.make(node.output))
    if most := node.attrs.get("max_terms"):
        low.require_least("MatMulInteger: sums may not fit i32", sub(most, m.a.shape[-1]), 0)
    p, b = product(
        low,
        m,
        _quantization_parameter(low, m, node.input(2), rows=True),
        _quantization_parameter(low, m, node.input(3), rows=False),
    )
    finish(low, m, b, p)


@rule("QLinearMatMul")
def qlinear_matmul(low: Lowering, node: Node) -> None:
    m = Matrices.of(low, low.view(low.input(0)), low.view(low.input(3)), low.make(node.output))
    places: list[Callable[[int], View]] = [
        lambda i: m.quantization_parameter(low, low.view(low.input(i)), rows=True),
        lambda i: m.quantization_parameter(low, low.view(low.input(i)), rows=False),
    ]
    rows, columns = places
    p, b = product(low, m, rows(2), columns(5))
    p.requantize([as_real(low, v) for v in (rows(1), columns(4), rows(6))], rows(7), m.out.dtype)
    finish(low, m, b, p)


def as_real(low: Lowering, view: View) -> View:
    """A scale in f32."""
    if view.dtype is dtypes.f32:
        return view
    if not view.dtype.is_float or view.dtype.bits > 32:
        raise Refused(f"a scale of type {view.dtype} is not compiled")
    known = constant_of(view)
    if known is not None:
        return low.constant(combined(dtypes.f32, lambda x: x, known))
    return _cast(low, view, dtypes.f32, view.dtype)


def _cast(low: Lowering, view: View, to: DType, source: DType) -> View:
    out, body = low.temporary(to, view.shape), ExpressionBuilder()
    shape = view.shape or (1,)
    value = apply(body, as_type, body.operand(low.fit(view, shape)), dtype=to, source=source, to=to)
    low.loop(shape, body, [(value, low.fit(out, shape))])
    return out
