"""Checks and copies that fit no other family."""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node
from sardonyx.normalize.edits import required_input
from sardonyx.normalize.microsoft.body import MICROSOFT
from sardonyx.normalize.registry import expand


@expand("IsAllFinite", domain=MICROSOFT)
def is_all_finite(op: Builder, node: Node) -> Any:
    """True if no element of any input is NaN or infinite, or only one of these if the attributes say so."""
    nan_only, inf_only = node.attrs.get("isnan_only", 0), node.attrs.get("isinf_only", 0)
    bad = []
    for i in range(len(node.inputs)):
        x = op.Reshape(required_input(node, i), op.const([-1]))
        found = op.IsNaN(x) if nan_only else op.IsInf(x) if inf_only else op.Or(op.IsNaN(x), op.IsInf(x))
        bad.append(op.ReduceMax(op.Cast(found, to=dtypes.i32.onnx), keepdims=0))
    worst = bad[0] if len(bad) == 1 else op.Max(*bad)
    return op.Equal(worst, op.const(0, dtypes.i32.numpy))


@expand("SampleOp", domain=MICROSOFT)
def sample_op(op: Builder, node: Node) -> Any:
    return op.Identity(required_input(node, 0))
