"""Memory between two pages that nobody may touch: an access outside of it ends the process at once.

For debugging, by ``SARDONYX_GUARD_PAGES``: arenas, scratch memory, constants, copies of inputs, and outputs are
allocated here. Memory ends right in front of an inaccessible page (``end``), or begins right behind one (``front``).
The padding that other allocations have, which a tile may read, is left out. Arenas begin on a border of cache lines, as
kernels expect, so that up to 63 bytes lie between their end and the page; inputs and outputs of a run, which callers
may have put anywhere, end exactly there. What lies side by side in one arena, only address checks tell apart. Arrays
that a caller binds for outputs get copies of the results; states that grow in place stay where they are.
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
    """Where guarded memory touches a page; None where it is not asked for."""
    found = knobs.GUARD_PAGES.get()
    if found not in (None, END, FRONT):
        raise InvalidArgument(f"{knobs.GUARD_PAGES.name} is not known", expected=f"{END} or {FRONT}", got=found)
    return found


def allocate(nbytes: int, alignment: int, where: str) -> Array:
    """Zeroed bytes; the first of them is at a multiple of ``alignment``, a power of two of at most a page."""
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
    """An array that begins or ends exactly at a page that nobody may touch."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return allocate(nbytes, 1, where).view(dtype).reshape(shape)


def copies(arrays: Iterable[Array], where: str) -> list[Array]:
    """The same numbers in guarded memory."""
    made = []
    for a in arrays:
        copy = empty(a.shape, a.dtype, where)
        copy[...] = a
        made.append(copy)
    return made
