"""Resize: along each axis a short weighted sum, whose places and weights follow from the sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

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
from sardonyx.lower.rules.resize_axes import CROP, Axis, Style, along, outside
from sardonyx.lower.rules.tables import Number, table
from sardonyx.lower.sizes import Refused
from sardonyx.ops.precision import integer_range

MAX_COLOURS = 7
"""Numbers of a pixel below which vectors do not lie along them."""


@rule("Resize")
def resize(low: Lowering, node: Node) -> None:
    x, style = low.view(low.input(0)), Style.of(node, low.dtype(low.input(0)))
    axes = _axes(low, node, x, style)
    if not axes:
        low.alias(node.output, x)
        return
    for axis in axes.values():
        low.require_least("Resize: an empty image cannot grow", axis.size, 1)
    x = x if style.mode == "nearest" else _planes(low, x, max(axes))
    out, found = low.make(node.output), [(i, along(low, axis, style)) for i, axis in sorted(axes.items())]
    if style.mode == "nearest":
        body = ExpressionBuilder([work_type(x.dtype) if x.dtype.is_float else x.dtype])
    else:
        body = ExpressionBuilder([style.work])
    result: Handle = ~0
    if style.transform == CROP:
        result = _extrapolated(low, node, body, axes, style, out)
    if style.mode != "nearest" and not x.dtype.is_float:
        low_end, high_end = integer_range(np.dtype(x.dtype.numpy))
        result = apply(body, _saturated, result, dtype=x.dtype, low=low_end, high=high_end, to=x.dtype)
    expression = body.expression([result])
    low.groups.append(Resample((node,), expression, tuple(body.views), (out,), x, tuple(found)))


def _planes(low: Lowering, x: View, inner: int) -> View:
    """An image whose pixels lie together, colour by colour: each is read several times, and then in vectors."""
    first = next((i for i, s in enumerate(x.strides) if s == 1 and x.shape[i] != 1), inner)
    size = x.shape[first]
    if first == inner or not isinstance(size, int) or size > MAX_COLOURS:
        return x
    order = [*(i for i in range(len(x.shape)) if i != inner), inner]
    dense = low.temporary(x.dtype, [x.shape[i] for i in order])
    low.copy(views.permuted(x, order), dense)
    return views.permuted(dense, [order.index(i) for i in range(len(order))])


def _axes(low: Lowering, node: Node, x: View, style: Style) -> dict[int, Axis]:
    """The axes that change."""
    rank, shape = len(x.shape), low.shape(node.output)
    chosen = axes_of(node.attrs.get("axes") or range(rank), rank)
    scales = _scales(low, node, x, chosen)
    found: dict[int, Axis] = {}
    roi = low.view(low.input(1)) if style.transform == CROP and node.input(1) is not None else None
    if roi is not None and roi.shape not in ((0,), (2 * len(chosen),)):
        raise Refused("Resize: roi needs two values per axis")
    for i, (a, scale) in enumerate(zip(chosen, scales, strict=True)):
        axis = Axis(x.shape[a], shape[a], scale)
        if roi is not None and roi.shape != (0,):
            ends = _ends(roi, i, len(chosen))
            axis = replace(axis, roi=ends) if ends != (0.0, 1.0) else axis
        if style.transform == CROP and axis.roi is None:
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
    """One scale for each axis, None where it is the ratio of the sizes."""
    sizes, scales = node.input(3), node.input(2)
    if sizes is not None and low.shape(sizes) != (0,):
        known = low.sizes(sizes)
        policy = node.attrs.get("keep_aspect_ratio_policy", "stretch")
        if policy == "stretch":
            return [None] * len(chosen)
        pairs = [(s, x.shape[a]) for s, a in zip(known, chosen, strict=True)]
        ratios = [s / n for s, n in pairs if isinstance(s, int) and isinstance(n, int) and n]
        if len(ratios) < len(pairs):
            raise Refused("Resize that keeps the ratio of unknown sizes is not compiled")
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
    low: Lowering, node: Node, body: ExpressionBuilder, axes: dict[int, Axis], style: Style, out: View
) -> Handle:  # fmt: skip
    """The result where all places are inside the image, and a given value elsewhere."""
    masks: list[Handle] = []
    for i, axis in axes.items():
        given = axis.scale is not None
        mask = table(low, (axis.output,), outside, *axis.numbers, dtype=dtypes.bool_, style=style, given=given)
        for _ in out.shape[i + 1 :]:
            mask = views.inserted(mask, len(mask.shape))
        masks.append(body.operand(low.fit(mask, out.shape)))
    value = float(node.attrs.get("extrapolation_value", 0.0))
    return apply(body, _unless, ~0, *masks, dtype=body.given[0], value=value)


def _saturated(e: Emitter, x: Expr, *, low: int, high: int, to: DType) -> Expr:
    return e.cast(e.clamp(e.round(x), low, high), to)
