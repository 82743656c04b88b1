"""Operators that put several tensors into one: each is copied into its window of the result."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.lower import views
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.sizes import Refused, add, sub


@rule("Concat")
def concat(low: Lowering, node: Node) -> None:
    parts = [low.view(low.input(i)) for i in range(len(node.inputs))]
    if len(parts) == 1:
        low.alias(node.output, parts[0])
        return
    out = low.make(node.output)
    axis = axis_of(node.attrs["axis"], len(out.shape))
    start: Known = 0
    for part in parts:
        for i, (size, whole) in enumerate(zip(part.shape, out.shape, strict=True)):
            if i != axis:
                low.require(f"Concat: shapes differ beside axis {axis}", size, whole)
        target = views.window(out, axis, start, part.shape[axis])
        if part.shape[axis] != 0:
            low.copy(View(part.storage, target.shape, part.strides, part.offset), target)
        start = add(start, part.shape[axis])


@rule("Pad")
def pad(low: Lowering, node: Node) -> None:
    """The input in the middle, and around it windows of one constant that do not overlap."""
    if node.attrs.get("mode", "constant") != "constant":
        raise Refused(f"Pad of mode {node.attrs['mode']} is not compiled")
    x, rank = low.view(low.input(0)), len(low.shape(low.input(0)))
    axes = range(rank) if node.input(3) is None else [axis_of(a, rank) for a in low.numbers(low.input(3))]
    amounts = low.numbers(low.input(1))
    if len(amounts) != 2 * len(axes):
        raise Refused("pads must have two numbers per axis")
    before, after = [0] * rank, [0] * rank
    for axis, b, e in zip(axes, amounts[: len(axes)], amounts[len(axes) :], strict=True):
        if b < 0 or e < 0:
            length = add(x.shape[axis], min(b, 0) + min(e, 0))
            low.require_least("Pad: more is cut off than there is", length, 0)
            x = views.window(x, axis, max(-b, 0), length)
        before[axis], after[axis] = max(b, 0), max(e, 0)
    if not any((*before, *after)):
        low.alias(node.output, x)
        return
    constant = node.input(2)
    filler = low.scalar(0, x.dtype) if constant is None else low.reshaped(low.view(constant), ())
    rest = low.make(node.output)
    for axis, (b, e) in enumerate(zip(before, after, strict=True)):
        for start, length in ((0, b), (add(x.shape[axis], b), e)):
            if length:
                low.copy(filler, views.window(rest, axis, start, length))
        rest = views.window(rest, axis, b, sub(sub(rest.shape[axis], b), e))
    low.copy(x, View(rest.storage, x.shape, rest.strides, rest.offset))
