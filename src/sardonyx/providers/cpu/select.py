"""Which kernels carry out which kind of group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sardonyx.errors import Reporting
from sardonyx.lower.groups import (
    Accumulate,
    Attention,
    Best,
    Bits,
    Contraction,
    Convolution,
    Custom,
    Distinct,
    Draw,
    Fill,
    Find,
    Forest,
    Gather,
    Group,
    IntegerConvolution,
    Keep,
    LinearAttention,
    Loop,
    Pick,
    Pool,
    Recurrence,
    Regions,
    Resample,
    Sample,
    Scatter,
    Suppress,
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
    Accumulate: cumulative_sum.steps,
    Attention: vector.steps,
    Best: top_k.steps,
    Bits: loop.bits_steps,
    Contraction: contraction.steps,
    Convolution: direct.steps,
    Custom: custom.steps,
    Draw: random_stream.steps,
    Distinct: unique.steps,
    Fill: fill.steps,
    Find: nonzero.steps,
    Forest: forest.steps,
    Gather: gather.steps,
    LinearAttention: linear.steps,
    Keep: nonzero.keep_steps,
    IntegerConvolution: quantized_conv.steps,
    Loop: loop.steps,
    Pick: gather.pick_steps,
    Pool: pool_nchw.steps,
    Recurrence: recurrence.steps,
    Regions: roi_align.steps,
    Resample: resize.steps,
    Sample: grid_sample.steps,
    Scatter: scatter.steps,
    Suppress: nms.steps,
}


def steps_of(group: Group, target: Target) -> list[Step]:
    """The kernels that carry out a group."""
    with Reporting("compile", group.nodes[-1] if group.nodes else None):
        return FAMILIES[type(group)](group, target)
