"""Cache blocking of AMX matrix products, of bf16 terms (``gemm.amx``) or int8 slices (``gemm.int8_slices``).

A micro-tile is 32 rows by 32 columns of sums. ``Blocking`` chooses how many make a macro-tile, ``MacroTiles`` shares
macro-tiles among threads, and ``PipelinedEpilogue`` applies the epilogue of one macro-tile between the products of the
next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import TileEpilogue
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import PANEL
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.scheduler import TileScheduler
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.records import Record

MICRO_TILE = PANEL * PANEL
MICRO_TILE_NBYTES = MICRO_TILE * 4
COLUMNS = 8
"""Column panels of a macro-tile that share each K-block of A."""


class Blocking(Record):
    """Row and column panels of a macro-tile."""

    rows: int
    columns: int

    @staticmethod
    def of(nbytes: int, k: Known, isa: Isa) -> Blocking:
        """The blocking of operands that take ``nbytes`` bytes an element, and ``k`` elements along k."""
        if not isinstance(k, int):
            return Blocking(4, COLUMNS)
        fitting = isa.l2_nbytes // 2 // (max(k, 1) * PANEL * nbytes)
        return Blocking(min(max(fitting, 4), 8), 1 if fitting >= 4 else COLUMNS)

    def scratch_nbytes(self, spare: int, macros: int = 2) -> int:
        """Scratch memory: the sums of the micro-tiles of one macro-tile (of two with a pipelined epilogue), and
        ``spare`` micro-tiles for a K-block.
        """
        return (macros * self.rows * self.columns + spare) * MICRO_TILE_NBYTES


class PipelinedEpilogue:
    """The macro-tile whose sums are complete, at most one, and how far its epilogue is."""

    finish: TileEpilogue

    def __init__(self, k: Kernel, scratch: Buf, m: Val, n: Val) -> None:
        self.k, self.scratch, self.m, self.n = k, scratch, m, n
        self.left, self.sums, self.i, self.top, self.column, self.first, self.last = (k.var(0) for _ in range(7))

    def start(self, row: Val, column: Val, rows: Val, columns: Val, slot: Val) -> None:
        """Begin the epilogue of a macro-tile, whose sums begin at element ``slot`` of the scratch memory.

        ``row`` and ``column`` are its first panels, ``rows`` and ``columns`` their numbers.
        """
        for var, value in (
            (self.left, rows * columns * PANEL), (self.sums, slot), (self.i, 0), (self.top, row), (self.column, column),
            (self.first, row), (self.last, row + rows - 1),
        ):  # fmt: skip
            var.set(value)

    def is_open(self) -> Val:
        return self.left.get() > 0

    def advance(self, rows: Val) -> None:
        """Apply the epilogue to the next ``rows`` rows, or to the rest of a micro-tile."""
        with self.k.when(self.is_open()):
            self._next(rows)

    def drain(self) -> None:
        with self.k.loop_while(self.is_open):
            self._next(self.k.const(PANEL))

    def _sums(self, row: Val) -> Buf:
        """The sums of the next row, which is ``row`` of the matrix."""
        return self.scratch.at(self.sums.get())

    def _next(self, rows: Val) -> None:
        k, i, top, column = self.k, self.i.get(), self.top.get(), self.column.get()
        rows = k.min(rows, PANEL - i)
        row, left = top * PANEL + i, column * PANEL
        self.finish.micro_tile(self._sums(row), row, k.min(rows, self.m - row), left, self.sums.get())
        is_tile_end, is_column = (i + rows).eq(PANEL), top.eq(self.last.get())
        next_top, next_column = k.select(is_column, self.first.get(), top + 1), k.select(is_column, column + 1, column)
        self.left += -rows
        self.sums += rows * PANEL
        self.i.set(k.select(is_tile_end, 0, i + rows))
        self.top.set(k.select(is_tile_end, next_top, top))
        self.column.set(k.select(is_tile_end, next_column, column))


class MacroTile(Record):
    """Some row panels by some column panels of one product of a batch."""

    number: Val
    product: Val
    row: Val
    rows: Val
    column: Val
    columns: Val
    sums: Val
    """Where in scratch memory its sums begin."""

    def slot(self, r: Val, c: Val) -> Val:
        """Where the sums of row panel ``r`` and column panel ``c`` begin."""
        return self.sums + (c * self.rows + r) * MICRO_TILE


class MacroTiles:
    """The macro-tiles that a thread takes, one after the other: at least two for each thread, if there are enough."""

    def __init__(
        self, k: Kernel, done: PipelinedEpilogue | None, row_panels: Val, column_panels: Val, macro_rows: Val,
        macro_columns: Val, *, count: Val | int = 1, spare: int = 1,
    ) -> None:  # fmt: skip
        """The macro-tiles of ``count`` products. In scratch memory, ``spare`` micro-tiles precede the sums.

        ``done`` is the pipelined epilogue; without it, the caller applies the epilogue to each macro-tile itself.
        """
        self.k, self.done, self.row_panels, self.column_panels = k, done, row_panels, column_panels
        fair = row_panels * column_panels * count // (k.threads * 2)
        self.each_product = ceil_div(row_panels, k.max(k.min(macro_rows, fair), 1))
        """Macro-tiles along the rows of a product, of equal size."""
        self.rows, self.columns = ceil_div(row_panels, k.max(self.each_product, 1)), macro_columns
        self.total = self.each_product * column_panels * count
        self._scheduler, self._base = TileScheduler(k, self.total), k.var(k.const(spare * MICRO_TILE))
        self._other = (self.rows * macro_columns + 2 * spare) * MICRO_TILE

    @contextmanager
    def each(self, jump: Callable[[Val], None] | None = None) -> Iterator[MacroTile]:
        """A loop over this thread's macro-tiles. ``jump`` is called with the number of one that does not follow the one
        before.

        With a pipelined epilogue, a last iteration without columns may finish the macro-tile before.
        """
        k, done = self.k, self.done
        at, last, more = k.var(-1), k.var(-1), k.var(k.cast(self.total > 0, i64))
        with k.loop_while(lambda: more.get().ne(0) if done is None else more.get().ne(0) | done.is_open()):
            with k.when((at.get() >= last.get()) & more.get().ne(0)):
                expected = at.get()
                for var, value in zip((at, last), self._scheduler.take(), strict=True):
                    var.set(value)
                more.set(last.get())
                if jump is not None:
                    with k.when(at.get().ne(expected)):
                        jump(at.get())
            here, base = at.get(), self._base.get()
            column, rest = here % self.column_panels, here // self.column_panels
            row = rest % self.each_product * self.rows
            rows = k.min(self.rows, self.row_panels - row)
            columns = k.min(k.min(self.columns, self.column_panels - column), last.get() - here)
            yield MacroTile(here, rest // self.each_product, row, rows, column, columns, base)
            if done is not None:
                done.drain()
                done.start(row, column, rows, columns, base)
                self._base.set(self._other - base)
            at.set(here + columns)
