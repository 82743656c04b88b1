"""The allocator: aligned to cache lines, padded, in huge pages where that pays.

Large blocks come from slabs of huge pages (``slabs``), outputs from a pool (``output_pool``). A block is reused, or
returned to the system, when the last array over it is gone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import forks
from sardonyx.providers.cpu.memory import guard_pages
from sardonyx.providers.cpu.memory.output_pool import POOLED_FROM, Pool
from sardonyx.providers.cpu.memory.pages import ALIGNMENT, DATA_OFFSET, HUGE_PAGE, address, aligned, need_headroom
from sardonyx.providers.cpu.memory.slabs import Slabs

__all__ = [
    "DATA_OFFSET",
    "HUGE_PAGE",
    "PADDING",
    "POOLED_FROM",
    "Pool",
    "address",
    "aligned",
    "allocate",
    "need_headroom",
    "outputs",
    "reserve",
]

Array = np.ndarray[Any, Any]

PADDING = 1024
"""Bytes after every allocation that a kernel may read."""
SLAB_FROM = 1 << 15
"""Bytes from which a block is taken from a slab."""

_slabs = Slabs()
outputs = Pool()


def allocate(nbytes: int) -> Array:
    """Zeroed bytes, aligned to a cache line."""
    where = guard_pages.mode()
    if where is not None:
        return guard_pages.allocate(nbytes, ALIGNMENT, where)
    if nbytes >= SLAB_FROM:
        return _slabs.take(nbytes + PADDING)[:nbytes]
    return _on_a_line(np.zeros(nbytes + PADDING + ALIGNMENT, np.uint8), nbytes)


def reserve(nbytes: int) -> Array:
    """Bytes aligned to a cache line, which are not zeroed."""
    where = guard_pages.mode()
    if where is not None:
        return guard_pages.allocate(nbytes, ALIGNMENT, where)
    if nbytes >= SLAB_FROM:
        return _slabs.take(nbytes + PADDING, is_zeroed=False)[:nbytes]
    return _on_a_line(np.empty(nbytes + PADDING + ALIGNMENT, np.uint8), nbytes)


def _on_a_line(raw: Array, nbytes: int) -> Array:
    start = -address(raw) % ALIGNMENT
    return raw[start : start + nbytes]


def _forget() -> None:
    """A forked child does not touch its parent's slabs and pool: another thread may have been changing them."""
    global _slabs, outputs
    _slabs.returns.is_abandoned = outputs.returns.is_abandoned = True
    _slabs, outputs = Slabs(), Pool()


forks.at_fork(in_child=_forget)
