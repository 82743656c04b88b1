"""Which kernels carry out which kind of group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sardonyx.lower.groups import (
    Attention,
    Contraction,
    Convolution,
    Draw,
    Fill,
    Forest,
    Gather,
    Group,
    LinearAttention,
    Loop,
    Pool,
    Recurrence,
    Regions,
    Resample,
    Sample,
)
from sardonyx.providers.cpu.kernels import (
    attention,
    contraction,
    conv,
    draw,
    fill,
    forest,
    gather,
    linear_attention,
    loop,
    pool,
    recurrence,
    regions,
    resample,
    sample,
)
from sardonyx.providers.cpu.steps import Step, Target

FAMILIES: dict[type[Group], Callable[[Any, Target], list[Step]]] = {
    Attention: attention.steps,
    Contraction: contraction.steps,
    Convolution: conv.steps,
    Draw: draw.steps,
    Fill: fill.steps,
    Forest: forest.steps,
    Gather: gather.steps,
    LinearAttention: linear_attention.steps,
    Loop: loop.steps,
    Pool: pool.steps,
    Recurrence: recurrence.steps,
    Regions: regions.steps,
    Resample: resample.steps,
    Sample: sample.steps,
}


def steps_of(group: Group, target: Target) -> list[Step]:
    """The kernels that carry out a group."""
    return FAMILIES[type(group)](group, target)
