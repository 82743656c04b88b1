"""Reductions, ArgMax, global pooling, Hardmax and Softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr, trace
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle, work_type
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.rules.pointwise import as_type, square
from sardonyx.lower.sizes import Refused

INFINITY = float("inf")


class Rows:
    """A loop over a tensor whose reduced axes come last. Without axes to reduce, an axis of one element is added."""

    def __init__(self, low: Lowering, x: View, axes: Sequence[int]) -> None:
        self.low, self.rank = low, len(x.shape)
        self.axes = sorted({axis_of(a, self.rank or 1) for a in axes})[: self.rank]
        self.kept = [i for i in range(self.rank) if i not in self.axes]
        self.body = ExpressionBuilder()
        self.x = self.full(x)
        self.extents = self.x.shape
        self.reduced = max(len(self.axes), 1)

    def full(self, view: View) -> View:
        """A view of the tensor's shape, permuted to the axes of this loop."""
        view = views.permuted(view, [*self.kept, *self.axes])
        return view if self.axes else views.inserted(view, self.rank)

    def row(self, view: View, *, keepdims: bool) -> View:
        """The view of a result per row, without the reduced axes."""
        for axis in reversed(self.axes) if keepdims else ():
            view = views.selected(view, axis)
        return view

    def operand(self, view: View) -> Handle:
        """An operand that broadcasts to the tensor."""
        shape: list[Known] = [0] * self.rank
        for axis, size in zip([*self.kept, *self.axes], self.extents, strict=False):
            shape[axis] = size
        return self.body.operand(self.full(self.low.fit(view, shape)))

    def store(self, *stores: tuple[Handle, View]) -> None:
        self.low.loop(self.extents, self.body, stores, reduced=self.reduced)


def apply(
    body: ExpressionBuilder, fn: Callable[..., Expr], *args: Handle, dtype: DType, **attributes: object
) -> Handle:
    return body.apply(trace(fn, (True,) * len(args), **attributes), *args, dtype=dtype)


def divide(e: Emitter, x: Expr, y: Expr) -> Expr:
    return x / y


def minus(e: Emitter, x: Expr, y: Expr) -> Expr:
    return x - y


def times(e: Emitter, x: Expr, y: Expr) -> Expr:
    return x * y


def plus(e: Emitter, x: Expr, y: Expr) -> Expr:
    return x + y


def mean(body: ExpressionBuilder, x: Handle, work: DType) -> Handle:
    return apply(body, divide, body.reduce("sum", x, work), body.count(work), dtype=work)


# Reductions of a row's elements, which are in the type ``work``


def _mean(body: ExpressionBuilder, x: Handle, work: DType, out: DType) -> Handle:
    return apply(body, divide, body.reduce("sum", x, work), body.count(work), dtype=out if out.is_float else work)


def _l1(body: ExpressionBuilder, x: Handle, work: DType, out: DType) -> Handle:
    return body.reduce("sum", apply(body, Emitter.abs, x, dtype=work), out)


def _sum_square(body: ExpressionBuilder, x: Handle, work: DType, out: DType) -> Handle:
    return body.reduce("sum", apply(body, square, x, dtype=work), out)


def _l2(body: ExpressionBuilder, x: Handle, work: DType, out: DType) -> Handle:
    return apply(body, Emitter.sqrt, _sum_square(body, x, work, work), dtype=out if out.is_float else work)


def _log_sum(body: ExpressionBuilder, x: Handle, work: DType, out: DType) -> Handle:
    return apply(body, Emitter.log, body.reduce("sum", x, work), dtype=out)


def finite_or_zero(e: Emitter, x: Expr) -> Expr:
    return e.where(e.abs(x) < INFINITY, x, 0)


def exp_minus(e: Emitter, x: Expr, y: Expr) -> Expr:
    return e.exp(x - y)


def _log_plus(e: Emitter, x: Expr, y: Expr) -> Expr:
    return e.log(x) + y


def _log_sum_exp(body: ExpressionBuilder, x: Handle, work: DType, out: DType) -> Handle:
    shift = apply(body, finite_or_zero, body.reduce("max", x, work), dtype=work)
    total = body.reduce("sum", apply(body, exp_minus, x, shift, dtype=work), work)
    return apply(body, _log_plus, total, shift, dtype=out)


def _reduce_by(kind: str) -> Callable[[ExpressionBuilder, Handle, DType, DType], Handle]:
    return lambda body, x, work, out: body.reduce(kind, x, out)


_REDUCTIONS = {
    "ReduceSum": _reduce_by("sum"), "ReduceProd": _reduce_by("prod"),
    "ReduceMax": _reduce_by("max"), "ReduceMin": _reduce_by("min"),
    "ReduceMean": _mean, "ReduceL1": _l1, "ReduceL2": _l2, "ReduceSumSquare": _sum_square, "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
}  # fmt: skip


@rule(*_REDUCTIONS)
def reduction(low: Lowering, node: Node) -> None:
    given, x = node.input(1), low.view(low.input(0))
    axes = low.numbers(given) if given is not None else []
    if not axes and not node.attrs.get("noop_with_empty_axes", 0):
        axes = list(range(len(x.shape)))
    rows, out = Rows(low, x, axes), low.make(node.output)
    body, work = rows.body, _work(node.op_type, x.dtype)
    value = body.operand(rows.x)
    if x.dtype is not work and not x.dtype.is_float:
        value = apply(body, as_type, value, dtype=work, source=x.dtype, to=work)
    result = _REDUCTIONS[node.op_type](body, value, work, x.dtype if work.is_float == x.dtype.is_float else work)
    if not x.dtype.is_float and work is not x.dtype:
        result = apply(body, as_type, result, dtype=x.dtype, source=work, to=x.dtype)
    rows.store((result, rows.row(out, keepdims=bool(node.attrs.get("keepdims", 1)))))


def _work(name: str, dtype: DType) -> DType:
    """The type that a reduction computes in."""
    if dtype.is_float:
        return work_type(dtype)
    if name in ("ReduceLogSum", "ReduceLogSumExp") or (
        dtype is dtypes.bool_ and name not in ("ReduceMax", "ReduceMin")
    ):
        raise Refused(f"{name} of {dtype} is not compiled")
    if name == "ReduceMean":
        return dtypes.of_name("u64") if dtype.kind == "uint" else dtypes.i64
    return dtypes.f64 if name == "ReduceL2" else dtype


def _require_elements(low: Lowering, what: str, shape: Sequence[Known], axis: int) -> None:
    """Check that the axis has elements, or that nothing asks for one because another axis is empty."""
    size: Known | None = shape[axis]
    if not dims.at_least(shape[axis], 1):
        others = dims.product(n for i, n in enumerate(shape) if i != axis)
        spare = None if others is None else dims.sub(1, others)
        size = None if spare is None else dims.maximum(shape[axis], spare)
    low.require_least(what, shape[axis] if size is None else size, 1)


@rule("ArgMax", "ArgMin")
def arg(low: Lowering, node: Node) -> None:
    x = low.view(low.input(0))
    axis = axis_of(node.attrs.get("axis", 0), len(x.shape))
    _require_elements(low, f"{node.op_type}: the axis is empty", x.shape, axis)
    rows, out = Rows(low, x, [axis]), low.make(node.output)
    is_last = bool(node.attrs.get("select_last_index", 0))
    found = rows.body.reduce(node.op_type.lower(), rows.body.operand(rows.x), dtypes.i64, is_last=is_last)
    rows.store((found, rows.row(out, keepdims=bool(node.attrs.get("keepdims", 1)))))


@rule("GlobalAveragePool", "GlobalMaxPool")
def global_pool(low: Lowering, node: Node) -> None:
    pool_whole(low, low.view(low.input(0)), low.make(node.output), is_mean=node.op_type == "GlobalAveragePool")


def pool_whole(low: Lowering, x: View, out: View, *, is_mean: bool, counted: View | None = None) -> None:
    """Pooling with a window that is the whole image: a reduction. ``counted`` is the number of elements that a mean
    counts, if that includes padding.
    """
    rows, work = Rows(low, x, range(2, len(x.shape))), work_type(x.dtype)
    value, pool = rows.body.operand(rows.x), _mean if is_mean else _reduce_by("max")
    if counted is None:
        result = pool(rows.body, value, work, x.dtype)
    else:
        result = apply(rows.body, divide, rows.body.reduce("sum", value, work), rows.operand(counted), dtype=x.dtype)
    rows.store((result, rows.row(out, keepdims=True)))


def _equals(e: Emitter, x: Expr, y: Expr, *, to: DType) -> Expr:
    return e.cast(e.eq(x, y), to)


@rule("Hardmax")
def hardmax(low: Lowering, node: Node) -> None:
    """1 at the index of the first maximum, else 0."""
    x = low.view(low.input(0))
    axis = axis_of(node.attrs.get("axis", -1), len(x.shape))
    rows, out = Rows(low, x, [axis]), low.make(node.output)
    first = rows.body.reduce("argmax", rows.body.operand(rows.x), dtypes.i64)
    index = rows.body.operand(low.fit(low.indices(x.shape[axis]), rows.extents))
    result = apply(rows.body, _equals, index, first, dtype=out.dtype, to=out.dtype)
    rows.store((result, rows.full(out)))


@rule("Softmax", "LogSoftmax")
def softmax(low: Lowering, node: Node) -> None:
    """exp(x - max) is multiplied with the reciprocal of the sum, which is at least 1.

    In a narrow type, every step of ONNX's function body rounds: the exponentials, their sum, the quotient.
    """
    x = low.view(low.input(0))
    rows, out = Rows(low, x, [node.attrs.get("axis", -1)]), low.make(node.output)
    body, work = rows.body, work_type(x.dtype)
    value = body.operand(rows.x)
    shifted = apply(body, minus, value, body.reduce("max", value, work, is_loose=True), dtype=work)
    exps = apply(body, Emitter.exp, shifted, dtype=work)  # NaN in a row reaches the result through their sum
    if node.op_type == "Softmax" and work is not out.dtype:
        exps = apply(body, _rounded, exps, dtype=out.dtype, to=out.dtype)
        total = apply(body, _rounded, body.reduce("sum", exps, work), dtype=out.dtype, to=out.dtype)
        result = apply(body, divide, exps, total, dtype=out.dtype)
    elif node.op_type == "Softmax":
        inverse = apply(body, _reciprocal, body.reduce("sum", exps, work), dtype=work)
        result = apply(body, times, exps, inverse, dtype=out.dtype)
    else:
        total = body.reduce("sum", exps, work)
        result = apply(body, minus, shifted, apply(body, Emitter.log, total, dtype=work), dtype=out.dtype)
    rows.store((result, rows.full(out)))


def _reciprocal(e: Emitter, x: Expr) -> Expr:
    return 1 / x


def _rounded(e: Emitter, x: Expr, *, to: DType) -> Expr:
    return e.cast(x, to)
