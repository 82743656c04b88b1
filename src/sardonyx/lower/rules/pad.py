"""Pad and CenterCropPad."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, work_type
from sardonyx.lower.groups import Resample, TapTable, View
from sardonyx.lower.lowering import Lowering, axes_of, rule
from sardonyx.lower.rules.tables import table
from sardonyx.lower.sizes import Refused, add, expressible, maximum, minimum, sub


@rule("Pad")
def pad(low: Lowering, node: Node) -> None:
    x, rank = low.view(low.input(0)), len(low.shape(low.input(0)))
    axes = range(rank) if node.input(3) is None else axes_of(low.numbers(low.input(3)), rank)
    amounts = low.sizes(low.input(1))
    if len(amounts) != 2 * len(axes):
        raise Refused("pads must have two numbers per axis")
    before: list[Known] = [0] * rank
    after: list[Known] = [0] * rank
    for axis, b, e in zip(axes, amounts[: len(axes)], amounts[len(axes) :], strict=True):
        x, before[axis], after[axis] = _cropped(low, x, axis, b, e)
    if not any((*before, *after)):
        low.alias(node.output, x)
        return
    mode = node.attrs.get("mode", "constant")
    if mode == "constant":
        constant = node.input(2)
        filler = low.scalar(0, x.dtype) if constant is None else low.reshaped(low.view(constant), ())
        surround(low, x, low.make(node.output), before, after, filler)
        return
    if mode not in _SOURCES:
        raise Refused(f"Pad of mode {mode!r} is not known")
    out, found = low.make(node.output), []
    for axis, (b, e) in enumerate(zip(before, after, strict=True)):
        if b != 0 or e != 0:
            low.require_least(f"Pad: mode {mode} has nothing to repeat", x.shape[axis], 1)
            sources = table(low, (out.shape[axis],), _SOURCES[mode], b, x.shape[axis], dtype=dtypes.i64)
            found.append((axis, TapTable(sources, None)))
    body = ExpressionBuilder([work_type(x.dtype) if x.dtype.is_float else x.dtype])
    low.groups.append(Resample((node,), body.expression([~0]), (), (out,), x, tuple(found)))


def _cropped(low: Lowering, x: View, axis: int, before: Known, after: Known) -> tuple[View, Known, Known]:
    """Crop an axis by its negative pads; returns the view and the pads that are not negative."""
    first, last = (maximum(sub(0, d), 0) for d in (before, after))
    if first != 0 or last != 0:
        length = sub(x.shape[axis], add(first, last))
        low.require_least("Pad: more is cropped than the axis has", length, 0)
        x = views.sliced(x, axis, first, length)
    return x, maximum(before, 0), maximum(after, 0)


def surround(
    low: Lowering, x: View, out: View, before: Sequence[Known], after: Sequence[Known], filler: View
) -> View:  # fmt: skip
    """Copy the image into the middle of ``out`` and fill the rest; returns the view of the middle.

    The rest is filled as slices that do not overlap.
    """
    rest = out
    for axis, (b, e) in enumerate(zip(before, after, strict=True)):
        for start, length in ((0, b), (add(x.shape[axis], b), e)):
            if length != 0:
                low.copy(filler, views.sliced(rest, axis, start, length))
        rest = views.sliced(rest, axis, b, sub(sub(rest.shape[axis], b), e))
    middle = View(rest.storage, x.shape, rest.strides, rest.offset)
    low.copy(x, middle)
    return middle


def _edge(e: Emitter, position: Expr, before: Expr, size: Expr) -> Expr:
    return e.clamp(position - before, 0, size - 1)


def _wrap(e: Emitter, position: Expr, before: Expr, size: Expr) -> Expr:
    return e.mod(position - before, size)


def _reflect(e: Emitter, position: Expr, before: Expr, size: Expr) -> Expr:
    period = e.maximum(2 * (size - 1), 1)
    at = e.mod(position - before, period)
    return e.where(size > 1, e.minimum(at, period - at), 0)


_SOURCES = {"edge": _edge, "wrap": _wrap, "reflect": _reflect}


@rule("CenterCropPad")
def center_crop_pad(low: Lowering, node: Node) -> None:
    """The center of the image, padded with zeros on both sides."""
    x, out = low.view(low.input(0)), list(low.shape(low.input(0)))
    axes, sizes = axes_of(node.attrs.get("axes") or range(len(out)), len(out)), low.sizes(low.input(1))
    if len(axes) != len(sizes):
        raise Refused("CenterCropPad: axes and sizes are not equally many")
    for axis, size in zip(axes, sizes, strict=True):
        out[axis] = size
    before: list[Known] = []
    after: list[Known] = []
    for axis, (size, wanted) in enumerate(zip(x.shape, out, strict=True)):
        kept, more = minimum(size, wanted), maximum(sub(wanted, size), 0)
        x = views.sliced(x, axis, expressible(dims.floordiv(sub(size, kept), 2)), kept)
        before.append(expressible(dims.floordiv(more, 2)))
        after.append(sub(more, before[-1]))
    if not any((*before, *after)):
        low.alias(node.output, x)
        return
    surround(low, x, low.make(node.output), before, after, low.scalar(0, x.dtype))
