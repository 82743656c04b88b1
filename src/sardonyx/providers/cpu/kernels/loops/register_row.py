"""A short row whose values stay in registers from the first pass to the last.

Where results go past the caches, all that a thread stores waits behind them: a row that stores nothing else leaves the
processor free to begin the next one meanwhile. (Softmax of rows of 128, out of caches: 0.8 of the time of rows that are
kept in memory, 0.68 on a core that is shared.)
"""

from __future__ import annotations

from sardonyx.providers.cpu.kernels.loops.passes import Pass
from sardonyx.providers.cpu.kernels.loops.row import Elements, Row, get
from sardonyx.providers.cpu.kernels.math.unaligned_rows import tiles_of
from sardonyx.providers.cpu.language.values import Val

GROUP = 4
"""Vectors whose instructions are written in turns."""


class RowWhole:
    """The code of one row of whole vectors."""

    def __init__(self, row: Row) -> None:
        k, lanes = row.k, row.lanes
        self.row, self.at = row, [k.const(0)] * len(row.steps)
        self.tiles = tiles_of(k, row.form.vectors, lanes)
        first, zero = row.schedule.passes[0], k.const(0)
        starts = range(0, len(self.tiles), GROUP)
        self.groups = [Elements(row, first, self.tiles[i : i + GROUP], self.at, zero, None) for i in starts]

    def run(self) -> None:
        row, passes = self.row, self.row.schedule.passes
        row.begin([])
        for p in passes[:-1]:
            row.prepare_ratios(p)
            if p is passes[1]:
                row.ask_ahead(self.tiles, self.at)
            row.take(p, self._reduced(p))
        row.prepare_ratios(passes[-1])
        self._store(passes[-1])

    def _reduced(self, p: Pass) -> dict[int, list[Val]]:
        """In the order of ``Row``, which is that of smaller tensors: a row's bits are those that it has alone."""
        unroll, many = self.row.unroll(p), len(self.tiles)
        reducers = {r: self.row.reducer(r) for r in p.reductions}
        sums = {r: [self.row.variables(x) for _ in range(unroll)] for r, x in reducers.items()}
        chains = [i % unroll if i < many // unroll * unroll else 0 for i in range(many)]
        for i, group in enumerate(self.groups):
            mine = chains[i * GROUP : (i + 1) * GROUP]
            group.go_on(p, {r: [states[c] for c in mine] for r, states in sums.items()})
        return {r: [x.folded(x.merged([get(v) for v in sums[r]]))[-1]] for r, x in reducers.items()}

    def _store(self, p: Pass) -> None:
        """Lines go past the caches, if that is what vectors are."""
        k, past = self.row.k, self.row.form.past(p, self.row.k.lanes)
        assert past is not None
        before = [dict(group.found) for group in self.groups]
        with k.either(self.row.outputs[past].past_line().eq(0)) as branches:
            for branch, output in zip(branches, (past, None), strict=True):
                with branch:
                    for group, found in zip(self.groups, before, strict=True):
                        group.found = dict(found)
                        group.go_on(p, {}, output)
