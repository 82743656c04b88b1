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
from sardonyx.providers.cpu.kernels import (
    accumulate,
    attention,
    best,
    contraction,
    conv,
    conv_bytes,
    custom,
    distinct,
    draw,
    fill,
    find,
    forest,
    gather,
    linear_attention,
    loop,
    pool,
    recurrence,
    regions,
    resample,
    sample,
    scatter,
    suppress,
)
from sardonyx.providers.cpu.steps import Step, Target

FAMILIES: dict[type[Group], Callable[[Any, Target], list[Step]]] = {
    Accumulate: accumulate.steps,
    Attention: attention.steps,
    Best: best.steps,
    Bits: loop.bits_steps,
    Contraction: contraction.steps,
    Convolution: conv.steps,
    Custom: custom.steps,
    Draw: draw.steps,
    Distinct: distinct.steps,
    Fill: fill.steps,
    Find: find.steps,
    Forest: forest.steps,
    Gather: gather.steps,
    LinearAttention: linear_attention.steps,
    Keep: find.keep_steps,
    IntegerConvolution: conv_bytes.steps,
    Loop: loop.steps,
    Pick: gather.pick_steps,
    Pool: pool.steps,
    Recurrence: recurrence.steps,
    Regions: regions.steps,
    Resample: resample.steps,
    Sample: sample.steps,
    Scatter: scatter.steps,
    Suppress: suppress.steps,
}


def steps_of(group: Group, target: Target) -> list[Step]:
    """The kernels that carry out a group."""
    with Reporting("compile", group.nodes[-1] if group.nodes else None):
        return FAMILIES[type(group)](group, target)
