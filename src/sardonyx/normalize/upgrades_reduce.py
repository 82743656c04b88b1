"""Reductions and the softmax family."""

from __future__ import annotations

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node
from sardonyx.normalize.edits import ints_to_input, required_input
from sardonyx.normalize.registry import Result, upgrade


def reduce_axes(op: Builder, node: Node) -> Result:
    ints_to_input(op, node, "axes", 1, optional=True)
    return None


upgrade("ReduceSum", to=13)(reduce_axes)
upgrade(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSumSquare", to=18,
)(reduce_axes)  # fmt: skip


@upgrade("Softmax", "LogSoftmax", "Hardmax", to=13)
def over_one_axis(op: Builder, node: Node) -> Result:
    """All axes from ``axis`` on were flattened to one row; now the operator works along one axis."""
    x, axis = required_input(node, 0), node.attrs.pop("axis", 1)
    if axis == -1 or (x.rank is not None and axis == x.rank - 1):
        node.attrs["axis"] = -1
        return None
    rows = op.call("", node.op_type, op.Flatten(x, axis=axis), axis=-1)
    return op.Reshape(rows, op.Shape(x), allowzero=1)
