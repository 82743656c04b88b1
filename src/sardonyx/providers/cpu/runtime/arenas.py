"""Arenas: the memory that runs take turns in, whatever their shapes.

A session has as many as it has runs at a time. The largest serves all smaller shapes, so one caller's runs of any
number of shapes take what the largest of them does. An arena that is too small for a run is unmapped before a larger
one is mapped. A run that is over leaves its pages as they are, for the next.
"""

from __future__ import annotations

import contextlib
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
"""Bytes of idle arenas that a session keeps, beside the largest of them in any case."""


class Arena:
    """What frames know of it may outlive its memory: then it has less than no bytes."""

    __slots__ = ("_memory", "at", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self._memory: Array | None = reserve(nbytes)
        self.nbytes, self.at = nbytes, address(self._memory)

    def places(self, plan: Plan) -> tuple[int, int, int]:
        """Where a run of a plan has its intermediates, its scratch and its counters."""
        return self.at, self.at + plan.scratch_at, self.at + plan.counters_at

    def release(self) -> None:
        self._memory, self.at, self.nbytes = None, 0, -1


class GuardedArena(Arena):
    """One for a single frame: intermediates, scratch and counters each lie between guard pages."""

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
    """Those of a session."""

    def __init__(self) -> None:
        self.idle: list[Arena] = []
        """The one used last comes last. Runs take it from here, and put it back, without a lock."""
        self.most_idle = 1
        """More of them than this may be too many bytes."""
        self._largest = 1
        self._is_guarded = guard_pages.mode() is not None
        self._lock = forks.lock()

    @property
    def idle_nbytes(self) -> int:
        return sum(arena.nbytes for arena in tuple(self.idle))

    def fitting(self, arena: Arena | None, nbytes: int) -> Arena:
        """One of so many bytes for a run that has this one, which goes back if it is not the one."""
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
        """What a run was given that did not come to be, if it still has its memory."""
        if arena is not None and arena.nbytes >= 0:
            self.idle.append(arena)

    def trim(self) -> None:
        """Have idle arenas keep to their bytes, the largest staying."""
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
        """Give back to the system what no run has."""
        with contextlib.suppress(IndexError):
            while True:
                self.idle.pop().release()
        allocator.outputs.release()

    def __del__(self) -> None:
        self.release()
