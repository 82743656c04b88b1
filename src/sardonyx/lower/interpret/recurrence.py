"""Recurrences, one step after the other."""

from __future__ import annotations

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.lower.groups import Recurrence
from sardonyx.lower.interpret.expression import evaluate, wide
from sardonyx.lower.interpret.memory import Array, Memory, meaning


@meaning(Recurrence)
def recurrence(memory: Memory, group: Recurrence) -> None:
    x, r = wide(memory.at(group.x)), wide(memory.at(group.r))
    ways, steps, batch, _, units = x.shape
    lengths = np.full(batch, steps) if group.lengths is None else memory.at(group.lengths).astype(np.int64)
    if lengths.size and not 0 <= lengths.min() <= lengths.max() <= steps:
        raise InvalidArgument("a sequence length is out of range", where=group.nodes[0].label, expected=steps)
    for way in range(ways):
        constants = [wide(memory.at(v))[way] for v in group.constants]
        states = [
            np.zeros((batch, units), x.dtype) if v is None else wide(memory.at(v))[way].astype(x.dtype)
            for v in group.initial
        ]
        for t in range(steps):
            live = t < lengths
            at = np.where(live, lengths - 1 - t, t) if group.backward[way] else np.full(batch, t)
            after = _step(group, x[way, at, np.arange(batch)], r[way], constants, states)
            states = [np.where(live[:, None], new, old) for new, old in zip(after, states, strict=True)]
            if group.y is not None:
                memory.at(group.y)[way, at, np.arange(batch)] = np.where(live[:, None], states[0], 0)
        for view, state in zip(group.finals, states, strict=True):
            if view is not None:
                memory.at(view)[way] = state


def _step(group: Recurrence, x: Array, r: Array, constants: list[Array], states: list[Array]) -> list[Array]:
    """The states after a step; ``x`` is (batch, gates, units)."""
    kept: list[Array] = []
    for stage in group.stages:
        source = [states[0], *kept][stage.source]
        sums = [source @ r[gate].T for gate in stage.gates]
        operands = [*np.moveaxis(x, 1, 0), *sums, *states, *constants, *kept]
        kept += evaluate(stage.expression, operands, (), 0)
    return kept[-len(states) :]
