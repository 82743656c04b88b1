"""Deferred accumulation: a K-block's sums are added to the totals while the next products run.

The core looks ahead by a step or two of tile instructions only. Additions that wait for a tile store would stall it if
they followed the store at once. Instead, each step of the next products adds a few rows, which find the stored sums
complete.
"""

from __future__ import annotations

from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val


def rows_per_step(k: Kernel, steps: Val) -> Val:
    """Rows that each of ``steps`` steps adds so that all 16 are done."""
    return k.opaque(ceil_div(k.const(HALF), k.max(steps, 1)))


class DeferredAccumulation:
    """Up to sixteen rows of stored sums, some of which are still to be added."""

    def __init__(self, k: Kernel) -> None:
        self.k, self._row, self._slot = k, k.var(HALF), k.var(0)

    def _open(self, slot: Val) -> None:
        """Begin with the sums just stored, which are added to the totals from element ``slot`` on."""
        self._row.set(0)
        self._slot.set(slot)

    def advance(self, rows: Val) -> None:
        """Add the next ``rows`` rows, or what is left."""
        begin = self._row.get()
        end = self.k.min(begin + rows, HALF)
        self._add(begin, end, self._slot.get())
        self._row.set(end)

    def drain(self) -> None:
        self.advance(self.k.const(HALF))

    def _add(self, begin: Val, end: Val, slot: Val) -> None:
        raise NotImplementedError


class TermAccumulator(DeferredAccumulation):
    """Adds sums of 32 columns to totals of the same layout."""

    def __init__(self, k: Kernel, stored: Buf, sums: Buf) -> None:
        super().__init__(k)
        self.stored, self.sums = stored, sums

    def start(self, slot: Val) -> None:
        self._open(slot)

    def _add(self, begin: Val, end: Val, slot: Val) -> None:
        to = self.sums.at(slot)
        with self.k.loop(begin * PANEL, end * PANEL, HALF) as i:
            to.store(i, to.load(i, HALF) + self.stored.load(i, HALF))
