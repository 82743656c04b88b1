"""Reductions of adjacent rows, in memory order: vectors lie across the rows, accumulators in scratch memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from sardonyx.providers.cpu.kernels.loops.row import Row, get
from sardonyx.providers.cpu.kernels.math.reducers import State
from sardonyx.providers.cpu.language.values import Buf, Tile, Val

DEPTH = 8
"""Elements of each row that are reduced in registers before the accumulators go back to memory."""


class AdjacentRows:
    """Emits the reduction of many adjacent rows: ``DEPTH`` elements of each at a time."""

    def __init__(self, row: Row) -> None:
        self.row, self.k = row, row.k
        (self.only_pass,) = row.schedule.passes
        self.reducers = {r: row.reducer(r) for r in self.only_pass.reductions}
        self.memory: dict[int, list[Buf]] = {}
        at = 0
        for r, x in self.reducers.items():
            self.memory[r] = []
            for v in x.start(1):
                self.memory[r].append(self.k.scratch(v.dtype, at))
                at += 8 * row.config.chunk

    def run(self, count: Val) -> None:
        k, row = self.k, self.row
        for block in self._blocks(count):
            for r, x in self.reducers.items():
                for tile in block:
                    self._store(r, tile, x.start(row.lanes))
        with ExitStack() as stack:
            at = [k.const(0)] * len(row.steps)
            for axis, n in enumerate(row.extents[:-1]):
                i = stack.enter_context(k.loop(0, n))
                at = [a + i * s[axis] for a, s in zip(at, row.steps, strict=True)]
            start = stack.enter_context(k.loop(0, row.extents[-1], DEPTH))
            stop = k.min(start + DEPTH, row.extents[-1])
            for block in self._blocks(count):
                row.begin(block)
                sums = {r: [row.variables(x) for _ in block] for r, x in self.reducers.items()}
                row.emit_segment(self.only_pass, start, stop, at, k.const(0), sums)
                for r, x in self.reducers.items():
                    for tile, variables in zip(block, sums[r], strict=True):
                        self._store(r, tile, x.merge(self._load(r, tile), get(variables)))
        for block in self._blocks(count):
            row.begin(block)
            row.finish({r: [self._load(r, tile)[-1] for tile in block] for r in self.reducers})

    def _blocks(self, count: Val) -> Iterator[list[Tile]]:
        return self.k.blocks(count, self.row.lanes, unroll=4)

    def _store(self, r: int, tile: Tile, state: State) -> None:
        for memory, value in zip(self.memory[r], state, strict=True):
            memory.store(tile.index, value)

    def _load(self, r: int, tile: Tile) -> State:
        return tuple(memory.load(tile.index, lanes=tile.lanes) for memory in self.memory[r])
