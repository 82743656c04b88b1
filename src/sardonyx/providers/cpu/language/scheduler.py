"""The tile scheduler: static ranges with work stealing.

The tiles of a step are divided into one contiguous range per thread. A thread takes tiles of its own range first, so
the same rows fall to the same thread in every step and are found in its core's cache. It takes half of what is left at
a time, so that neighbouring tiles stay together and threads of unequal speed finish together. A thread whose range is
empty steals from the end of the next range: in later steps it then steals the same tiles. Stolen tiles are read from
another core's cache; where that is expensive, the last few tiles of a range are not stolen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.providers.cpu.language.context import COUNTERS, Context
from sardonyx.providers.cpu.language.values import Buf, Operand, Val, i64

if TYPE_CHECKING:
    from sardonyx.providers.cpu.language.writer import Kernel


ONE_FROM_END = 1 << 32
"""One word per range counts the tiles taken: from the front in its low half, from the end in its high half."""


class TileScheduler:
    """Gives a thread consecutive tiles to work on."""

    def __init__(self, k: Kernel, total: Val, own: Operand = 0) -> None:
        """``own``: how many tiles of a range are never stolen."""
        self.k, self.total, self.own, self._taken = k, total, k.value(own, i64), k.counter()
        self._passed = k.var(0)
        """Ranges that are empty."""

    def take(self) -> tuple[Val, Val]:
        """The next tiles as [first, last); empty when none are left. A single thread gets all of them at once."""
        k, first, last = self.k, self.k.var(0), self.k.var(0)
        with k.either(k.threads > 1) as (team, alone):
            with team, k.loop_while(lambda: last.get().eq(0) & (self._passed.get() < k.threads)):
                number = k.thread + self._passed.get()
                number = k.select(number < k.threads, number, number - k.threads)
                start, end = (self.total * n // k.threads for n in (number, number + 1))
                taken, is_own = self._taken.load_atomic(number), self._passed.get().eq(0)
                front, back = taken & (ONE_FROM_END - 1), taken // ONE_FROM_END
                left = end - start - front - back - k.select(is_own, 0, self.own)
                count = (left + 1) // 2
                with k.either(left > 0) as (some, none):
                    now = taken + k.select(is_own, count, count * ONE_FROM_END)
                    with some, k.when(self._taken.swap_atomic(number, taken, now)):
                        first.set(k.select(is_own, start + front, end - back - count))
                        last.set(first.get() + count)
                    with none:
                        self._passed += 1
            with alone:
                last.set(k.select(self._passed.get() > 0, 0, self.total))
                self._passed.set(1)
        return first.get(), last.get()


def clear_counters(k: Kernel, context: Buf, first: Val, last: Val) -> None:
    """Reset the counters of these steps: no tile is taken."""
    nbytes = context.load(Context.COUNTER_NBYTES)
    words = k.memory(context.load(Context.COUNTERS) + first * nbytes * COUNTERS, i64)
    lanes = max(k.lanes // 2, 1)
    with k.loop(0, (last - first) * nbytes * COUNTERS // 8, COUNTERS) as i:
        for j in range(0, COUNTERS, lanes):
            words.store(i + j, k.zeros(i64, lanes))
