"""The one allocator: aligned, padded, in huge pages where that pays."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ALIGNMENT = 64
PADDING = 1024
"""Bytes after every allocation that a tile may read."""
HUGE_FROM = 1 << 22
"""Bytes from which memory comes from the system in huge pages."""


def allocate(nbytes: int) -> Array:
    """Zeroed bytes, the first of them on a cache line's border."""
    size = nbytes + PADDING
    if size >= HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
        pages = mmap.mmap(-1, size)
        try:
            pages.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass
        return np.frombuffer(pages, np.uint8)[:nbytes]
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


def address(array: Array) -> int:
    """Where an array's first element lies."""
    where: int = array.__array_interface__["data"][0]
    return where
