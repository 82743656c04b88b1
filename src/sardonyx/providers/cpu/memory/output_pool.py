"""The pool of outputs: blocks are reused when the caller drops its last array over them, so that pages need not be
mapped again.

The pool is bounded: free blocks and those that callers hold take about as much as callers held at the most.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from sardonyx.providers.cpu.memory.pages import Loan, Pages, Returns

Array = np.ndarray[Any, Any]

POOLED_FROM = 1 << 18
"""Bytes from which outputs are pooled: the C library would return larger blocks to the system each time."""
MOST_NBYTES = 1 << 28
"""The most bytes that the pool keeps..."""
LEAST_NBYTES = 1 << 22
"""... and the bytes that it may keep in any case, for alternating shapes."""
STEPS_PER_DOUBLING = 8
"""Granularity of block sizes: outputs of about the same size share blocks."""
DECAY = 8
"""A new block lowers the estimate of what callers hold at a time by this share."""


def _rounded(nbytes: int) -> int:
    step = max(1 << (nbytes.bit_length() - STEPS_PER_DOUBLING.bit_length()), 4096)
    return -(-nbytes // step) * step


class Pool:
    """Free blocks, by size."""

    def __init__(self, most_nbytes: int = MOST_NBYTES, least_nbytes: int = LEAST_NBYTES) -> None:
        self._most, self._least = most_nbytes, least_nbytes
        self._free: dict[int, list[Pages]] = {}
        """Most recently requested size last."""
        self.free_nbytes = self.lent_nbytes = self._mark = 0
        self.returns = Returns(self._put_back)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Array:
        """An array over a free or new block, not initialized."""
        size = _rounded(nbytes)
        with self.returns.lock:
            blocks = self._free.pop(size, None)
            if blocks is None:
                self._make_room(size)
                pages = Pages(size)
            else:
                pages = blocks.pop()
                self.free_nbytes -= size
                if blocks:
                    self._free[size] = blocks
            self.lent_nbytes += size
            self._mark = max(self._mark, self.lent_nbytes)
        self.returns.settle()
        made: Array = np.ndarray(shape, dtype, Loan.over(pages, 0, size, partial(self.returns.add, pages)))
        return made

    def _make_room(self, size: int) -> None:
        """Drop free blocks, so that a new one of ``size`` bytes keeps within the limit."""
        self._mark -= self._mark // DECAY
        self._trim(max(self._mark, self.lent_nbytes + size) - self.lent_nbytes - size)

    def _put_back(self, pages: Pages) -> None:
        self.lent_nbytes -= pages.nbytes
        self.free_nbytes += pages.nbytes
        self._free.setdefault(pages.nbytes, []).append(pages)
        self._trim(self._mark - self.lent_nbytes)

    def _trim(self, nbytes: int) -> None:
        """Drop free blocks until they take ``nbytes`` within the limits, least recently requested sizes first."""
        allowed = min(max(nbytes, self._least), self._most)
        while self.free_nbytes > allowed:
            size = next(iter(self._free))
            self._free[size].pop()
            self.free_nbytes -= size
            if not self._free[size]:
                del self._free[size]

    def release(self) -> None:
        """Return all free blocks to the system, unless another thread, or the caller further up, is using the pool."""
        if self.returns.lock.acquire(blocking=False):
            try:
                self._free, self.free_nbytes, self._mark = {}, 0, self.lent_nbytes
            finally:
                self.returns.lock.release()
            self.returns.settle()
