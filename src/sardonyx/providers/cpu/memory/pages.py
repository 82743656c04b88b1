"""Pages of the system, and arrays over them whose lender is told when nobody has them any more."""

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
    """How far behind an array's own address numpy keeps that of its elements: right behind Python's object header."""
    probes = [np.zeros(n, np.uint8) for n in (1, 100, 10_000)]
    for offset in range(16, 65, 8):
        if all(_word_at(id(a) + offset).value == a.__array_interface__["data"][0] for a in probes):
            return offset
    raise RuntimeError("numpy's arrays are not laid out as its C interface says")


_word_at = ctypes.c_size_t.from_address
DATA_OFFSET = _data_offset()
TO_DTYPE, TO_FLAGS = 40, 48
"""How far behind its elements' address an array keeps its type and, in 32 bits, its flags..."""
C_CONTIGUOUS = 1
"""... of which this is one."""


def _check_layout() -> None:
    plain = np.zeros((2, 3), np.float32)
    for a, is_plain in ((plain, True), (plain.T, False), (np.zeros(4, np.int8), True), (np.zeros(4, "f8")[::2], False)):
        flags = ctypes.c_uint32.from_address(id(a) + DATA_OFFSET + TO_FLAGS).value
        if _word_at(id(a) + DATA_OFFSET + TO_DTYPE).value != id(a.dtype) or bool(flags & C_CONTIGUOUS) != is_plain:
            raise RuntimeError("numpy's arrays are not laid out as its C interface says")


_check_layout()


def address(array: Array) -> int:
    """Where an array's first element lies. Asking numpy takes four times as long, and 20 us when caches are cold."""
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
"""What threads and LLVM may take on their way. They have no way to say that there was less: one hangs, one aborts."""


def need_headroom() -> None:
    """``OutOfBudget`` where the system would not give this process what threads or LLVM need."""
    _mapped(HEADROOM_NBYTES).close()


class Pages:
    """Zeroed memory from the system, on a huge page's border; huge pages, if it fills one. It goes back to the system
    with the last array over it.

    A forked child has its own copy of what it changes. (What is shared with it, which is Python's default, has no huge
    pages besides.)
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.mapped = _mapped(nbytes + HUGE_PAGE)
        if nbytes >= HUGE_PAGE:
            with contextlib.suppress(OSError, AttributeError):
                self.mapped.madvise(mmap.MADV_HUGEPAGE)
        self.first = -address(np.frombuffer(self.mapped, np.uint8)) % HUGE_PAGE
        """Where in the mapping they begin."""

    def release(self, start: int, end: int) -> None:
        """Give back to the system what huge pages lie in this stretch; they are zero when they are touched again."""
        first, last = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
        if first < last and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError):
                self.mapped.madvise(mmap.MADV_DONTNEED, self.first + first, last - first)


class Loan(np.ndarray[Any, Any]):
    """Bytes of which a lender is told when the last array over them is gone; callers get a plain array over it."""

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
    """What was returned, and not yet put away. Arrays die anywhere, also in the middle of the lender's own work, in
    which no lock can be waited for: then whoever holds it puts away this one, too.
    """

    def __init__(self, put_away: Callable[[Any], None]) -> None:
        """``put_away`` is called with the lock held."""
        self.lock = forks.lock()
        self._put_away, self._waiting = put_away, deque[Any]()
        self.is_abandoned = False
        """In a forked child, which cannot know what another thread was about to change."""

    def add(self, what: Any) -> None:
        if not self.is_abandoned:
            self._waiting.append(what)
            self.settle()

    def settle(self) -> None:
        """Put away all that waits, unless somebody else does."""
        while self._waiting and self.lock.acquire(blocking=False):
            try:
                while self._waiting:
                    self._put_away(self._waiting.popleft())
            finally:
                self.lock.release()
