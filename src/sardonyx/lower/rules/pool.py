"""Pooling over windows; over whole images it is a reduction."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.ir.graph import Node
from sardonyx.lower.body import Body, work_type
from sardonyx.lower.groups import Pool, View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.reduce import Rows, mean
from sardonyx.lower.rules.window import window_of
from sardonyx.lower.sizes import Refused


@rule("MaxPool", "AveragePool")
def pool(low: Lowering, node: Node) -> None:
    x = low.view(low.input(0))
    if len(node.outputs) > 1 and not node.outputs[1].is_dead:
        raise Refused("MaxPool: where the largest lie is not compiled")
    if len(x.shape) < 3:
        raise Refused(f"{node.op_type}: the input has no spatial axes")
    if x.dtype is dtypes.bool_ or (node.op_type == "AveragePool" and not x.dtype.is_float):
        raise Refused(f"{node.op_type} of {x.dtype} is not compiled")
    sizes = low.shape(node.outputs[0])[2:]
    window, ends = window_of(low, node, x.shape[2:], sizes, node.attrs["kernel_shape"])
    out = low.make(node.outputs[0])
    if window.kernel == x.shape[2:] and all(d == 1 for d in sizes) and not any((*window.pads, *ends)):
        global_pool(low, x, out, is_mean=node.op_type == "AveragePool")
        return
    body = Body([work_type(x.dtype) if x.dtype.is_float else x.dtype])
    kind = "max" if node.op_type == "MaxPool" else "mean"
    counted = ends if node.attrs.get("count_include_pad", 0) else None
    low.groups.append(Pool((node,), body.expression([~0]), (), (out,), kind, x, window, counted))


def global_pool(low: Lowering, x: View, out: View, *, is_mean: bool) -> None:
    """One window that is the whole image."""
    rows = Rows(low, x, range(2, len(x.shape)))
    value, work = rows.body.operand(rows.x), work_type(x.dtype) if x.dtype.is_float else x.dtype
    result = mean(rows.body, value, work) if is_mean else rows.body.reduce("max", value, work)
    rows.store((result, rows.row(out, keepdims=True)))
