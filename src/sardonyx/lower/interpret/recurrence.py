"""Recurrences, one step after the other."""

from __future__ import annotations

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.lower.groups import Recurrence
from sardonyx.lower.interpret.expression import evaluate, wide
from sardonyx.lower.interpret.memory import Array, Memory, meaning
from sardonyx.ops.quantize import dynamic_quantize_linear


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
            live, counts = t < lengths, t <= lengths
            at = np.where(live, lengths - 1 - t, t) if group.backward[way] else np.full(batch, t)
            products = _Products(memory, group, way, r[way], counts)
            after = _step(group, x[way, at, np.arange(batch)], products, constants, states)
            states = [np.where(live[:, None], new, old) for new, old in zip(after, states, strict=True)]
            if group.y is not None:
                memory.at(group.y)[way, at, np.arange(batch)] = np.where(live[:, None], states[0], 0)
        for view, state in zip(group.finals, states, strict=True):
            if view is not None:
                memory.at(view)[way] = state if group.scale is None else np.where(lengths[:, None] > 0, state, 0)


class _Products:
    """Products with the recurrent weights of a direction."""

    def __init__(self, memory: Memory, group: Recurrence, way: int, r: Array, counts: Array) -> None:
        """``counts``: the sequences whose states have a part in their common scale."""
        self.r, self.counts = r, counts
        self.scale, self.zero = (None if v is None else memory.at(v)[way] for v in (group.scale, group.zero))

    def __call__(self, source: Array, gate: int) -> Array:
        if self.scale is None:
            return np.asarray(source @ self.r[gate].T)
        rows = np.where(self.counts[:, None], source, 0).astype(np.float32)
        q, step, zero = dynamic_quantize_linear(rows)
        weights = self.r[gate].astype(np.float64)
        if self.zero is not None:
            weights = weights - self.zero[gate][:, None]
        exact = (q - np.float64(zero)) @ weights.T
        return np.asarray(exact.astype(np.float32) * (step * self.scale[gate]))


def _step(group: Recurrence, x: Array, products: _Products, constants: list[Array], states: list[Array]) -> list[Array]:
    """The states after a step; ``x`` is (batch, gates, units)."""
    kept: list[Array] = []
    for stage in group.stages:
        source = [states[0], *kept][stage.source]
        sums = [products(source, gate) for gate in stage.gates]
        operands = [*np.moveaxis(x, 1, 0), *sums, *states, *constants, *kept]
        kept += evaluate(stage.expression, operands, (), 0)
    return kept[-len(states) :]
