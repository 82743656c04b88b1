"""Pages of the system, and arrays over them whose owner is notified when the last array is gone."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx import forks
from sardonyx.errors import OutOfBudget

Array = np.ndarray[Any, Any]

ALIGNMENT = 64
HUGE_PAGE = 1 << 21


def _data_offset() -> int:
    """The offset of the data pointer in numpy's array object."""
    probes = [np.zeros(n, np.uint8) for n in (1, 100, 10_000)]
    for offset in range(16, 65, 8):
        if all(_word_at(id(a) + offset).value == a.__array_interface__["data"][0] for a in probes):
            return offset
    raise RuntimeError("numpy's arrays are not laid out as its C interface says")


_word_at = ctypes.c_size_t.from_address
DATA_OFFSET = _data_offset()
TO_DTYPE, TO_FLAGS = 40, 48
"""Offsets of an array's dtype and 32-bit flags from its data pointer, in numpy's array object."""
C_CONTIGUOUS = 1
"""The flag of contiguous arrays."""


def _check_layout() -> None:
    plain = np.zeros((2, 3), np.float32)
    for a, is_contiguous in (
        (plain, True),
        (plain.T, False),
        (np.zeros(4, np.int8), True),
        (np.zeros(4, "f8")[::2], False),
    ):
        flags = ctypes.c_uint32.from_address(id(a) + DATA_OFFSET + TO_FLAGS).value
        if _word_at(id(a) + DATA_OFFSET + TO_DTYPE).value != id(a.dtype) or bool(flags & C_CONTIGUOUS) != is_contiguous:
            raise RuntimeError("numpy's arrays are not laid out as its C interface says")


_check_layout()


def address(array: Array) -> int:
    """The address of the first element. Asking numpy takes several times as long."""
    return _word_at(id(array) + DATA_OFFSET).value


def aligned(nbytes: int) -> int:
    """Rounded up to whole cache lines."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _mapped(nbytes: int) -> mmap.mmap:
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        return mmap.mmap(-1, nbytes, **private)
    except (OSError, OverflowError):
        raise OutOfBudget(
            "the system has no memory left for this process",
            expected=f"{nbytes} bytes",
            hint="use smaller inputs, or raise the limit of the process",
        ) from None


HEADROOM_NBYTES = 48 << 20
"""Bytes that must be free before threads start or LLVM compiles: neither reports a failed allocation."""


def need_headroom() -> None:
    """Raises ``OutOfBudget`` if the system would not give this process what threads or LLVM need."""
    _mapped(HEADROOM_NBYTES).close()


class Pages:
    """Zeroed memory from the system, aligned to huge pages and backed by them if it fills one. It is unmapped with the
    last array over it.

    The mapping is private: a forked child gets a copy of what it changes, and shared mappings would not have huge
    pages.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.mapped = _mapped(nbytes + HUGE_PAGE)
        if nbytes >= HUGE_PAGE:
            with contextlib.suppress(OSError, AttributeError):
                self.mapped.madvise(mmap.MADV_HUGEPAGE)
        self.first = -address(np.frombuffer(self.mapped, np.uint8)) % HUGE_PAGE
        """The offset in the mapping."""

    def release(self, start: int, end: int) -> None:
        """Return whole huge pages of a range to the system; they read as zero afterwards."""
        first, last = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
        if first < last and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError):
                self.mapped.madvise(mmap.MADV_DONTNEED, self.first + first, last - first)


class Loan(np.ndarray[Any, Any]):
    """Bytes whose owner is notified when the last array over them is gone; callers get a plain array over it."""

    on_return: Callable[[], None] | None = None

    @classmethod
    def over(cls, pages: Pages, start: int, nbytes: int, on_return: Callable[[], None]) -> Loan:
        made: Loan = cls((nbytes,), np.uint8, pages.mapped, pages.first + start)
        made.on_return = on_return
        return made

    def __del__(self) -> None:
        if self.on_return is not None:
            self.on_return()


class Returns:
    """Returned blocks that are not yet put away. Arrays die anywhere, also inside the owner's own methods, where its
    lock cannot be waited for: then the holder of the lock puts them away."""

    def __init__(self, put_away: Callable[[Any], None]) -> None:
        """``put_away`` is called with the lock held."""
        self.lock = forks.lock()
        self._put_away, self._waiting = put_away, deque[Any]()
        self.is_abandoned = False
        """Set in a forked child, which must not touch what another thread may have been changing."""

    def add(self, what: Any) -> None:
        if not self.is_abandoned:
            self._waiting.append(what)
            self.settle()

    def settle(self) -> None:
        """Put away all returned blocks, unless another thread is doing it."""
        while self._waiting and self.lock.acquire(blocking=False):
            try:
                while self._waiting:
                    self._put_away(self._waiting.popleft())
            finally:
                self.lock.release()
