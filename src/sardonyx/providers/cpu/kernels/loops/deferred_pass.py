"""The last pass of a row, done while the next row is swept.

Where a softmax goes past the caches, the pass that stores it would wait for memory, and the one that makes the next
row's exponentials for the stores before: what is kept is stored in the order of the program, behind them. So the
vectors of one row go out between those that are made of the next, one for one. (Rows of 1000 come to 0.95 of a copy's
speed in place of 0.78, by one thread to 19 GB/s in place of 13.)
"""

from __future__ import annotations

from sardonyx.lower.groups import Apply
from sardonyx.providers.cpu.kernels.loops.config import Form
from sardonyx.providers.cpu.kernels.loops.row import Elements, Row
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, Var, register_dtype


class RowLate:
    """A row whose kept values are complete, and how many of its elements are stored: at most one."""

    def __init__(self, k: Kernel, form: Form, memory: list[Buf], strides: list[list[Val]], size: list[Val]) -> None:
        """``memory`` is that of all rows."""
        self.k, self.row, self.last = k, Row(k, form, list(memory), strides, size, k.const(0)), form.schedule.passes[-1]
        (self.output,) = self.last.stores
        self.to = memory[len(form.inputs) + self.output]
        self.moved, self.at, self.stop, self.half = (k.var(0) for _ in range(4))
        self.nbytes = self.row.kept_nbytes(len(form.schedule.kept))
        made = [v for v in self.last.values if v not in self.last.recalls]
        ratios = [v for v in made if self.row.is_ratio(v)]
        self.factors = {v: [self._held(v) for _ in range(1 + self.row.is_scaled(v))] for v in ratios}
        used = {a for v in made if isinstance(step := form.schedule.step(v), Apply) for a in step.args}
        self.values = {v: self._held(v) for v in sorted(used & form.schedule.of_row)}

    def _held(self, number: int) -> Var:
        return self.k.var(self.k.const(0, register_dtype(self.row.form.expression.dtype_of(number))))

    def run(self, row: Row, moved: Val) -> None:
        """Every pass over a row but the last, and meanwhile the last one over the row before."""
        row.half, row.among = self.nbytes - self.half.get(), self._some
        row.begin([])
        for p in row.schedule.passes[:-1]:
            row.sweep(p)
        row.prepare_ratios(self.last)
        self.rest()
        self._take(row, moved)

    def _take(self, row: Row, moved: Val) -> None:
        """All of ``row`` but its last pass is done; its output has ``moved`` so far from that of the first."""
        for v, held in self.factors.items():
            for var, factor in zip(held, row.factors[v][0], strict=True):
                var.set(factor)
        for v, var in self.values.items():
            var.set(row.values[v][0])
        self.half.set(row.half)
        self.moved.set(moved)
        self.stop.set(row.extents[-1])
        zero, stop = self.k.const(0), self.stop.get()
        self.at.set(self._current().to_a_line(self.output, self.last, zero, stop, self._nowhere(), zero))

    def _some(self, vectors: int) -> None:
        """Store the next ``vectors``, if there are as many."""
        lanes = self.row.lanes
        first = self.at.get()
        with self.k.when(first + vectors * lanes <= self.stop.get()):
            tiles = [Tile(first + u * lanes, lanes, None) for u in range(vectors)]
            Elements(self._current(), self.last, tiles, self._nowhere(), self.k.const(0), None).emit({}, self.output)
            self.at.set(first + vectors * lanes)

    def rest(self) -> None:
        """Store what is left."""
        self._current().stretch(self.last, self.at.get(), self.stop.get(), self._nowhere(), self.k.const(0), {})
        self.at.set(self.stop.get())

    def _nowhere(self) -> list[Val]:
        return [self.k.const(0)] * len(self.row.steps)

    def _current(self) -> Row:
        self.row.half = self.half.get()
        self.row.outputs[self.output] = self.to.at(self.moved.get())
        self.row.values = {v: [held.get()] for v, held in self.values.items()}
        self.row.factors = {v: [tuple(var.get() for var in held)] for v, held in self.factors.items()}
        return self.row
