"""Transposed convolutions, by stride-phase decomposition.

Outputs with the same index modulo the stride read the same taps at neighbouring elements of the image. Each such phase
is a convolution of stride 1 with a subset of the taps in reverse order, which writes every stride-th element of the
result. No products with inserted zeros are computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from sardonyx.ir import dims
from sardonyx.ir.graph import Node
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle, work_type
from sardonyx.lower.groups import Convolution, View, Window
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.conv import per_channel
from sardonyx.lower.rules.integer import constant_of
from sardonyx.lower.rules.reduce import apply, plus
from sardonyx.lower.rules.window import MAX_AXES, pads_of, per_axis
from sardonyx.lower.sizes import Refused, expressible, sub
from sardonyx.records import Record

Array = np.ndarray[Any, Any]
MAX_PHASES = 64


class Phase(Record):
    """The convolution of a stride phase, and the elements of the result that it computes."""

    w: View
    """(filters, channels of a group, *kernel)"""
    window: Window
    out: View


@rule("ConvTranspose")
def conv_transpose(low: Lowering, node: Node) -> None:
    x = low.view(low.input(0))
    if not x.dtype.is_float:
        raise Refused(f"ConvTranspose of {x.dtype} is not compiled")
    groups = node.attrs.get("group", 1)
    for phase in phases(low, node, x, low.view(low.input(1)), low.make(node.output)):
        _emit(low, x, phase, groups)


def phases(low: Lowering, node: Node, x: View, w: View, out: View, nothing: View | None = None) -> Iterator[Phase]:
    """The stride phases of a transposed convolution. ``nothing``: the weight, or one for each filter with axes for
    channels and kernel, that counts as zero."""
    what, attrs, rank = node.op_type, node.attrs, len(x.shape) - 2
    if rank < 1 or rank > MAX_AXES:
        raise Refused(f"{what} over {rank} axes is not compiled")
    if not len(w.shape) == len(x.shape) == len(out.shape):
        raise Refused(f"{what}: the weights or the result are not of the image's rank")
    sizes, groups = [d for d in w.shape if isinstance(d, int)], attrs.get("group", 1)
    if len(sizes) != len(w.shape):
        raise Refused(f"{what}: the size of the weights is not known")
    channels, kernel = sizes[0], tuple(sizes[2:])
    if groups < 1 or channels % groups or min(kernel) < 1:
        raise Refused(f"{what}: the channels are not a multiple of the groups")
    low.require(f"{what}: the channels are not those of the weights", x.shape[1], channels)
    strides, dilations = per_axis(node, "strides", rank), per_axis(node, "dilations", rank)
    if math.prod(strides) > MAX_PHASES:
        raise Refused(f"{what} of strides {strides} is not compiled")
    before = _pads(node, x, out, kernel, strides, dilations)
    for d in out.shape[2:]:
        low.require_least(f"{what}: the padding leaves no result", d, 1)
    weights = _Weights(low, w, groups, low.scalar(0, w.dtype) if nothing is None else nothing)
    for place in product(*(range(s) for s in strides)):
        axes = [
            _Axis(p, k, s, d, pad) for p, k, s, d, pad in zip(place, kernel, strides, dilations, before, strict=True)
        ]
        target = out
        for i, (p, s) in enumerate(zip(place, strides, strict=True)):
            target = views.sliced(target, 2 + i, p, expressible(dims.ceildiv(sub(out.shape[2 + i], p), s)), s)
        seen = tuple(max(len(a.taps), 1) for a in axes)
        window = Window(seen, (1,) * rank, tuple(a.dilation for a in axes), tuple(a.pad for a in axes))
        yield Phase(weights.with_taps([a.taps for a in axes]), window, target)


def _pads(
    node: Node, x: View, out: View, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, ...]:
    """The pads at the start of each axis; half of the surplus for a given output size and for SAME, where zeros in
    front of the windows are negative pads.
    """
    rank, auto = len(kernel), node.attrs.get("auto_pad", "NOTSET")
    if not node.attrs.get("output_shape") and auto in ("NOTSET", "VALID"):
        return pads_of(node, rank)[0]
    more = node.attrs.get("output_padding") or [0] * rank
    found: list[int] = []
    for size, got, k, s, d, extra in zip(x.shape[2:], out.shape[2:], kernel, strides, dilations, more, strict=True):
        if not isinstance(size, int) or not isinstance(got, int):
            raise Refused("ConvTranspose: the size of a given result is not known before the run")
        cut = (size - 1) * s + extra + d * (k - 1) + 1 - got
        cut = max(cut, 0) if node.attrs.get("output_shape") else cut
        found.append(cut // 2 if auto == "SAME_UPPER" else cut - cut // 2)
    return tuple(found)


def _emit(low: Lowering, x: View, phase: Phase, groups: int) -> None:
    out = phase.out
    body, bias = ExpressionBuilder([work_type(out.dtype)]), low.node.input(2)
    result: Handle = ~0
    if bias is not None:
        result = apply(body, plus, result, body.operand(per_channel(low, low.view(bias), out.shape)), dtype=out.dtype)
    expression = body.expression([result])
    low.groups.append(Convolution((low.node,), expression, tuple(body.views), (out,), x, phase.w, phase.window, groups))


class _Weights:
    """Weights (channels, filters of a group, *kernel) in the order of a convolution: (filters, channels of a group,
    *kernel). Constants are reordered now, other weights in each run.
    """

    def __init__(self, low: Lowering, w: View, groups: int, nothing: View) -> None:
        self.low, self.nothing = low, nothing
        channels, filters, *kernel = (int(d) for d in w.shape)
        shape = (groups, channels // groups, filters, *kernel)
        order = (0, 2, 1, *range(3, len(shape)))
        whole = (groups * filters, channels // groups, *kernel)
        tensor = constant_of(w)
        self.array = None if tensor is None else tensor.numpy().reshape(shape).transpose(order).reshape(whole)
        self.view = w
        if self.array is None:
            self.view = low.reshaped(views.permuted(low.reshaped(w, shape), order), whole)

    def with_taps(self, taps: Sequence[list[int]]) -> View:
        """The weights of some equally spaced taps of each axis; what counts as zero if an axis has none."""
        low, is_empty, nothing = self.low, not all(taps), constant_of(self.nothing)
        if self.array is not None and (nothing is not None or not is_empty):
            part = self.array[np.ix_(*map(range, self.array.shape[:2]), *(t or [0] for t in taps))]
            if is_empty and nothing is not None:
                part = np.broadcast_to(nothing.numpy(), part.shape)
            return low.constant(Tensor.of(np.ascontiguousarray(part)))
        part_view = self.view
        for i, some in enumerate(taps):
            step = some[1] - some[0] if len(some) > 1 else 1
            part_view = views.sliced(part_view, 2 + i, some[0] if some else 0, max(len(some), 1), step)
        dense = low.temporary(part_view.dtype, part_view.shape)
        low.copy(self.nothing if is_empty else part_view, dense)
        return dense


class _Axis:
    """One axis of a phase: output q * stride + place reads tap t at input q + (place + pad - t * dilation) / stride."""

    def __init__(self, place: int, kernel: int, stride: int, dilation: int, pad: int) -> None:
        at = place + pad
        self.taps = [t for t in reversed(range(kernel)) if (at - t * dilation) % stride == 0]
        self.dilation = dilation // math.gcd(dilation, stride)
        self.pad = -((at - self.taps[0] * dilation) // stride) if self.taps else 0
