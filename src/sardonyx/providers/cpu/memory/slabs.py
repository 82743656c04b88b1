"""Slabs of huge pages that hold many blocks: weights are read without TLB misses, and the hardware prefetcher does not
stop at every 4 KiB page.

Free ranges are reused first fit. Whole huge pages of a freed range are returned to the system at once, and so is an
empty slab.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from sardonyx.providers.cpu.memory.pages import Loan, Pages, Returns, aligned

Array = np.ndarray[Any, Any]

SLAB_NBYTES = 1 << 25


class Slab:
    """One slab and its free ranges."""

    def __init__(self) -> None:
        self.pages = Pages(SLAB_NBYTES)
        self.gaps = [(0, SLAB_NBYTES)]
        """In order, not adjacent."""
        self._untouched = 0
        """The memory from here on was never used: it is zero."""

    @property
    def is_free(self) -> bool:
        return self.gaps == [(0, SLAB_NBYTES)]

    def take(self, nbytes: int) -> tuple[int, int] | None:
        """Take the first free range of ``nbytes`` bytes. Returns its start, and the end of its part that is not zero;
        None if no range is large enough.
        """
        for i, (start, end) in enumerate(self.gaps):
            if end - start >= nbytes:
                taken = start + nbytes
                self.gaps[i : i + 1] = [(taken, end)] if taken < end else []
                dirty, self._untouched = min(self._untouched, taken), max(self._untouched, taken)
                return start, dirty
        return None

    def put_back(self, start: int, end: int) -> None:
        before = [gap for gap in self.gaps if gap[1] <= start]
        after = [gap for gap in self.gaps if gap[0] >= end]
        if before and before[-1][1] == start:
            start = before.pop()[0]
        if after and after[0][0] == end:
            end = after.pop(0)[1]
        self.gaps = [*before, (start, end), *after]
        self.pages.release(start, min(end, self._untouched))


class Slabs:
    """The slabs of a process."""

    def __init__(self) -> None:
        self.all: list[Slab] = []
        self.returns = Returns(self._put_back)

    def take(self, nbytes: int, *, is_zeroed: bool = True) -> Array:
        """Bytes aligned to a cache line."""
        if nbytes > SLAB_NBYTES // 2:
            pages = Pages(nbytes)
            alone: Array = np.ndarray((nbytes,), np.uint8, pages.mapped, pages.first)
            return alone
        with self.returns.lock:
            slab, (start, dirty) = self._place(aligned(nbytes))
            on_return = partial(self.returns.add, (slab, start, start + aligned(nbytes)))
            block: Array = np.ndarray((nbytes,), np.uint8, Loan.over(slab.pages, start, nbytes, on_return))
        self.returns.settle()
        if is_zeroed and dirty > start:
            block[: dirty - start] = 0
        return block

    def _place(self, nbytes: int) -> tuple[Slab, tuple[int, int]]:
        for slab in self.all:
            found = slab.take(nbytes)
            if found is not None:
                return slab, found
        slab = Slab()
        found = slab.take(nbytes)
        assert found is not None
        self.all.append(slab)
        return slab, found

    def _put_back(self, what: tuple[Slab, int, int]) -> None:
        slab, start, end = what
        slab.put_back(start, end)
        if slab.is_free:
            self.all.remove(slab)
