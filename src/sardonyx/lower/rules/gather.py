"""Gather operators, and ReverseSequence as a gather."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx import dtypes
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr, trace
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder
from sardonyx.lower.groups import Gather, GatherElements, View
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.sizes import Refused, add, product, sub


@rule("Gather")
def gather(low: Lowering, node: Node) -> None:
    data, indices = low.view(low.input(0)), low.input(1)
    axis = axis_of(node.attrs.get("axis", 0), len(data.shape))
    if low.dtype(indices) not in (dtypes.i32, dtypes.i64):
        raise Refused("indices must be i32 or i64")
    if indices.is_scalar_const:
        index, size = indices.item(), data.shape[axis]
        low.require_least("Gather: the index is out of range", size, index + 1 if index >= 0 else -index)
        row = views.selected(data, axis, index if index >= 0 else add(size, index))
        for _ in low.shape(indices):
            row = views.inserted(row, axis)
        low.alias(node.output, row)
        return
    low.groups.append(Gather((node,), data, low.view(indices), axis, low.make(node.output)))


OUTSIDE = 1 << 62
"""An index beyond any axis, for which the kernel's check fails."""


def _flat(e: Emitter, *operands: Expr) -> Expr:
    """From indices of several axes, followed by their sizes, the row-major index; OUTSIDE if one is out of range."""
    count = len(operands) // 2
    flat: Expr | None = None
    inside: Expr | None = None
    for index, size in zip(operands[:count], operands[count:], strict=True):
        index = e.cast(index, dtypes.i64)
        fits = (index >= -size) & (index < size)
        index = e.where(index < 0, index + size, index)
        flat = index if flat is None else flat * size + index
        inside = fits if inside is None else inside & fits
    assert flat is not None and inside is not None
    return e.where(inside, flat, OUTSIDE)


def flat_index(low: Lowering, columns: Sequence[View], sizes: Sequence[Known], box: Sequence[Known]) -> View:
    """The row-major index of several index columns over axes of these sizes, for every element of a box."""
    if len(columns) == 1:
        return low.fit(columns[0], box)
    index, body = low.temporary(dtypes.i64, box), ExpressionBuilder()
    args = [body.operand(low.fit(v, box)) for v in (*columns, *map(low.number, sizes))]
    low.loop(box, body, [(body.apply(trace(_flat, (True,) * len(args)), *args, dtype=dtypes.i64), index)])
    return index


def columns_of(low: Lowering, indices: View, count: Known, data: View, batch: int = 0) -> list[View]:
    """The columns along the last axis of ``indices``: each indexes one axis of the data."""
    if not isinstance(count, int) or not 0 < count <= len(data.shape) - batch:
        raise Refused(f"{low.node.op_type} of unknown depth is not compiled")
    return [views.selected(indices, len(indices.shape) - 1, i) for i in range(count)]


@rule("GatherND")
def gather_nd(low: Lowering, node: Node) -> None:
    """A Gather along the batch axes and the indexed axes merged into one."""
    data, indices, batch = low.view(low.input(0)), low.view(low.input(1)), node.attrs.get("batch_dims", 0)
    if not indices.shape or not 0 <= batch < len(indices.shape):
        raise Refused("GatherND: the indices have too few axes")
    columns = columns_of(low, indices, indices.shape[-1], data, batch)
    box = indices.shape[:-1]
    for axis in reversed(range(batch)):
        low.require("GatherND: the batch axes differ", indices.shape[axis], data.shape[axis])
        columns.insert(0, along(low, axis, data.shape[axis], len(box)))
    sizes = data.shape[: len(columns)]
    index = flat_index(low, columns, sizes, box)
    rows = low.reshaped(data, (product(sizes), *data.shape[len(columns) :]))
    low.groups.append(Gather((node,), rows, index, 0, low.make(node.output)))


def along(low: Lowering, axis: int, size: Known, rank: int) -> View:
    """0, 1, ... along ``axis`` of a box of ``rank`` axes."""
    view = low.indices(size)
    for _ in range(axis + 1, rank):
        view = views.inserted(view, len(view.shape))
    return view


@rule("GatherElements")
def gather_elements(low: Lowering, node: Node) -> None:
    data, indices = low.view(low.input(0)), low.view(low.input(1))
    axis = axis_of(node.attrs.get("axis", 0), len(data.shape))
    require_within(low, data, indices, axis)
    low.groups.append(GatherElements((node,), data, indices, axis, low.make(node.output)))


def require_within(low: Lowering, data: View, indices: View, axis: int) -> None:
    """Require that indices are no longer than the data along all other axes."""
    if len(data.shape) != len(indices.shape):
        raise Refused(f"{low.node.op_type}: data and indices differ in rank")
    for i, (size, extent) in enumerate(zip(indices.shape, data.shape, strict=True)):
        if i != axis and size != extent:
            low.require_least(f"{low.node.op_type}: indices reach past the data", sub(extent, size), 0)


def _reversed(e: Emitter, step: Expr, length: Expr, steps: Expr) -> Expr:
    index = e.where(step < length, length - 1 - step, step)
    return e.where((length >= 0) & (length <= steps), index, OUTSIDE)


@rule("ReverseSequence")
def reverse_sequence(low: Lowering, node: Node) -> None:
    """A GatherElements along time, with indices that are broadcast along all axes but batch and time."""
    x, lengths, rank = low.view(low.input(0)), low.view(low.input(1)), len(low.shape(low.input(0)))
    batch, time = axis_of(node.attrs.get("batch_axis", 1), rank), axis_of(node.attrs.get("time_axis", 0), rank)
    if batch == time or len(lengths.shape) != 1:
        raise Refused("ReverseSequence: batch and time are not two axes with one length for each sequence")
    low.require("ReverseSequence: one length for each sequence", lengths.shape[0], x.shape[batch])
    steps = x.shape[time]
    box, body = (x.shape[batch], steps), ExpressionBuilder()
    index = low.temporary(dtypes.i64, box)
    operands = (low.indices(steps), views.inserted(lengths, 1), low.number(steps))
    args = [body.operand(low.fit(v, box)) for v in operands]
    low.loop(box, body, [(body.apply(trace(_reversed, (True,) * 3), *args, dtype=dtypes.i64), index)])
    strides = tuple(index.strides[(batch, time).index(a)] if a in (batch, time) else 0 for a in range(rank))
    broadcast = View(index.storage, x.shape, strides, index.offset)
    low.groups.append(GatherElements((node,), x, broadcast, time, low.make(node.output)))
