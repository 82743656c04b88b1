"""Allocations between inaccessible pages: an access out of bounds ends the process at once.

A debugging aid, switched on by ``SARDONYX_GUARD_PAGES``, for arenas, scratch, constants, copies of inputs, and outputs.
An allocation ends right before a guard page (``end``), or begins right after one (``front``). The padding of other
allocations is left out. Arenas are aligned to cache lines, as kernels expect, so up to 63 bytes may lie between their
end and the page; inputs and outputs end exactly at it. Overflows between two values of one arena are found by address
checks only. Output arrays that a caller binds receive copies of the results; states that grow in place are not guarded.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np

from sardonyx import knobs
from sardonyx.errors import Fail, InvalidArgument

Array = np.ndarray[Any, Any]
END, FRONT = "end", "front"
_NO_ACCESS = 0


def mode() -> str | None:
    """Where guarded allocations touch a guard page; None when guarding is off."""
    found = knobs.GUARD_PAGES.get()
    if found not in (None, END, FRONT):
        raise InvalidArgument(f"{knobs.GUARD_PAGES.name} is not known", expected=f"{END} or {FRONT}", got=found)
    return found


def allocate(nbytes: int, alignment: int, where: str) -> Array:
    """Zeroed bytes, aligned to ``alignment``, a power of two of at most a page."""
    page = mmap.PAGESIZE
    room = max(-(-nbytes // page), 1) * page
    pages = mmap.mmap(-1, room + 2 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(pages, np.uint8)
    start = whole.ctypes.data
    for at in (start, start + page + room):
        _close(at, page)
    first = page if where == FRONT else page + room - -(-nbytes // alignment) * alignment
    return whole[first : first + nbytes]


def _close(address: int, nbytes: int) -> None:
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if protect(address, nbytes, _NO_ACCESS):
        raise Fail("the system refuses a guard page", got=f"errno {ctypes.get_errno()}")


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> Array:
    """An array that begins or ends exactly at a guard page."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return allocate(nbytes, 1, where).view(dtype).reshape(shape)


def copies(arrays: Iterable[Array], where: str) -> list[Array]:
    """Copies of arrays in guarded memory."""
    made = []
    for a in arrays:
        copy = empty(a.shape, a.dtype, where)
        copy[...] = a
        made.append(copy)
    return made
