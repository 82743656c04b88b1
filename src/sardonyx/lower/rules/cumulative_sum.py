"""Cumulative sums and products."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.ir.graph import Node
from sardonyx.lower import views
from sardonyx.lower.groups import CumulativeSum
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.sizes import Refused, sub


@rule("CumSum", "CumProd")
def cumulative_sum(low: Lowering, node: Node) -> None:
    """``reverse`` is a view of the axis with a negative stride."""
    x = low.view(low.input(0))
    if x.dtype is dtypes.bool_:
        raise Refused(f"{node.op_type} of bools is not compiled")
    axis = axis_of(low.one_number(low.input(1)), len(x.shape))
    out = low.make(node.output)
    if node.attrs.get("reverse", 0):
        size = x.shape[axis]
        x, out = (views.sliced(v, axis, sub(size, 1), size, -1) for v in (x, out))
    kind, exclusive = node.op_type[3:].lower(), bool(node.attrs.get("exclusive", 0))
    low.groups.append(CumulativeSum((node,), x, out, axis, kind, exclusive))
