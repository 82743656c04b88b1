"""The last pass of a row, interleaved with the passes of the next row.

Non-temporal stores are limited by memory bandwidth, and later stores queue behind them. A softmax with non-temporal
stores would alternate between waiting for memory and computing exponentials. Interleaving the stores of one row with
the exponentials of the next, vector by vector, overlaps the two.
"""

from __future__ import annotations

from sardonyx.lower.groups import Apply
from sardonyx.providers.cpu.kernels.loops.config import LoopConfig
from sardonyx.providers.cpu.kernels.loops.row import Elements, Row
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, Var, register_dtype


class DeferredRow:
    """The row, if any, whose saved values are complete but whose last pass is not, and how far its stores are."""

    def __init__(
        self, k: Kernel, config: LoopConfig, memory: list[Buf], strides: list[list[Val]], size: list[Val]
    ) -> None:
        """``memory`` are the buffers from the first row on."""
        self.k, self.row, self.last = (
            k,
            Row(k, config, list(memory), strides, size, k.const(0)),
            config.schedule.passes[-1],
        )
        (self.output,) = self.last.stores
        self.target = memory[len(config.inputs) + self.output]
        self.moved, self.at, self.stop, self.save_offset = (k.var(0) for _ in range(4))
        self.nbytes = self.row.saved_nbytes(len(config.schedule.saved))
        made = [v for v in self.last.values if v not in self.last.reloads]
        ratios = [v for v in made if self.row.is_ratio(v)]
        self.factors = {v: [self._held(v) for _ in range(1 + self.row.is_scaled(v))] for v in ratios}
        used = {a for v in made if isinstance(step := config.schedule.step(v), Apply) for a in step.args}
        self.values = {v: self._held(v) for v in sorted(used & config.schedule.per_row)}

    def _held(self, number: int) -> Var:
        return self.k.var(self.k.const(0, register_dtype(self.row.config.expression.dtype_of(number))))

    def run(self, row: Row, moved: Val) -> None:
        """All passes over a row but the last, interleaved with the last pass over the row before."""
        row.save_offset, row.interleaved = self.nbytes - self.save_offset.get(), self._store_some
        row.begin([])
        for p in row.schedule.passes[:-1]:
            row.run_pass(p)
        row.prepare_ratios(self.last)
        self.finish()
        self._defer(row, moved)

    def _defer(self, row: Row, moved: Val) -> None:
        """Makes ``row`` the deferred row; its output is ``moved`` elements after that of the first row."""
        for v, held in self.factors.items():
            for var, factor in zip(held, row.factors[v][0], strict=True):
                var.set(factor)
        for v, var in self.values.items():
            var.set(row.values[v][0])
        self.save_offset.set(row.save_offset)
        self.moved.set(moved)
        self.stop.set(row.extents[-1])
        zero, stop = self.k.const(0), self.stop.get()
        self.at.set(self._current().peel_to_cache_line(self.output, self.last, zero, stop, self._zero_offsets(), zero))

    def _store_some(self, vectors: int) -> None:
        """Stores the next ``vectors`` vectors, if at least that number is left."""
        lanes = self.row.lanes
        first = self.at.get()
        with self.k.when(first + vectors * lanes <= self.stop.get()):
            tiles = [Tile(first + u * lanes, lanes, None) for u in range(vectors)]
            Elements(self._current(), self.last, tiles, self._zero_offsets(), self.k.const(0), None).emit(
                {}, self.output
            )
            self.at.set(first + vectors * lanes)

    def finish(self) -> None:
        """Stores what is left."""
        self._current().emit_segment(
            self.last, self.at.get(), self.stop.get(), self._zero_offsets(), self.k.const(0), {}
        )
        self.at.set(self.stop.get())

    def _zero_offsets(self) -> list[Val]:
        return [self.k.const(0)] * len(self.row.steps)

    def _current(self) -> Row:
        self.row.save_offset = self.save_offset.get()
        self.row.outputs[self.output] = self.target.at(self.moved.get())
        self.row.values = {v: [held.get()] for v, held in self.values.items()}
        self.row.factors = {v: [tuple(var.get() for var in held)] for v, held in self.factors.items()}
        return self.row
