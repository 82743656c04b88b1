"""The one allocator: aligned, padded, in huge pages where that pays.

Large blocks lie in slabs of huge pages: weights of a model one behind the other, so that reading them never waits for
page tables, and the chip's own fetching ahead does not stop every 4 KiB. A slab lives as long as any of its blocks.

Outputs are taken from a pool: when the caller's last array over a block is gone, the block is used again, and its pages
need not be made anew by the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from typing import Any

import numpy as np

from sardonyx import forks

Array = np.ndarray[Any, Any]

ALIGNMENT = 64
PADDING = 1024
"""Bytes after every allocation that a tile may read."""
HUGE_PAGE = 1 << 21
SLAB_NBYTES = 1 << 25
SLAB_FROM = 1 << 15
"""Bytes from which a block lies in a slab."""
POOLED_FROM = 1 << 18
"""Bytes from which outputs are pooled: the C library gives larger blocks back to the system each time."""
POOL_NBYTES = 1 << 28
"""Bytes that the pool keeps for outputs to come."""


class _Slabs:
    """Blocks one behind the other, in the slab at hand or in one of their own."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._slab: Array | None = None
        self._used = 0

    def take(self, nbytes: int) -> Array:
        if nbytes > SLAB_NBYTES // 2:
            return _pages(nbytes)[:nbytes]
        with self._lock:
            if self._slab is None or self._used + nbytes > len(self._slab):
                self._slab, self._used = _pages(SLAB_NBYTES), 0
            start = self._used
            self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
            return self._slab[start : start + nbytes]


def _pages(nbytes: int) -> Array:
    """Zeroed bytes from the system, on a huge page's border; huge ones, if they fill one.

    A forked child has its own copy of what it changes. (What is shared with it, which is Python's default, has no huge
    pages besides.)
    """
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    pages = mmap.mmap(-1, nbytes + HUGE_PAGE, **private)
    if nbytes >= HUGE_PAGE:
        with contextlib.suppress(OSError, AttributeError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(pages, np.uint8)
    return whole[-address(whole) % HUGE_PAGE :]


def _data_offset() -> int:
    """How far behind an array's own address numpy keeps that of its elements: right behind Python's object header."""
    probes = [np.zeros(n, np.uint8) for n in (1, 100, 10_000)]
    for offset in range(16, 65, 8):
        if all(_word_at(id(a) + offset).value == a.__array_interface__["data"][0] for a in probes):
            return offset
    raise RuntimeError("numpy's arrays are not laid out as its C interface says")


_word_at = ctypes.c_size_t.from_address
DATA_OFFSET = _data_offset()


def address(array: Array) -> int:
    """Where an array's first element lies. Asking numpy takes four times as long, and 20 us when caches are cold."""
    return _word_at(id(array) + DATA_OFFSET).value


_slabs = _Slabs()


def allocate(nbytes: int) -> Array:
    """Zeroed bytes, the first of them on a cache line's border."""
    if nbytes >= SLAB_FROM:
        return _slabs.take(nbytes + PADDING)[:nbytes]
    raw = np.zeros(nbytes + PADDING + ALIGNMENT, np.uint8)
    start = -address(raw) % ALIGNMENT
    return raw[start : start + nbytes]


class Pool:
    """Blocks for outputs, by size."""

    def __init__(self, most_nbytes: int = POOL_NBYTES) -> None:
        self._most, self._kept = most_nbytes, 0
        self._free: dict[int, list[Array]] = {}
        self._lock = forks.rlock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Array:
        """An array over a block that nobody has; its elements are what they are."""
        size = -(-nbytes // 4096) * 4096
        with self._lock:
            blocks = self._free.get(size)
            block = blocks.pop() if blocks else None
            if block is not None:
                self._kept -= size
        if block is None:
            block = _pages(size)[:size]
        memory: Any = block
        owner: Any = (ctypes.c_char * size).from_buffer(memory)
        weakref.finalize(owner, self._give_back, size, block).atexit = False
        made: Array = np.frombuffer(owner, dtype, nbytes // dtype.itemsize).reshape(shape)
        return made

    def _give_back(self, size: int, block: Array) -> None:
        with self._lock:
            if self._kept + size <= self._most:
                self._kept += size
                self._free.setdefault(size, []).append(block)


outputs = Pool()


def _forget() -> None:
    """What another thread was about to change, a forked child leaves alone."""
    global _slabs, outputs
    _slabs, outputs = _Slabs(), Pool()


forks.at_fork(in_child=_forget)
