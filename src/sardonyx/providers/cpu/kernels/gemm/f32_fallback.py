"""The f32 fallback of AMX matrix products: flagged micro-tiles are recomputed with f32 multiply-adds.

Flags mark panels with numbers that bf16 terms or int8 slices cannot represent (``split``). They are rare, so a kernel
first asks once whether any flag is set, and looks at the flags of single micro-tiles only then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sardonyx.providers.cpu.kernels.common.matrices import number
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import load_one
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL, STEP, TILE, load_column, step_elements
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i32, i64

EXACT_ROWS = 4
"""Rows that are recomputed at a time: 8 vector registers of sums."""


def any_flag_set(k: Kernel, memory: Any, names: Iterable[str] = ("a_flags", "b_flags")) -> Val:
    """Whether any flag of an operand is set."""
    found = k.var(k.zeros(i32, HALF))
    for flags in (name for name in names if name in memory):
        for t in k.tiles(number(memory, f"{flags}_count"), HALF):
            found.set(found.get() | memory[flags].load(t))
    return found.get().ne(0).any()


@dataclass(frozen=True)
class F32Fallback:
    """The fallback of one matrix product inside a kernel."""

    k: Kernel
    memory: Any
    at: dict[str, Buf]
    """The operands of this product, by name: ``a_source`` and ``b_source`` only if they exist unpacked."""
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
        for name, panel in (("a_flags", row), ("b_flags", column)):
            if name in self.at:
                many, count = (number(self.memory, f"{name}_{what}") for what in ("panel", "count"))
                with k.loop(panel * many, k.min((panel + 1) * many, count)) as i:
                    found.set(found.get() | self.at[name].load(i))
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
        if "a_source" not in self.at:
            return load_one(self.at["a"], self.steps, self.terms, row, j)
        a_row, a_col = number(self.memory, "a_source_row"), number(self.memory, "a_source_col")
        return self.at["a_source"].load(row * a_row + j * a_col)

    def _column(self, left: Val, half: int, j: Val) -> Val:
        """Number ``j`` along k of the columns of half a panel."""
        k = self.k
        if self.is_in_panels:
            return self.at["b"].load(left * self.depth + j * PANEL + half * HALF, HALF)
        if "b_source" not in self.at:
            step = left // PANEL * self.steps + j // STEP
            return load_column(k, self.at["b"].at(step * step_elements(self.terms) + half * TILE), self.terms, j % STEP)
        b_row, b_col = number(self.memory, "b_source_row"), number(self.memory, "b_source_col")
        lane = k.iota(i64, HALF) + (left + half * HALF)
        return self.at["b_source"].at(j * b_row).gather(k.min(lane, self.n - 1) * b_col)
