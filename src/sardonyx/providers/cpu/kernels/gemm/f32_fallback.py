"""The f32 fallback of AMX matrix products: flagged micro-tiles are recomputed with f32 multiply-adds.

Flags mark panels with numbers that bf16 terms or int8 slices cannot represent (``split``). They are rare, so a kernel
first asks once whether any flag is set, and looks at the flags of single micro-tiles only then.
"""

from __future__ import annotations

from collections.abc import Iterable

from sardonyx.providers.cpu.kernels.common.matrices import MatrixArgs
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import load_one
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL, STEP, TILE, FlagsArgs, load_column, step_elements
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i32, i64
from sardonyx.records import Record

EXACT_ROWS = 4
"""Rows that are recomputed at a time: 8 vector registers of sums."""


def any_flag_set(k: Kernel, operands: Iterable[tuple[Buf, Val]]) -> Val:
    """Whether any flag of an operand is set; of each operand, its flags and their number."""
    found = k.var(k.zeros(i32, HALF))
    for flags, count in operands:
        for t in k.tiles(count, HALF):
            found.set(found.get() | flags.load(t))
    return found.get().ne(0).any()


class ProductOperands(Record):
    """The operands of one matrix product: packed, with their flags, and as they were, where that exists."""

    a: Buf
    a_flags: FlagsArgs[Buf, Val] | None
    b: Buf
    b_flags: FlagsArgs[Buf, Val] | None
    a_source: MatrixArgs[Buf, Val] | None
    b_source: MatrixArgs[Buf, Val] | None


class F32Fallback(Record):
    """The fallback of one matrix product inside a kernel."""

    k: Kernel
    at: ProductOperands
    m: Val
    n: Val
    depth: Val
    steps: Val
    terms: int
    is_in_panels: bool
    """B exists as f32 panels."""

    def recompute_flagged(self, sums: Buf, row: Val, column: Val) -> None:
        """Recompute the sums of a micro-tile if one of its flags is set."""
        k, top = self.k, row * PANEL
        with k.when(self._is_flagged(row, column), likely=False):
            self._recompute(sums, top, k.min(self.m - top, PANEL), column * PANEL)

    def _is_flagged(self, row: Val, column: Val) -> Val:
        k = self.k
        found = k.var(k.zeros(i32))
        for flags, panel in ((self.at.a_flags, row), (self.at.b_flags, column)):
            if flags is not None:
                with k.loop(panel * flags.panel, k.min((panel + 1) * flags.panel, flags.count)) as i:
                    found.set(found.get() | flags.memory.load(i))
        return found.get().ne(0)

    def _recompute(self, sums: Buf, top: Val, high: Val, left: Val) -> None:
        """The sums of a micro-tile in f32."""
        k = self.k
        with k.loop(0, high, EXACT_ROWS) as i:
            existing = [k.min(i + r, high - 1) for r in range(EXACT_ROWS)]
            totals = [[k.var(k.zeros(f32, HALF)) for _ in range(2)] for _ in existing]
            with k.loop(0, self.depth) as j:
                columns = [self._column(left, half, j) for half in range(2)]
                for r, pair in zip(existing, totals, strict=True):
                    x = k.splat(self._left(top + r, j), HALF)
                    for total, y in zip(pair, columns, strict=True):
                        total.set(k.fma(x, y, total))
            for r, pair in zip(existing, totals, strict=True):
                for half, total in enumerate(pair):
                    sums.store(r * PANEL + half * HALF, total)

    def _left(self, row: Val, j: Val) -> Val:
        """Number ``j`` along k of a row of A."""
        source = self.at.a_source
        if source is None:
            return load_one(self.at.a, self.steps, self.terms, row, j)
        return source.memory.load(row * source.row + j * source.col)

    def _column(self, left: Val, half: int, j: Val) -> Val:
        """Number ``j`` along k of the columns of half a panel."""
        k, b, source = self.k, self.at.b, self.at.b_source
        if self.is_in_panels:
            return b.load(left * self.depth + j * PANEL + half * HALF, HALF)
        if source is None:
            step = left // PANEL * self.steps + j // STEP
            return load_column(k, b.at(step * step_elements(self.terms) + half * TILE), self.terms, j % STEP)
        lane = k.iota(i64, HALF) + (left + half * HALF)
        return source.memory.at(j * source.row).gather(k.min(lane, self.n - 1) * source.col)
