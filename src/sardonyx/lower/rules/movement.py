"""Operators that only rearrange elements: views of the input, or a copy if no view can express the result."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.lower import views
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering, axes_of, axis_of, rule
from sardonyx.lower.sizes import DataDependent, Refused, add, maximum, minimum, product, sub
from sardonyx.ops.rules_movement import FAR


@rule("Identity")
def identity(low: Lowering, node: Node) -> None:
    low.alias(node.output, low.view(low.input(0)))


@rule("Dropout")
def dropout(low: Lowering, node: Node) -> None:
    mode = node.input(2)
    if mode is not None and low.facts.content(mode) != [0]:
        raise Refused("Dropout in training mode is not compiled")
    x = low.view(low.input(0))
    low.alias(node.outputs[0], x)
    if len(node.outputs) > 1 and not node.outputs[1].is_dead:
        low.alias(node.outputs[1], low.fit(low.scalar(True, dtypes.bool_), x.shape))


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(low: Lowering, node: Node) -> None:
    x, shape = low.view(low.input(0)), low.shape(node.output)
    low.require(f"{node.op_type}: the shapes have different numbers of elements", product(x.shape), product(shape))
    if node.op_type == "Reshape" and not node.attrs.get("allowzero", 0):
        _refuse_zeros(low, x, low.facts.content(low.input(1)) or [])
    if node.op_type == "Unsqueeze" and len({a % len(shape) for a in low.numbers(low.input(1))}) != len(shape) - len(
        x.shape
    ):
        raise Refused("Unsqueeze: an axis is given twice")
    if node.op_type == "Squeeze":
        gone = sorted(axes_of(_squeezed(low, node, x), len(x.shape)))
        for axis in reversed(gone):
            low.require("Squeeze: a dimension is not 1", x.shape[axis], 1)
            x = views.selected(x, axis)
        low.alias(node.output, x)
    else:
        low.alias(node.output, low.reshaped(x, shape))


def _refuse_zeros(low: Lowering, x: View, sizes: Sequence[Known | None]) -> None:
    """Require that computed sizes are not 0: in a Reshape, 0 means the size of the input's axis."""
    for size, own in itertools.zip_longest(sizes, x.shape[: len(sizes)]):
        if isinstance(size, dims.Expr) and size != own:
            low.require_least("Reshape: a size is 0", size, 1)


def _squeezed(low: Lowering, node: Node, x: View) -> list[int]:
    axes = node.input(1)
    return low.numbers(axes) if axes is not None else [i for i, d in enumerate(x.shape) if d == 1]


@rule("Transpose")
def transpose(low: Lowering, node: Node) -> None:
    x = low.view(low.input(0))
    rank = len(x.shape)
    perm = node.attrs.get("perm") or range(rank)[::-1]
    if sorted(perm) != list(range(rank)):
        raise Refused("perm is not a permutation of the axes")
    low.alias(node.output, views.permuted(x, perm))


@rule("Expand")
def expand(low: Lowering, node: Node) -> None:
    shape = low.shape(node.output)
    for size, whole in zip(reversed(low.sizes(low.input(1))), reversed(shape), strict=False):
        low.require("Expand: the shapes do not broadcast", size, whole, 1)
    low.alias(node.output, low.fit(low.view(low.input(0)), shape))


@rule("Split")
def split(low: Lowering, node: Node) -> None:
    x = low.view(low.input(0))
    axis = axis_of(node.attrs.get("axis", 0), len(x.shape))
    start: Known = 0
    for out in node.outputs:
        length = low.shape(out)[axis]
        low.alias(out, views.sliced(x, axis, start, length))
        start = add(start, length)
    low.require("Split: the lengths do not sum to the dimension", start, x.shape[axis])


@rule("Slice")
def slice_(low: Lowering, node: Node) -> None:
    x, shape = low.view(low.input(0)), low.shape(node.output)
    starts = low.sizes(low.input(1))
    axes = range(len(starts)) if node.input(3) is None else low.numbers(low.input(3))
    steps = [1] * len(starts) if node.input(4) is None else low.numbers(low.input(4))
    if not len(starts) == len(axes) == len(steps):
        raise Refused("Slice: starts, axes and steps are not equally many")
    for start, axis, step in zip(starts, axes_of(axes, len(x.shape)), steps, strict=True):
        x = views.sliced(x, axis, first(start, x.shape[axis], step), shape[axis], step)
    low.alias(node.output, x)


def first(start: Known, size: Known, step: int) -> Known:
    """The index at which a slice begins; any index if it is empty."""
    if step < 0 and dims.at_least(start, 0):
        return sub(size, 1) if isinstance(start, int) and start >= FAR else minimum(start, sub(size, 1))
    if isinstance(start, int) and start <= -FAR:
        return 0
    if dims.at_least(dims.neg(start), 1):
        return maximum(add(size, start), 0) if step > 0 else add(size, start)
    if step > 0 and dims.at_least(start, 0):
        return start if start != FAR else size
    raise DataDependent("the start of a slice is not known before the run")


@rule("Tile")
def tile(low: Lowering, node: Node) -> None:
    """A copy with every axis as (repeats, size); a broadcast if only axes of one element are repeated."""
    x, times = low.view(low.input(0)), low.sizes(low.input(1))
    if len(times) != len(x.shape):
        raise Refused("repeats must have one count per axis")
    if all(t == 1 or d == 1 for d, t in zip(x.shape, times, strict=True)):
        low.alias(node.output, low.fit(x, low.shape(node.output)))
        return
    out = low.make(node.output)
    for axis in reversed(range(len(times))):
        size = x.shape[axis]
        x = views.inserted(x, axis, times[axis])
        out = views.split(out, axis, (times[axis], size))
    low.copy(x, out)


@rule("DepthToSpace")
def depth_to_space(low: Lowering, node: Node) -> None:
    x, b = low.view(low.input(0)), node.attrs["blocksize"]
    c = low.shape(node.output)[1]
    low.require("DepthToSpace: channels do not divide by blocksize squared", x.shape[1], product((c, b, b)))
    if node.attrs.get("mode", "DCR") == "DCR":
        blocks = views.permuted(views.split(x, 1, (b, b, c)), (0, 3, 4, 1, 5, 2))
    else:
        blocks = views.permuted(views.split(x, 1, (c, b, b)), (0, 1, 4, 2, 5, 3))
    low.alias(node.output, low.reshaped(blocks, low.shape(node.output)))


@rule("SpaceToDepth")
def space_to_depth(low: Lowering, node: Node) -> None:
    x, b = low.view(low.input(0)), node.attrs["blocksize"]
    _, _, h, w = low.shape(node.output)
    low.require("SpaceToDepth: height must divide by blocksize", x.shape[2], product((h, b)))
    low.require("SpaceToDepth: width must divide by blocksize", x.shape[3], product((w, b)))
    parts = views.split(views.split(x, 3, (w, b)), 2, (h, b))
    perm = (0, 3, 5, 1, 2, 4) if node.attrs.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    low.alias(node.output, low.reshaped(views.permuted(parts, perm), low.shape(node.output)))
