"""How the threads of a team divide the tiles of a step.

The tiles are cut into one stretch for each thread, and a thread takes its own first: rows of an image and of a matrix
fall to the same thread in every step, so what it reads lies in the cache of the core that wrote it. A run is half of
what is left of a stretch, so that neighbours stay together and threads of unequal speed finish at once: one whose own
stretch is taken helps with the next, from its end, so that it does the same tiles again in later steps. What it needs
for that it has to fetch from the other's cache; where that is much, a few tiles are left to their own thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.providers.cpu.language.context import COUNTERS, Context
from sardonyx.providers.cpu.language.values import Buf, Operand, Val, i64

if TYPE_CHECKING:
    from sardonyx.providers.cpu.language.writer import Kernel


ONE_BEHIND = 1 << 32
"""A word for each stretch counts the tiles that are taken: those before by ones, and those behind by these."""


class Runs:
    """The runs of tiles that one thread takes."""

    def __init__(self, k: Kernel, total: Val, own: Operand = 0) -> None:
        """``own``: how many tiles of a stretch no other thread takes."""
        self.k, self.total, self.own, self._taken = k, total, k.value(own, i64), k.counter()
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
                taken, is_own = self._taken.load_atomic(number), self._passed.get().eq(0)
                front, back = taken & (ONE_BEHIND - 1), taken // ONE_BEHIND
                left = end - start - front - back - k.select(is_own, 0, self.own)
                many = (left + 1) // 2
                with k.either(left > 0) as (some, none):
                    now = taken + k.select(is_own, many, many * ONE_BEHIND)
                    with some, k.when(self._taken.swap_atomic(number, taken, now)):
                        first.set(k.select(is_own, start + front, end - back - many))
                        last.set(first.get() + many)
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
