"""From a part to an executable: lower, choose kernels, lay out the step table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sardonyx.lower.build import Lowered, lower
from sardonyx.lower.groups import Attention, Contraction, Convolution, Fill, Gather, Group, Loop, Pool
from sardonyx.lower.sizes import Refused
from sardonyx.partition.provider import Part
from sardonyx.providers.cpu import isa
from sardonyx.providers.cpu.executable import CpuExecutable
from sardonyx.providers.cpu.kernels import attention, contraction, conv, fill, gather, loop, pool
from sardonyx.providers.cpu.kernels.split import Cache
from sardonyx.providers.cpu.steps import Exceptional, Step, Target
from sardonyx.providers.cpu.table import Table

if TYPE_CHECKING:
    from sardonyx.providers.cpu import CpuProvider


def compile_part(part: Part, provider: CpuProvider) -> CpuExecutable:
    """Make a part ready to run."""
    lowered = _lowered(part, provider)
    target = Target(isa.current(), provider.precision)
    while True:
        shared: Cache = {}
        steps = [step for group in lowered.groups for step in steps_of(group, target, shared)]
        table = Table(steps, lowered.inputs, lowered.outputs, lowered.checks, target.isa)
        try:
            return CpuExecutable(part, table, lowered.views, provider.settings, provider.threads, provider.max_memory)
        except Exceptional as found:
            target = replace(target, exceptional=target.exceptional | {found.identity})


def _lowered(part: Part, provider: CpuProvider) -> Lowered:
    graph = part.nodes[0].graph
    assert graph is not None
    try:
        return lower(part, provider.learned(graph))
    except Refused:
        return lower(part)  # another provider may have written values since the graph was looked at


def steps_of(group: Group, target: Target, shared: Cache) -> list[Step]:
    """The kernels that carry out a group; ``shared`` is what contractions split once and read several times."""
    if isinstance(group, Loop):
        return loop.steps(group, target)
    if isinstance(group, Contraction):
        return contraction.steps(group, target, shared)
    if isinstance(group, Convolution):
        return conv.steps(group, target)
    if isinstance(group, Pool):
        return pool.steps(group, target)
    if isinstance(group, Attention):
        return attention.steps(group, target)
    if isinstance(group, Gather):
        return gather.steps(group, target)
    assert isinstance(group, Fill)
    return fill.steps(group, target)
