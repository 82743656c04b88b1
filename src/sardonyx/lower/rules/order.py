"""Running sums and products; the largest and smallest."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.ir.graph import Node
from sardonyx.lower import views
from sardonyx.lower.groups import Accumulate, Best
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.sizes import Refused, sub


@rule("CumSum", "CumProd")
def accumulate(low: Lowering, node: Node) -> None:
    """Backwards is forwards along an axis that is walked from its end."""
    x = low.view(low.input(0))
    if x.dtype is dtypes.bool_:
        raise Refused(f"{node.op_type} of bools is not compiled")
    axis = axis_of(low.one_number(low.input(1)), len(x.shape))
    out = low.make(node.output)
    if node.attrs.get("reverse", 0):
        size = x.shape[axis]
        x, out = (views.window(v, axis, sub(size, 1), size, -1) for v in (x, out))
    kind, exclusive = node.op_type[3:].lower(), bool(node.attrs.get("exclusive", 0))
    low.groups.append(Accumulate((node,), x, out, axis, kind, exclusive))


@rule("TopK")
def top_k(low: Lowering, node: Node) -> None:
    x = low.view(low.input(0))
    axis = axis_of(node.attrs.get("axis", -1), len(x.shape))
    count = low.one_size(low.input(1))
    low.require_least("TopK: k is negative", count, 0)
    low.require_least("TopK: k is larger than the axis", sub(x.shape[axis], count), 0)
    last = [*(a for a in range(len(x.shape)) if a != axis), axis]
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    results = [
        low.temporary(dtype, shape) if value.is_dead else low.make(value)
        for value, dtype in zip(node.outputs, (x.dtype, dtypes.i64), strict=False)
    ]
    if len(results) == 1:
        results.append(low.temporary(dtypes.i64, shape))
    values, indices = (views.permuted(v, last) for v in results)
    largest = bool(node.attrs.get("largest", 1))
    rows = views.permuted(x, last)
    if rows.strides[-1] != 1 and rows.shape[-1] != 1:
        near = low.temporary(x.dtype, rows.shape)
        low.copy(rows, near)
        rows = near
    low.groups.append(Best((node,), rows, values, indices, count, largest))
