"""Resize: a separable filter whose taps and weights follow from the sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle, work_type
from sardonyx.lower.groups import Resample, View
from sardonyx.lower.lowering import Lowering, axes_of, rule
from sardonyx.lower.rules.reduce import apply
from sardonyx.lower.rules.resize_axes import CROP, Axis, ResizeOptions, along, outside
from sardonyx.lower.rules.tables import Number, table
from sardonyx.lower.sizes import Refused
from sardonyx.ops.precision import integer_range
from sardonyx.records import replace

MAX_INNERMOST_CHANNELS = 7
"""NHWC images with at most so many channels are transposed to NCHW, since vectors along the channels would be empty."""


@rule("Resize")
def resize(low: Lowering, node: Node) -> None:
    x, options = low.view(low.input(0)), ResizeOptions.of(node, low.dtype(low.input(0)))
    axes = _axes(low, node, x, options)
    if not axes:
        low.alias(node.output, x)
        return
    for axis in axes.values():
        low.require_least("Resize: an empty image cannot grow", axis.size, 1)
    x = x if options.mode == "nearest" else _as_nchw(low, x, max(axes))
    out, found = low.make(node.output), [(i, along(low, axis, options)) for i, axis in sorted(axes.items())]
    if options.mode == "nearest":
        body = ExpressionBuilder([work_type(x.dtype) if x.dtype.is_float else x.dtype])
    else:
        body = ExpressionBuilder([options.work])
    result: Handle = ~0
    if options.transform == CROP:
        result = _extrapolated(low, node, body, axes, options, out)
    if options.mode != "nearest" and not x.dtype.is_float:
        low_end, high_end = integer_range(np.dtype(x.dtype.numpy))
        result = apply(body, _saturated, result, dtype=x.dtype, low=low_end, high=high_end, to=x.dtype)
    expression = body.expression([result])
    low.groups.append(Resample((node,), expression, tuple(body.views), (out,), x, tuple(found)))


def _as_nchw(low: Lowering, x: View, inner: int) -> View:
    """An NHWC image of few channels, copied to NCHW: each element is read several times, then in full vectors."""
    first = next((i for i, s in enumerate(x.strides) if s == 1 and x.shape[i] != 1), inner)
    size = x.shape[first]
    if first == inner or not isinstance(size, int) or size > MAX_INNERMOST_CHANNELS:
        return x
    order = [*(i for i in range(len(x.shape)) if i != inner), inner]
    dense = low.temporary(x.dtype, [x.shape[i] for i in order])
    low.copy(views.permuted(x, order), dense)
    return views.permuted(dense, [order.index(i) for i in range(len(order))])


def _axes(low: Lowering, node: Node, x: View, options: ResizeOptions) -> dict[int, Axis]:
    """The axes that are resized."""
    rank, shape = len(x.shape), low.shape(node.output)
    chosen = axes_of(node.attrs.get("axes") or range(rank), rank)
    scales = _scales(low, node, x, chosen)
    found: dict[int, Axis] = {}
    roi = low.view(low.input(1)) if options.transform == CROP and node.input(1) is not None else None
    if roi is not None and roi.shape not in ((0,), (2 * len(chosen),)):
        raise Refused("Resize: roi needs two values per axis")
    for i, (a, scale) in enumerate(zip(chosen, scales, strict=True)):
        axis = Axis(x.shape[a], shape[a], scale)
        if roi is not None and roi.shape != (0,):
            ends = _ends(roi, i, len(chosen))
            axis = replace(axis, roi=ends) if ends != (0.0, 1.0) else axis
        if options.transform == CROP and axis.roi is None:
            axis = replace(axis, roi=(0.0, 1.0))
        same = axis.roi in (None, (0.0, 1.0)) and (scale is None or abs(scale - 1) < 1e-6)
        if not same or axis.size != axis.output:
            found[a] = axis
    return found


def _ends(roi: View, i: int, count: int) -> tuple[Number, Number]:
    tensor = roi.storage.tensor
    if tensor is not None:
        values = tensor.numpy().astype(np.float64).tolist()
        return values[i], values[i + count]
    return views.selected(roi, 0, i), views.selected(roi, 0, i + count)


def _scales(low: Lowering, node: Node, x: View, chosen: Sequence[int]) -> list[float | None]:
    """The scale of each axis; None if it is the ratio of the sizes."""
    sizes, scales = node.input(3), node.input(2)
    if sizes is not None and low.shape(sizes) != (0,):
        known = low.sizes(sizes)
        policy = node.attrs.get("keep_aspect_ratio_policy", "stretch")
        if policy == "stretch":
            return [None] * len(chosen)
        pairs = [(s, x.shape[a]) for s, a in zip(known, chosen, strict=True)]
        ratios = [s / n for s, n in pairs if isinstance(s, int) and isinstance(n, int) and n]
        if len(ratios) < len(pairs):
            raise Refused("Resize that keeps the aspect ratio of sizes that are not constant is not compiled")
        return [min(ratios) if policy == "not_larger" else max(ratios)] * len(chosen)
    if scales is None:
        raise Refused("Resize: there are neither scales nor sizes")
    if not scales.is_const:
        low.sizes(scales)
        raise Refused("Resize: the scales are not constant")
    found = [float(s) for s in scales.numpy().reshape(-1).tolist()]
    if len(found) != len(chosen) or not all(s > 0 and math.isfinite(s) for s in found):
        raise Refused("Resize: there is not one positive scale for each axis")
    return list(found)


def _unless(e: Emitter, x: Expr, *outside: Expr, value: float) -> Expr:
    for is_outside in outside:
        x = e.where(is_outside, value, x)
    return x


def _extrapolated(
    low: Lowering, node: Node, body: ExpressionBuilder, axes: dict[int, Axis], options: ResizeOptions, out: View
) -> Handle:  # fmt: skip
    """The result if all coordinates are inside the image, else ``extrapolation_value``."""
    masks: list[Handle] = []
    for i, axis in axes.items():
        given = axis.scale is not None
        mask = table(low, (axis.output,), outside, *axis.numbers, dtype=dtypes.bool_, options=options, given=given)
        for _ in out.shape[i + 1 :]:
            mask = views.inserted(mask, len(mask.shape))
        masks.append(body.operand(low.fit(mask, out.shape)))
    value = float(node.attrs.get("extrapolation_value", 0.0))
    return apply(body, _unless, ~0, *masks, dtype=body.given[0], value=value)


def _saturated(e: Emitter, x: Expr, *, low: int, high: int, to: DType) -> Expr:
    return e.cast(e.clamp(e.round(x), low, high), to)
