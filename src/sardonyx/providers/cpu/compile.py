"""From a part to an executable: lower, choose kernels, lay out the step table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from sardonyx.lower.build import Lowered, lower
from sardonyx.lower.sizes import Refused
from sardonyx.lower.states import State
from sardonyx.partition.provider import Part
from sardonyx.providers.cpu import isa
from sardonyx.providers.cpu.constants import contents
from sardonyx.providers.cpu.executable import CpuExecutable
from sardonyx.providers.cpu.flow import steps_for
from sardonyx.providers.cpu.jit import linker
from sardonyx.providers.cpu.steps import Exceptional, Target
from sardonyx.providers.cpu.table import Table

if TYPE_CHECKING:
    from sardonyx.providers.cpu import CpuProvider


def compile_part(part: Part, provider: CpuProvider, states: Sequence[State] = ()) -> CpuExecutable:
    """Make a part ready to run, with these states in place."""
    lowered = _lowered(part, provider, states)
    target = Target(isa.current(), provider.precision)
    while True:
        steps = steps_for(lowered.groups, target)
        linker.prepare((step.spec for step in steps), target.isa, provider.threads)
        table = Table(steps, lowered.inputs, lowered.outputs, lowered.checks, target.isa, lowered.counted)
        try:
            constants = contents(table.constants, provider.threads)
            return CpuExecutable(
                part, table, constants, lowered.views, provider.settings, provider.threads, provider.max_memory,
                None if states else partial(compile_part, part, provider),
            )  # fmt: skip
        except Exceptional as found:
            target = replace(target, exceptional=target.exceptional | {found.identity}, splits={})


def _lowered(part: Part, provider: CpuProvider, states: Sequence[State]) -> Lowered:
    graph = part.nodes[0].graph
    assert graph is not None
    try:
        return lower(part, provider.learned(graph), states)
    except Refused:
        return lower(part, states=states)  # another provider may have written values since the graph was looked at
