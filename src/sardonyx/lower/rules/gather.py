"""Rows picked by an index tensor."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr, trace
from sardonyx.lower import views
from sardonyx.lower.body import Body
from sardonyx.lower.groups import Gather
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.sizes import Refused, add, product


@rule("Gather")
def gather(low: Lowering, node: Node) -> None:
    data, indices = low.view(low.input(0)), low.input(1)
    axis = axis_of(node.attrs.get("axis", 0), len(data.shape))
    if low.dtype(indices) not in (dtypes.i32, dtypes.i64):
        raise Refused("indices must be i32 or i64")
    if indices.is_scalar_const:
        index, size = indices.item(), data.shape[axis]
        low.require_least("Gather: the index is out of range", size, index + 1 if index >= 0 else -index)
        row = views.removed(data, axis, index if index >= 0 else add(size, index))
        for _ in low.shape(indices):
            row = views.inserted(row, axis)
        low.alias(node.output, row)
        return
    low.groups.append(Gather((node,), data, low.view(indices), axis, low.make(node.output)))


OUTSIDE = 1 << 62
"""An index that no axis has."""


def _flat(e: Emitter, *operands: Expr) -> Expr:
    """Indices of several axes, then their sizes, as one index of all axes; far outside where one of them is."""
    count = len(operands) // 2
    flat: Expr | None = None
    inside: Expr | None = None
    for index, size in zip(operands[:count], operands[count:], strict=True):
        fits = (index >= -size) & (index < size)
        index = e.where(index < 0, index + size, index)
        flat = index if flat is None else flat * size + index
        inside = fits if inside is None else inside & fits
    assert flat is not None and inside is not None
    return e.where(inside, flat, OUTSIDE)


@rule("GatherND")
def gather_nd(low: Lowering, node: Node) -> None:
    """The indexed axes as one, and a Gather along it."""
    data, indices = low.view(low.input(0)), low.view(low.input(1))
    count = indices.shape[-1] if indices.shape else None
    if node.attrs.get("batch_dims", 0) or not isinstance(count, int) or not 0 < count <= len(data.shape):
        raise Refused("GatherND with batch axes, or of unknown depth, is not compiled")
    columns = [views.removed(indices, len(indices.shape) - 1, i) for i in range(count)]
    sizes = data.shape[:count]
    if count == 1:
        index = columns[0]
    else:
        index, body = low.temporary(dtypes.i64, indices.shape[:-1]), Body()
        args = [body.operand(low.fit(v, index.shape)) for v in (*columns, *map(low.number, sizes))]
        program = trace(_flat, (True,) * len(args))
        low.loop(index.shape, body, [(body.apply(program, *args, dtype=dtypes.i64), index)])
    rows = low.reshaped(data, (product(sizes), *data.shape[count:]))
    low.groups.append(Gather((node,), rows, index, 0, low.make(node.output)))
