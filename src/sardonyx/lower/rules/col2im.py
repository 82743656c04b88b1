"""Col2Im by stride phases.

Pixels with the same index modulo the stride are covered by the same taps of neighbouring blocks, so that each phase of
the image is a sum of shifted windows of the blocks.
"""

from __future__ import annotations

import math
from functools import reduce
from itertools import product

from sardonyx.ir import dims
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.conv_transpose import MAX_PHASES
from sardonyx.lower.rules.pad import surround
from sardonyx.lower.rules.pointwise import MAX_OPERANDS
from sardonyx.lower.rules.reduce import apply
from sardonyx.lower.rules.window import pads_of, per_axis
from sardonyx.lower.sizes import Refused


def _sum(e: Emitter, *blocks_view: Expr) -> Expr:
    return reduce(lambda a, b: a + b, blocks_view)


@rule("Col2Im")
def col2im(low: Lowering, node: Node) -> None:
    x, image, block = low.view(low.input(0)), low.numbers(low.input(1)), low.numbers(low.input(2))
    rank, taps = len(image), math.prod(block)
    strides, dilations = per_axis(node, "strides", rank), per_axis(node, "dilations", rank)
    before, after = pads_of(node, rank)
    if len(block) != rank or min((*image, *block)) < 1 or taps > MAX_OPERANDS or math.prod(strides) > MAX_PHASES:
        raise Refused(f"Col2Im of blocks {block} and strides {strides} is not compiled")
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, block, strict=True)]
    blocks = [(n + b + a - r) // s + 1 for n, b, a, r, s in zip(image, before, after, reach, strides, strict=True)]
    channels = dims.exact_div(x.shape[1], taps)
    if min(blocks) < 1 or channels is None:
        raise Refused("Col2Im: the channels are not a multiple of the block, or no block fits into the image")
    low.require("Col2Im: the number of blocks does not fit the image", x.shape[2], math.prod(blocks))
    out = low.make(node.output)
    blocks_view = views.split(views.split(x, 2, blocks), 1, (channels, *block))
    for place in product(*map(range, strides)):
        axes = [_starts(*axis) for axis in zip(place, block, strides, dilations, before, strict=True)]
        target = out
        for i, (p, s) in enumerate(zip(place, strides, strict=True)):
            target = views.sliced(target, 2 + i, p, max(-((p - image[i]) // s), 0), s)
        if 0 in target.shape:
            continue
        if not all(axes):
            low.copy(low.scalar(0, out.dtype), target)
            continue
        _phase(low, blocks_view, target, axes, blocks)


def _starts(place: int, kernel: int, stride: int, dilation: int, pad: int) -> dict[int, int]:
    """The taps that cover pixels ``place``, ``place + stride`` ..., each with the block that covers the first of
    them."""
    at = {tap: place + pad - tap * dilation for tap in range(kernel)}
    return {tap: i // stride for tap, i in at.items() if i % stride == 0}


def _phase(low: Lowering, blocks_view: View, target: View, axes: list[dict[int, int]], blocks: list[int]) -> None:
    """Lower one phase: a sum of windows of the blocks, which are padded with zeros as far as the windows reach."""
    rank = len(axes)
    lengths = [d for d in target.shape[2:] if isinstance(d, int)]
    front = [max(0, -min(a.values())) for a in axes]
    back = [max(0, max(a.values()) + n - d) for a, n, d in zip(axes, lengths, blocks, strict=True)]
    lead = [0] * (2 + rank)
    if any((*front, *back)):
        room = [d + b + e for d, b, e in zip(blocks, front, back, strict=True)]
        whole = low.temporary(blocks_view.dtype, (*blocks_view.shape[: 2 + rank], *room))
        surround(low, blocks_view, whole, [*lead, *front], [*lead, *back], low.scalar(0, blocks_view.dtype))
        blocks_view = whole
    body, args = ExpressionBuilder(), []
    for taps in product(*axes):
        view = blocks_view
        for i, tap in enumerate(taps):
            view = views.sliced(view, 2 + rank + i, axes[i][tap] + front[i], lengths[i])
        for i in reversed(range(rank)):
            view = views.selected(view, 2 + i, taps[i])
        args.append(body.operand(view))
    low.loop(target.shape, body, [(apply(body, _sum, *args, dtype=target.dtype), target)])
