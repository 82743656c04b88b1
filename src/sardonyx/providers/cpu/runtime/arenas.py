"""Arenas: memory for the intermediates of runs, shared by all shapes of a session.

A session has one arena per concurrent run. An arena serves all shapes that fit, so a caller that runs many shapes needs
the memory of the largest. An arena that is too small is unmapped before a larger one is mapped. Pages stay mapped after
a run, for the next.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import forks
from sardonyx.plan.buckets import bucket
from sardonyx.providers.cpu.memory import allocator, guard_pages
from sardonyx.providers.cpu.memory.allocator import address, reserve

if TYPE_CHECKING:
    from sardonyx.providers.cpu.runtime.plans import Plan

Array = np.ndarray[Any, Any]

IDLE_NBYTES = 1 << 28
"""Bytes of idle arenas that a session keeps; the largest is kept in any case."""


class Arena:
    """The memory of a run: intermediates, scratch and counters.

    ``nbytes`` is -1 once the memory is released; frames may still refer to the arena.
    """

    __slots__ = ("_memory", "at", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self._memory: Array | None = reserve(nbytes)
        self.nbytes, self.at = nbytes, address(self._memory)

    def places(self, plan: Plan) -> tuple[int, int, int]:
        """Addresses of a plan's intermediates, scratch and counters."""
        return self.at, self.at + plan.scratch_at, self.at + plan.counters_at

    def release(self) -> None:
        self._memory, self.at, self.nbytes = None, 0, -1


class GuardedArena(Arena):
    """The arena of a single frame, with guard pages around intermediates, scratch and counters."""

    __slots__ = ("_blocks",)

    def __init__(self, nbytes: int) -> None:
        self._memory, self.nbytes, self.at = None, nbytes, 0
        self._blocks: list[Array] = []

    def places(self, plan: Plan) -> tuple[int, int, int]:
        sizes = plan.arena_nbytes, plan.scratch_nbytes * plan.threads, plan.run_nbytes - plan.counters_at
        self._blocks = [reserve(nbytes) for nbytes in sizes]
        intermediates, scratch, counters = map(address, self._blocks)
        return intermediates, scratch, counters

    def release(self) -> None:
        super().release()
        self._blocks = []


class Arenas:
    """The arenas of a session."""

    def __init__(self) -> None:
        self.idle: list[Arena] = []
        """Most recently used last. Runs pop from and append to it without a lock."""
        self.most_idle = 1
        """Up to this number, idle arenas cannot exceed the limit in bytes."""
        self._largest = 1
        self._is_guarded = guard_pages.mode() is not None
        self._lock = forks.lock()

    @property
    def idle_nbytes(self) -> int:
        return sum(arena.nbytes for arena in tuple(self.idle))

    def fitting(self, arena: Arena | None, nbytes: int) -> Arena:
        """An arena of at least ``nbytes`` bytes: this one, an idle one (this one is put back), or a new one."""
        if self._is_guarded:
            if arena is not None:
                arena.release()
            return GuardedArena(nbytes)
        if arena is not None and arena.nbytes >= nbytes:
            return arena
        with self._lock:
            for other in sorted(self.idle, key=lambda idle: idle.nbytes):
                if other.nbytes >= nbytes:
                    with contextlib.suppress(ValueError):  # another thread has just taken it
                        self.idle.remove(other)
                        if arena is not None:
                            self.idle.append(arena)
                        return other
            if arena is not None:
                arena.release()
            size = bucket(nbytes)[1]
            self._largest = max(self._largest, size)
            self.most_idle = max(IDLE_NBYTES // self._largest, 1)
        return Arena(size)

    def put_back(self, arena: Arena | None) -> None:
        """Return an arena whose run failed to start, unless its memory was released."""
        if arena is not None and arena.nbytes >= 0:
            self.idle.append(arena)

    def trim(self) -> None:
        """Release idle arenas beyond the limit in bytes; the largest stays."""
        with self._lock:
            kept = 0
            for arena in sorted(self.idle, key=lambda idle: idle.nbytes, reverse=True):
                if kept and kept + arena.nbytes > IDLE_NBYTES:
                    with contextlib.suppress(ValueError):
                        self.idle.remove(arena)
                        arena.release()
                else:
                    kept += arena.nbytes

    def release(self) -> None:
        """Release all idle arenas and pooled outputs."""
        with contextlib.suppress(IndexError):
            while True:
                self.idle.pop().release()
        allocator.outputs.release()

    def __del__(self) -> None:
        if sys is not None and not sys.is_finalizing():
            self.release()
