"""The kernel family of each kind of group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sardonyx.errors import Reporting
from sardonyx.lower.groups import (
    Attention,
    BitCast,
    Contraction,
    Convolution,
    CountedGather,
    CumulativeSum,
    Custom,
    Fill,
    Forest,
    Gather,
    GatherElements,
    GridSample,
    Group,
    IntegerConvolution,
    LinearAttention,
    Loop,
    NonMaxSuppression,
    NonZero,
    Pool,
    RandomStream,
    Recurrence,
    Resample,
    RoiAlign,
    Scatter,
    TopK,
    Unique,
)
from sardonyx.providers.cpu.kernels.attention import linear, vector
from sardonyx.providers.cpu.kernels.common import custom
from sardonyx.providers.cpu.kernels.conv import direct
from sardonyx.providers.cpu.kernels.gemm import contraction
from sardonyx.providers.cpu.kernels.image import grid_sample, pool_nchw, resize, roi_align
from sardonyx.providers.cpu.kernels.index import cumulative_sum, gather, nms, nonzero, scatter, top_k, unique
from sardonyx.providers.cpu.kernels.loops import fill, loop, random_stream
from sardonyx.providers.cpu.kernels.quantized import conv as quantized_conv
from sardonyx.providers.cpu.kernels.recurrent import recurrence
from sardonyx.providers.cpu.kernels.trees import forest
from sardonyx.providers.cpu.program.steps import Step, Target

FAMILIES: dict[type[Group], Callable[[Any, Target], list[Step]]] = {
    CumulativeSum: cumulative_sum.steps,
    Attention: vector.steps,
    TopK: top_k.steps,
    BitCast: loop.bit_cast_steps,
    Contraction: contraction.steps,
    Convolution: direct.steps,
    Custom: custom.steps,
    RandomStream: random_stream.steps,
    Unique: unique.steps,
    Fill: fill.steps,
    NonZero: nonzero.steps,
    Forest: forest.steps,
    Gather: gather.steps,
    LinearAttention: linear.steps,
    CountedGather: nonzero.counted_gather_steps,
    IntegerConvolution: quantized_conv.steps,
    Loop: loop.steps,
    GatherElements: gather.gather_elements_steps,
    Pool: pool_nchw.steps,
    Recurrence: recurrence.steps,
    RoiAlign: roi_align.steps,
    Resample: resize.steps,
    GridSample: grid_sample.steps,
    Scatter: scatter.steps,
    NonMaxSuppression: nms.steps,
}


def steps_of(group: Group, target: Target) -> list[Step]:
    """The steps that carry out a group."""
    with Reporting("compile", group.nodes[-1] if group.nodes else None):
        return FAMILIES[type(group)](group, target)
