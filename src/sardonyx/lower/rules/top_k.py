"""The k largest or smallest elements of an axis."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.ir.graph import Node
from sardonyx.lower import views
from sardonyx.lower.groups import TopK
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.sizes import sub


@rule("TopK")
def top_k(low: Lowering, node: Node) -> None:
    x = low.view(low.input(0))
    axis = axis_of(node.attrs.get("axis", -1), len(x.shape))
    k = low.one_size(low.input(1))
    low.require_least("TopK: k is negative", k, 0)
    low.require_least("TopK: k is larger than the axis", sub(x.shape[axis], k), 0)
    last = [*(a for a in range(len(x.shape)) if a != axis), axis]
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
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
        contiguous = low.temporary(x.dtype, rows.shape)
        low.copy(rows, contiguous)
        rows = contiguous
    low.groups.append(TopK((node,), rows, values, indices, k, largest))
