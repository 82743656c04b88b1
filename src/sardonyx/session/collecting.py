"""Python's garbage collector, which rests while a model is compiled.

What a build makes lives as long as the build, so the collector finds next to nothing, and searches all of it dozens of
times. Reference counts still free what is no longer used.

The first build of a process imports the compiler, which lives as long as the process. Its objects are counted as old
without a search: the collector would begin with one of all of them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from sardonyx import forks


class _Rests:
    """How many builds want the collector to rest, and whether it was on before the first of them."""

    def __init__(self) -> None:
        self._lock, self._count, self._was_on, self._is_first = forks.lock(), 0, False, True
        forks.at_fork(in_child=self.end)

    def begin(self) -> None:
        with self._lock:
            if not self._count:
                self._was_on = gc.isenabled()
                gc.disable()
            self._count += 1

    def leave(self) -> None:
        with self._lock:
            if self._count:  # 0 in a child that was forked in the middle of a build
                self._count -= 1
                self._resume()

    def end(self) -> None:
        """Of a child, which has none of its parent's threads."""
        self._count = 0
        self._resume()

    def _resume(self) -> None:
        if not self._count and self._was_on:
            self._was_on = False
            if self._is_first:
                _age()
            self._is_first = False
            gc.enable()


def _age() -> None:
    """Count all objects as old. Later builds must not: the collector would not know that there is more to search."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


_rests = _Rests()


@contextmanager
def resting() -> Iterator[None]:
    """Let the garbage collector rest, in all threads, until the last build in progress is over."""
    _rests.begin()
    try:
        yield
    finally:
        _rests.leave()
