"""RoiAlign and MaxRoiPool."""

from __future__ import annotations

from sardonyx.ir.graph import Node
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, work_type
from sardonyx.lower.groups import RoiAlign, View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.sizes import Refused

MAX_SAMPLING_RATIO = 256
"""Samples along each side of a cell: the reference provider bounds the memory, and so the time, of more."""
_SHIFTS = {"half_pixel": 0.5, "output_half_pixel": 0.0}


@rule("RoiAlign")
def roi_align(low: Lowering, node: Node) -> None:
    rois, batches, get = low.view(low.input(1)), low.view(low.input(2)), node.attrs.get
    mode, transform = get("mode", "avg"), get("coordinate_transformation_mode", "half_pixel")
    if mode not in ("avg", "max") or transform not in _SHIFTS:
        raise Refused(f"RoiAlign of mode {mode!r} and transformation {transform!r} is not known")
    low.require("RoiAlign: rois do not have four columns", rois.shape[1], 4)
    ratio = max(get("sampling_ratio", 0), 0)
    if ratio > MAX_SAMPLING_RATIO:
        raise Refused(f"RoiAlign of {ratio} samples along each side of a cell is not compiled")
    kind, shift = "mean" if mode == "avg" else "max", _SHIFTS[transform]
    _emit(low, node, rois, batches, kind, shift, ratio)


@rule("MaxRoiPool")
def max_roi_pool(low: Lowering, node: Node) -> None:
    rois = low.view(low.input(1))
    low.require("MaxRoiPool: rois do not have five columns", rois.shape[1], 5)
    _emit(low, node, views.sliced(rois, 1, 1, 4), views.selected(rois, 1), "inside", 0.0, 0)


def _emit(low: Lowering, node: Node, rois: View, batches: View, kind: str, shift: float, ratio: int) -> None:
    x, out = low.view(low.input(0)), low.make(node.output)
    if len(x.shape) != 4 or not x.dtype.is_float or not rois.dtype.is_float:
        raise Refused(f"{node.op_type}: the image does not have four axes, or is not of floats")
    low.require(f"{node.op_type}: there is not one image for each region", batches.shape[0], rois.shape[0])
    expression, scale = (
        ExpressionBuilder([work_type(x.dtype)]).expression([~0]),
        float(node.attrs.get("spatial_scale", 1.0)),
    )
    low.groups.append(RoiAlign((node,), expression, (), (out,), x, rois, batches, kind, scale, shift, ratio))
