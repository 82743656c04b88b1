"""How threads wait for each other: spinning for a bounded time, then asleep.

To wake a sleeper takes 50 microseconds where its CPU has gone idle, and some virtual machines take four times that,
during which those who wait for it fall asleep themselves, and so on through the run. So a thread of a run spins for
longer than that, where nobody minds:

- If another thread of its run is on its CPU, it is in the way, and sleeps soon: who is woken is given an idle CPU. To
  give way instead would let both go on by turns, at half the speed, since neither ever sleeps.
- Else somebody else may want its CPU. It gives way once, which takes a moment where nobody does, and if it took long,
  it sleeps. (Of two processes with two threads each on two CPUs, each has 405 runs a second if threads spin for 200
  microseconds whatever happens, 1000 with 20, and as many so.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce

from sardonyx.providers.cpu.language.context import Context
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.system import current_cpu, give_way, pause, sleep, ticks, wake
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.machine.isa import KNOWS_CPU

SOON = 10
"""Parts of its time: a thread spins for one before it looks who else wants its CPU, and giving way may take another."""


class Crew:
    """The threads of a run, as one of them sees the others."""

    def __init__(self, k: Kernel, context: Buf, thread: Val) -> None:
        self.k, self.cpus, self.mine = k, context.at(Context.CPUS), thread % Context.CPU_WORDS

    def gather(self) -> None:
        """Before they arrive, nothing is known of them."""
        self.cpus.store(0, self.k.zeros(i64, Context.CPU_WORDS))

    def arrive(self) -> None:
        """Tell the others which CPU this thread is on. More threads than there are words share them, and do not see
        those that have the same.
        """
        if KNOWS_CPU:
            self.cpus.store_atomic(self.mine, current_cpu(self.k), "monotonic")

    def is_crowded(self) -> Val:
        """Whether another was last seen on this CPU."""
        here = current_cpu(self.k)
        seen = [self.cpus.load_atomic(i, "monotonic").eq(here) & self.mine.ne(i) for i in range(Context.CPU_WORDS)]
        return reduce(operator.or_, seen)


def wait_while(
    k: Kernel, at: Buf, holds: Callable[[Val], Val], spin: Val, sleepers: Buf, crew: Crew | None = None
) -> None:
    """Until the word no longer ``holds``: spinning for ``spin`` ticks, then asleep. Who waits for a ``crew`` sleeps
    sooner if somebody else wants its CPU.
    """
    start, limit, has_looked = ticks(k), k.var(spin), k.var(k.cast(spin.eq(0), i64))
    with k.loop_while(lambda: holds(at.load_atomic())):
        pause(k)
        passed = ticks(k) - start
        if crew is not None and KNOWS_CPU:
            with k.when((passed * SOON > spin) & has_looked.get().eq(0)):
                has_looked.set(1)
                with k.either(crew.is_crowded()) as (crowded, alone):
                    with crowded:
                        limit.set(0)
                    with alone:
                        give_way(k)
                        with k.when((ticks(k) - start - passed) * SOON > spin):
                            limit.set(0)
                        crew.arrive()
        with k.when(passed > limit.get()):
            sleepers.add_atomic(0, 1, "seq_cst")
            seen = at.load_atomic(0, "seq_cst")
            with k.when(holds(seen)):
                sleep(k, at, seen)
            sleepers.add_atomic(0, -1)
            if crew is not None:
                crew.arrive()


def tell(k: Kernel, at: Buf, sleepers: Buf) -> None:
    """Wake those who sleep until the word changes, which it has."""
    with k.when(sleepers.load_atomic(0, "seq_cst") > 0):
        wake(k, at)
