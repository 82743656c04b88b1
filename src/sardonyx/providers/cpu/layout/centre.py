"""Subtracts zero points from images of bytes in a loop, in front of convolutions that no kernel for bytes takes.

The kernel for bytes (``quantized.depthwise_nhwc``) wants wide vectors and NHWC images. Where no vector is wide, the
loop is fused into the group that writes the image, which then is f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from sardonyx.ir import dims
from sardonyx.ir.scalar import Emitter, Expr, trace
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder
from sardonyx.lower.fusion.fuse import fuse
from sardonyx.lower.groups import CentredConvolution, Convolution, Group, Loop, Storage, View
from sardonyx.providers.cpu.kernels.common.window import MIN_NHWC_LANES
from sardonyx.providers.cpu.kernels.quantized import depthwise_nhwc
from sardonyx.providers.cpu.language.values import f32
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible


def without_wide_vectors(groups: Sequence[Group], analysis: Analysis) -> Sequence[Group]:
    """The groups; on chips without wide vectors, images are centred where they are written."""
    if analysis.isa.lanes >= MIN_NHWC_LANES or not any(isinstance(g, CentredConvolution) for g in groups):
        return groups
    return fuse([one for group in groups for one in _apart(group)], analysis.shared)


def of_other_layouts(groups: Sequence[Group], analysis: Analysis) -> Sequence[Group]:
    """The groups; images whose layout the kernel for bytes does not take are centred by a loop."""
    made: list[Group] = []
    for group in groups:
        if isinstance(group, CentredConvolution) and depthwise_nhwc.supports(group, analysis) is not None:
            made += _apart(group)
        else:
            made.append(group)
    return made


def _apart(group: Group) -> list[Group]:
    """A convolution of bytes as a loop that centres them, and a convolution of its result; others as they are."""
    if not isinstance(group, CentredConvolution):
        return [group]
    x = group.x
    order = views.memory_order(x)
    shape = tuple(x.shape[axis] for axis in order)
    elements = expressible(dims.product(shape))
    dense = views.dense(Storage("temporary", f32, elements, x.storage.value), shape)
    centred = views.permuted(dense, tuple(order.index(axis) for axis in range(len(order))))
    body = ExpressionBuilder()
    zero = View(group.zero.storage, x.shape, (0,) * len(x.shape), group.zero.offset)
    result = body.apply(trace(_centred, (True, True)), body.operand(x), body.operand(zero), dtype=f32)
    loop = Loop(group.nodes, x.shape, 0, tuple(body.views), body.expression([result]), (centred,))
    given = {field.name: getattr(group, field.name) for field in fields(Convolution)}
    return [loop, Convolution(**{**given, "x": centred})]


def _centred(e: Emitter, x: Expr, zero: Expr) -> Expr:
    return e.cast(x, f32) - e.cast(zero, f32)
