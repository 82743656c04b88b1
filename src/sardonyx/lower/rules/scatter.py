"""Scatter operators."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr, trace
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder
from sardonyx.lower.groups import Scatter, View
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.rules.gather import OUTSIDE, columns_of, flat_index, require_within
from sardonyx.lower.rules.slice_assign import assign_slice
from sardonyx.lower.sizes import Refused, product, sub


def _reduction(low: Lowering, node: Node) -> str:
    found = str(node.attrs.get("reduction", "none"))
    if found not in ("none", "add", "mul", "max", "min"):
        raise Refused(f"{node.op_type}: there is no reduction {found!r}")
    if found != "none" and low.dtype(node.output) is dtypes.bool_:
        raise Refused(f"{node.op_type} that reduces bools is not compiled")
    return found


def _along(view: View, axis: int) -> View:
    """A view with stride 0 along an axis."""
    return View(view.storage, view.shape, (*view.strides[:axis], 0, *view.strides[axis + 1 :]), view.offset)


@rule("ScatterElements")
def scatter_elements(low: Lowering, node: Node) -> None:
    data, indices, updates = (low.view(low.input(i)) for i in range(3))
    axis, reduction = axis_of(node.attrs.get("axis", 0), len(data.shape)), _reduction(low, node)
    require_within(low, data, indices, axis)
    require_update_shape(low, updates, indices.shape)
    out = low.make(node.output)
    places = View(out.storage, indices.shape, _along(out, axis).strides)
    low.groups.append(
        Scatter((node,), data, out, indices, updates, places, data.shape[axis], out.strides[axis], reduction)
    )


def require_update_shape(low: Lowering, view: View, shape: tuple[Known, ...]) -> None:
    """Require the shape of the updates."""
    if len(view.shape) != len(shape):
        raise Refused(f"{low.node.op_type}: the updates do not have the rank of what they replace")
    for size, whole in zip(view.shape, shape, strict=True):
        low.require(f"{low.node.op_type}: the updates do not have the shape of what they replace", size, whole)


@rule("ScatterND")
def scatter_nd(low: Lowering, node: Node) -> None:
    """A Scatter along the indexed axes merged into one, or copies if the indices are a box."""
    data, indices, updates = (low.view(low.input(i)) for i in range(3))
    if not indices.shape:
        raise Refused("ScatterND: the indices have no axes")
    columns, reduction = columns_of(low, indices, indices.shape[-1], data), _reduction(low, node)
    sizes, rest, outer = data.shape[: len(columns)], data.shape[len(columns) :], indices.shape[:-1]
    box = (*outer, *rest)
    require_update_shape(low, updates, box)
    out = low.make(node.output)
    if reduction == "none" and assign_slice(low, data, indices, updates, out):
        return
    index = flat_index(low, columns, sizes, outer)
    for size in rest:
        index = views.inserted(index, len(index.shape), size)
    places = View(out.storage, box, (*[0] * len(outer), *out.strides[len(columns) :]))
    pitch = product(rest)
    low.groups.append(Scatter((node,), data, out, index, updates, places, product(sizes), pitch, reduction))


def _position(e: Emitter, start: Expr, step: Expr, room: Expr, *, circular: bool) -> Expr:
    at = start + step
    return e.mod(at, room) if circular else e.where(at >= 0, at, OUTSIDE)


@rule("TensorScatter")
def tensor_scatter(low: Lowering, node: Node) -> None:
    """A Scatter along ``axis``: the updates of each batch entry begin at that entry's own position."""
    past, update, starts = low.view(low.input(0)), low.view(low.input(1)), node.input(2)
    axis = axis_of(node.attrs.get("axis", -2), len(past.shape))
    require_within(low, past, update, axis)
    if axis == 0:
        raise Refused("TensorScatter along the batch")
    for i, (size, whole) in enumerate(zip(update.shape, past.shape, strict=True)):
        if i != axis:
            low.require("TensorScatter: the update does not fit", size, whole)
    length, room = update.shape[axis], past.shape[axis]
    low.require_least("TensorScatter: the update does not fit", sub(room, length), 0)
    box, body = (update.shape[0], length), ExpressionBuilder()
    first = low.scalar(0, dtypes.i64) if starts is None else views.inserted(low.view(starts), 1)
    at = low.temporary(dtypes.i64, box)
    args = [body.operand(low.fit(v, box)) for v in (first, low.indices(length), low.number(room))]
    program = trace(_position, (True,) * 3, circular=node.attrs.get("mode", "linear") == "circular")
    low.loop(box, body, [(body.apply(program, *args, dtype=dtypes.i64), at)])
    strides = tuple(at.strides[0] if a == 0 else at.strides[1] if a == axis else 0 for a in range(len(past.shape)))
    index, out = View(at.storage, update.shape, strides), low.make(node.output)
    places = View(out.storage, update.shape, _along(out, axis).strides)
    low.groups.append(Scatter((node,), past, out, index, update, places, room, out.strides[axis], "none"))
