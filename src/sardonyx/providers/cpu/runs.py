"""How the threads of a team divide the tiles of a step.

The tiles are cut into one stretch for each thread, and a thread takes its own first: rows of an image and of a matrix
fall to the same thread in every step, so what it reads lies in the cache of the core that wrote it. A run is half of
what is left of a stretch, so that neighbours stay together and threads of unequal speed finish at once: one whose own
stretch is taken helps with the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.providers.cpu.context import COUNTERS, Context
from sardonyx.providers.cpu.values import Buf, Val, i64

if TYPE_CHECKING:
    from sardonyx.providers.cpu.writer import Kernel


class Runs:
    """The runs of tiles that one thread takes."""

    def __init__(self, k: Kernel, total: Val) -> None:
        self.k, self.total, self._taken = k, total, k.counter()
        self._passed = k.var(0)
        """Stretches of which nothing is left."""

    def take(self) -> tuple[Val, Val]:
        """The next run and where it ends; an empty one when all are taken. Alone, a thread takes all at once."""
        k, first, last = self.k, self.k.var(0), self.k.var(0)
        with k.either(k.threads > 1) as (team, alone):
            with team, k.loop_while(lambda: last.get().eq(0) & (self._passed.get() < k.threads)):
                number = k.thread + self._passed.get()
                number = k.select(number < k.threads, number, number - k.threads)
                start, end = (self.total * n // k.threads for n in (number, number + 1))
                taken = self._taken.load_atomic(number)
                left = end - start - taken
                many = (left + 1) // 2
                with k.either(left > 0) as (some, none):
                    with some, k.when(self._taken.swap_atomic(number, taken, taken + many)):
                        first.set(start + taken)
                        last.set(start + taken + many)
                    with none:
                        self._passed += 1
            with alone:
                last.set(k.select(self._passed.get() > 0, 0, self.total))
                self._passed.set(1)
        return first.get(), last.get()


def clear_counters(k: Kernel, context: Buf, first: Val, last: Val) -> None:
    """Nothing of these steps is taken."""
    nbytes = context.load(Context.COUNTER_NBYTES)
    words = k.memory(context.load(Context.COUNTERS) + first * nbytes * COUNTERS, i64)
    lanes = max(k.lanes // 2, 1)
    with k.loop(0, (last - first) * nbytes * COUNTERS // 8, COUNTERS) as i:
        for j in range(0, COUNTERS, lanes):
            words.store(i + j, k.zeros(i64, lanes))
