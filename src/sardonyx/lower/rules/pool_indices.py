"""The Indices output of MaxPool: the maximum of each window is compared with its taps, one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from sardonyx import dtypes
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder
from sardonyx.lower.groups import Fill, View, Window
from sardonyx.lower.lowering import Lowering
from sardonyx.lower.rules.pad import surround
from sardonyx.lower.rules.pointwise import MAX_OPERANDS
from sardonyx.lower.rules.reduce import INFINITY, apply
from sardonyx.lower.sizes import Refused, add, maximum, mul, sub
from sardonyx.lower.sizes import product as product_of
from sardonyx.ops.precision import integer_range

Offsets = tuple[tuple[int, ...], ...]
"""The offset of each tap from the first along each axis."""


def max_pool_indices(low: Lowering, node: Node, x: View, window: Window, largest: View, out: View) -> None:
    """Lower the index, in the dense image, of the first element of each window that equals the window's maximum."""
    rank, box, sizes = len(window.kernel), out.shape, x.shape[2:]
    if math.prod(window.kernel) > MAX_OPERANDS:
        raise Refused(f"MaxPool: indices for windows of more than {MAX_OPERANDS} elements are not compiled")
    offsets = tuple(tuple(t * d for t, d in zip(tap, window.dilations, strict=True))
                    for tap in product(*map(range, window.kernel)))  # fmt: skip
    seen, is_padded = _padded(low, x, window, box[2:])
    steps = _steps(sizes, is_column_major=bool(node.attrs.get("storage_order", 0)))
    firsts = [_first(low, axis, window, box) for axis in range(rank)]
    plane = low.temporary(dtypes.i64, (mul(box[0], box[1]),))
    low.groups.append(Fill((node,), plane, start=0, step=product_of(sizes)))
    plane = views.split(plane, 0, box[:2])
    for _ in range(rank):
        plane = views.inserted(plane, len(plane.shape))
    numbers = [plane, *firsts, *map(low.number, steps), *(map(low.number, sizes) if is_padded else ())]
    body = ExpressionBuilder()
    taps = [_seen(seen, at, window.strides, box) for at in offsets]
    args = [body.operand(low.fit(v, box)) for v in (largest, *taps, *numbers)]
    place = apply(body, _index, *args, dtype=dtypes.i64, offsets=offsets, rank=rank)
    low.loop(box, body, [(place, out)])


def _padded(low: Lowering, x: View, window: Window, out: Sequence[Known]) -> tuple[View, bool]:
    """The image padded with the lowest number as far as windows reach, and whether there is any padding."""
    after: list[Known] = [0, 0]
    axes = zip(out, x.shape[2:], window.kernel, window.strides, window.dilations, window.pads, strict=True)
    for n, size, k, s, d, pad in axes:
        after.append(maximum(sub(add(mul(sub(n, 1), s), (k - 1) * d + 1), add(size, pad)), 0))
    before = (0, 0, *window.pads)
    if not any((*before, *after)):
        return x, False
    lowest = -INFINITY if x.dtype.is_float else integer_range(x.dtype.numpy)[0]
    shape = [add(add(d, b), e) for d, b, e in zip(x.shape, before, after, strict=True)]
    whole = low.temporary(x.dtype, shape)
    surround(low, x, whole, before, after, low.scalar(lowest, x.dtype))
    return whole, True


def _seen(x: View, offset: Sequence[int], strides: Sequence[int], box: Sequence[Known]) -> View:
    for axis, (start, step) in enumerate(zip(offset, strides, strict=True), 2):
        x = views.sliced(x, axis, start, box[axis], step)
    return x


def _first(low: Lowering, axis: int, window: Window, box: Sequence[Known]) -> View:
    """The first index of each window along an axis of the image."""
    view = low.temporary(dtypes.i64, (box[2 + axis],))
    start = sub(0, window.pads[axis])
    low.groups.append(Fill((low.node,), view, start=start, step=window.strides[axis]))
    for _ in box[3 + axis :]:
        view = views.inserted(view, len(view.shape))
    return view


def _steps(sizes: Sequence[Known], *, is_column_major: bool) -> tuple[Known, ...]:
    """The stride of each axis in the index."""
    if is_column_major:
        return tuple(product_of(sizes[:axis]) for axis in range(len(sizes)))
    return tuple(product_of(sizes[axis + 1 :]) for axis in range(len(sizes)))


def _index(e: Emitter, largest: Expr, *operands: Expr, offsets: Offsets, rank: int) -> Expr:
    """The index of the first tap that equals the maximum, NaN being the largest. With ``sizes``, padding is skipped; a
    window of padding alone gives -1.
    """
    taps, (plane, *rest) = operands[: len(offsets)], operands[len(offsets) :]
    firsts, steps, sizes = rest[:rank], rest[rank : 2 * rank], rest[2 * rank :]
    is_nan, found = e.isnan(largest), plane - 1
    for x, offset in reversed(list(zip(taps, offsets, strict=True))):
        fits = e.eq(x, largest) | (is_nan & e.isnan(x))
        at: Expr | None = None
        for first, step, away in zip(firsts, steps, offset, strict=True):
            at = (first + away) * step if at is None else at + (first + away) * step
        for first, size, away in zip(firsts, sizes, offset, strict=False):
            fits = fits & (first >= -away) & (first < size - away)
        assert at is not None
        found = e.where(fits, plane + at, found)
    return found
