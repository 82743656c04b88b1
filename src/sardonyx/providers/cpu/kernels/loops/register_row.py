"""A short row whose values stay in registers from the first pass to the last.

The row then stores nothing but its results. With non-temporal stores this matters: scratch stores would queue behind
them, and keep the core from starting the next row.
"""

from __future__ import annotations

from sardonyx.providers.cpu.kernels.loops.passes import Pass
from sardonyx.providers.cpu.kernels.loops.row import Elements, Row, get
from sardonyx.providers.cpu.kernels.math.unaligned_rows import tiles_of
from sardonyx.providers.cpu.language.values import Val

GROUP = 4
"""Vectors whose instructions are interleaved."""


class RegisterRow:
    """Emits a row that consists of whole vectors."""

    def __init__(self, row: Row) -> None:
        k, lanes = row.k, row.lanes
        self.row, self.at = row, [k.const(0)] * len(row.steps)
        self.tiles = tiles_of(k, row.config.register_vectors, lanes)
        first, zero = row.schedule.passes[0], k.const(0)
        starts = range(0, len(self.tiles), GROUP)
        self.groups = [Elements(row, first, self.tiles[i : i + GROUP], self.at, zero, None) for i in starts]

    def run(self) -> None:
        row, passes = self.row, self.row.schedule.passes
        row.begin([])
        for p in passes[:-1]:
            row.prepare_ratios(p)
            if p is passes[1]:
                row.prefetch_next_row(self.tiles, self.at)
            row.finish_pass(p, self._reduced(p))
        row.prepare_ratios(passes[-1])
        self._store(passes[-1])

    def _reduced(self, p: Pass) -> dict[int, list[Val]]:
        """Reduces in the same order as ``Row``, so that a row's result does not depend on the number of rows."""
        unroll, count = self.row.unroll(p), len(self.tiles)
        reducers = {r: self.row.reducer(r) for r in p.reductions}
        sums = {r: [self.row.variables(x) for _ in range(unroll)] for r, x in reducers.items()}
        chains = [i % unroll if i < count // unroll * unroll else 0 for i in range(count)]
        for i, group in enumerate(self.groups):
            mine = chains[i * GROUP : (i + 1) * GROUP]
            group.emit_pass(p, {r: [states[c] for c in mine] for r, states in sums.items()})
        return {r: [x.reduce_lanes(x.merge_all([get(v) for v in sums[r]]))[-1]] for r, x in reducers.items()}

    def _store(self, p: Pass) -> None:
        """Non-temporal stores if the output is aligned to cache lines."""
        k, output = self.row.k, self.row.config.non_temporal_output(p, self.row.k.lanes)
        assert output is not None
        before = [dict(group.computed) for group in self.groups]
        with k.either(self.row.outputs[output].line_offset().eq(0)) as branches:
            for branch, non_temporal in zip(branches, (output, None), strict=True):
                with branch:
                    for group, found in zip(self.groups, before, strict=True):
                        group.computed = dict(found)
                        group.emit_pass(p, {}, non_temporal)
