"""Runs that return to Python now and then, to handle signals: long ones, loops without a bound, and watched ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sardonyx.providers.cpu.language.context import Context
from sardonyx.providers.cpu.runtime.plans import SLICE_S, Frame, Shape
from sardonyx.providers.cpu.runtime.team import Team, ticks_per_second
from sardonyx.providers.cpu.runtime.team import now as ticks_now

if TYPE_CHECKING:
    from sardonyx.interpret.context import RunContext
    from sardonyx.providers.cpu.runtime.step_table import StepTable

FAR_S = 1e6
"""Deadlines further off than this many seconds are clipped to it."""


def execute_loops(team: Team, table: StepTable, frame: Frame) -> None:
    """Run loops whose trips nothing bounds; they pause after every ``SLICE_S``."""
    slots, end = frame.slots, len(table.steps)
    try:
        while slots[Context.FIRST] < end and not slots[Context.ERROR]:
            slots[Context.PAUSE_AT] = ticks_now() + int(SLICE_S * ticks_per_second())
            team.execute(frame.at)
            slots[Context.FIRST] = slots[Context.REACHED]
    finally:
        slots[Context.FIRST] = slots[Context.PAUSE_AT] = 0


def execute_watched(team: Team, table: StepTable, frame: Frame, shape: Shape, context: RunContext) -> None:
    """Run in slices, with a cancel flag and perhaps a deadline or a profile."""
    slots = frame.slots
    if context.deadline is not None:
        left_s = min(context.deadline - time.monotonic(), FAR_S)
        slots[Context.DEADLINE] = max(1, ticks_now() + int(left_s * ticks_per_second()))
    runs_left, slots[Context.LEFT] = slots[Context.LEFT], 0
    context.watch(slots, Context.CANCEL)
    start = time.perf_counter()
    try:
        for end in shape.ends:
            while slots[Context.FIRST] < end and not slots[Context.ERROR]:
                slots[Context.LAST] = end
                if table.has_loops:
                    slots[Context.PAUSE_AT] = ticks_now() + int(SLICE_S * ticks_per_second())
                team.execute(frame.at)
                slots[Context.FIRST] = slots[Context.REACHED]
        if len(shape.ends) > 1 and not slots[Context.ERROR]:
            shape.took(time.perf_counter() - start)
    finally:
        context.unwatch()
        slots[Context.CANCEL] = slots[Context.DEADLINE] = slots[Context.FIRST] = slots[Context.PROFILE] = 0
        slots[Context.PAUSE_AT] = 0
        slots[Context.LAST], slots[Context.LEFT] = len(table.steps), runs_left
