"""Outputs are taken from a pool: when the caller's last array over a block is gone, the block is lent again, and its
pages need not be made anew by the system.

What the pool keeps is bounded: with what callers have, it is no more than they had at a time, or a little.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from sardonyx.providers.cpu.memory.pages import Loan, Pages, Returns

Array = np.ndarray[Any, Any]

POOLED_FROM = 1 << 18
"""Bytes from which outputs are pooled: the C library gives larger blocks back to the system each time."""
MOST_NBYTES = 1 << 28
"""Bytes that the pool keeps at most for outputs to come..."""
LEAST_NBYTES = 1 << 22
"""... and that it may keep in any case, for shapes that take turns."""
STEPS_PER_DOUBLING = 8
"""Sizes of blocks: outputs of about the same size share them."""
DECAY = 8
"""A new block lowers by this share what callers are taken to have at a time: others may be asked for now."""


def _rounded(nbytes: int) -> int:
    step = max(1 << (nbytes.bit_length() - STEPS_PER_DOUBLING.bit_length()), 4096)
    return -(-nbytes // step) * step


class Pool:
    """Blocks for outputs, by size."""

    def __init__(self, most_nbytes: int = MOST_NBYTES, least_nbytes: int = LEAST_NBYTES) -> None:
        self._most, self._least = most_nbytes, least_nbytes
        self._free: dict[int, list[Pages]] = {}
        """The size that was last asked for comes last."""
        self.free_nbytes = self.lent_nbytes = self._mark = 0
        self.returns = Returns(self._put_back)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Array:
        """An array over a block that nobody has; its elements are what they are."""
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
        """For a new block: what others of its size leave of the pool's share."""
        self._mark -= self._mark // DECAY
        self._trim(max(self._mark, self.lent_nbytes + size) - self.lent_nbytes - size)

    def _put_back(self, pages: Pages) -> None:
        self.lent_nbytes -= pages.nbytes
        self.free_nbytes += pages.nbytes
        self._free.setdefault(pages.nbytes, []).append(pages)
        self._trim(self._mark - self.lent_nbytes)

    def _trim(self, nbytes: int) -> None:
        """Keep so many, within the pool's bounds; the sizes go first that were not asked for for the longest time."""
        allowed = min(max(nbytes, self._least), self._most)
        while self.free_nbytes > allowed:
            size = next(iter(self._free))
            self._free[size].pop()
            self.free_nbytes -= size
            if not self._free[size]:
                del self._free[size]

    def release(self) -> None:
        """Give back to the system all that nobody has, unless somebody is at work here: the caller may be, too."""
        if self.returns.lock.acquire(blocking=False):
            try:
                self._free, self.free_nbytes, self._mark = {}, 0, self.lent_nbytes
            finally:
                self.returns.lock.release()
            self.returns.settle()
