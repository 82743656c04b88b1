"""Operators whose output size depends on the data."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.scalar import trace
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder
from sardonyx.lower.groups import CountedGather, NonMaxSuppression, NonZero, Unique, View
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.rules.pointwise import as_type
from sardonyx.lower.sizes import Refused, minimum, product


def _as(low: Lowering, x: View, dtype: dtypes.DType) -> View:
    """The elements of a view in another type."""
    if x.dtype is dtype:
        return x
    out, body = low.temporary(dtype, x.shape), ExpressionBuilder()
    program = trace(as_type, (True,), source=x.dtype, to=dtype)
    low.loop(x.shape, body, [(body.apply(program, body.operand(x), dtype=dtype), out)])
    return out


def _flat(low: Lowering, x: View) -> View:
    return low.reshaped(x, (product(x.shape),))


@rule("NonZero")
def non_zero(low: Lowering, node: Node) -> None:
    x, count = low.view(low.input(0)), low.count()
    mask = _flat(low, _as(low, x, dtypes.bool_))
    out = low.make_counted(node.output, 1, mask.shape[0], count)
    low.groups.append(NonZero((node,), mask, x.shape, out, count))


@rule("Compress")
def compress(low: Lowering, node: Node) -> None:
    """The indices at which the condition holds, and a gather of those rows."""
    x, condition, count = low.view(low.input(0)), low.view(low.input(1)), low.count()
    if len(condition.shape) != 1 or condition.dtype is not dtypes.bool_:
        raise Refused("Compress: the condition is not a row of bools")
    axis = node.attrs.get("axis")
    if axis is None:
        x, axis = _flat(low, x), 0
    axis = axis_of(axis, len(x.shape))
    indices = low.temporary(dtypes.i64, condition.shape)
    low.groups.append(NonZero((node,), _flat(low, condition), condition.shape, indices, count))
    out = low.make_counted(node.output, axis, condition.shape[0], count)
    low.groups.append(CountedGather((node,), _three(low, x, axis), indices, count, out))


def _three(low: Lowering, x: View, axis: int) -> View:
    """A view with three axes: those before ``axis``, ``axis``, and those after it."""
    return low.reshaped(x, (product(x.shape[:axis]), x.shape[axis], product(x.shape[axis + 1 :])))


@rule("Unique")
def unique(low: Lowering, node: Node) -> None:
    x, axis, count = low.view(low.input(0)), node.attrs.get("axis"), low.count()
    if axis is None:
        x, axis = _flat(low, x), 0
    axis = axis_of(axis, len(x.shape))
    whole = _three(low, x, axis)
    rows = low.reshaped(views.permuted(whole, (1, 0, 2)), (x.shape[axis], product((whole.shape[0], whole.shape[2]))))
    length = x.shape[axis]
    alive = [None if v.is_dead else v for v in node.outputs]
    values, where, which, often = (alive[i] if i < len(alive) else None for i in range(4))
    first, counts = (_counted(low, v, length, count) for v in (where, often))
    inverse = low.temporary(dtypes.i64, (length,)) if which is None else low.make(which)
    is_sorted = bool(node.attrs.get("sorted", 1))
    low.groups.append(Unique((node,), rows, first, _flat(low, inverse), counts, count, is_sorted))
    if values is not None:
        low.groups.append(CountedGather((node,), whole, first, count, low.make_counted(values, axis, length, count)))


def _counted(low: Lowering, value: Value | None, length: Known, count: View) -> View:
    if value is None:
        return low.temporary(dtypes.i64, (length,))
    return low.make_counted(value, 0, length, count)


@rule("NonMaxSuppression")
def non_max_suppression(low: Lowering, node: Node) -> None:
    boxes, scores, count = low.view(low.input(0)), low.view(low.input(1)), low.count()
    if len(boxes.shape) != 3 or len(scores.shape) != 3:
        raise Refused("NonMaxSuppression: boxes and scores do not have three axes")
    low.require("NonMaxSuppression: boxes are not four numbers", boxes.shape[2], 4)
    low.require("NonMaxSuppression: boxes and scores differ", scores.shape[0], boxes.shape[0])
    low.require("NonMaxSuppression: boxes and scores differ", scores.shape[2], boxes.shape[1])
    limit: Known = 0
    if (given := node.input(2)) is not None:
        limit = next(iter(low.sizes(given)), 0)
        low.require_least("NonMaxSuppression: the limit is negative", limit, 0)
    most = minimum(limit, boxes.shape[1])
    overlap, given = _number(low, node.input(3)), node.input(3)
    if given is not None and given.is_scalar_const and not 0 <= given.item() <= 1:
        raise Refused("NonMaxSuppression: iou_threshold is out of range")
    out = low.make_counted(node.output, 0, product((*scores.shape[:2], most)), count)
    low.groups.append(
        NonMaxSuppression(
            (node,), boxes, scores, low.scalar(0.0, dtypes.f32) if overlap is None else overlap,
            _number(low, node.input(4)), most, bool(node.attrs.get("center_point_box", 0)), out, count,
        )
    )  # fmt: skip


def _number(low: Lowering, value: Value | None) -> View | None:
    """An optional operand of one element; one that is empty counts as absent."""
    if value is None or low.shape(value) == (0,):
        return None
    low.require(f"{low.node.op_type}: an operand is not one number", product(low.shape(value)), 1)
    return low.reshaped(low.view(value), ())
