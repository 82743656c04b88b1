"""Waiting of threads: spin for a bounded time, then park on a futex.

Waking a parked thread takes 50 to 200 microseconds if its CPU has gone idle; threads that wait for it would park in
turn, throughout the run. So a thread spins longer than a wake-up takes, unless another thread needs its CPU:

- If another thread of the same run is on its CPU, it parks soon: on wake-up it is given an idle CPU. Yielding instead
  would let both share one CPU for the whole run, since neither ever parks.
- Otherwise it yields once. If that takes long, another process wants the CPU, and it parks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce

from sardonyx.providers.cpu.language.context import Context
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.system import current_cpu, pause, sleep, ticks, wake, yield_cpu
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.machine.isa import KNOWS_CPU

SOON = 10
"""A thread spins for one tenth of its time before it checks who else needs its CPU; a yield may take as long."""


class TeamCpus:
    """The CPUs on which the threads of a run were last seen."""

    def __init__(self, k: Kernel, context: Buf, thread: Val) -> None:
        self.k, self.cpus, self.mine = k, context.at(Context.CPUS), thread % Context.CPU_WORDS

    def clear(self) -> None:
        """Forget them, before a run."""
        self.cpus.store(0, self.k.zeros(i64, Context.CPU_WORDS))

    def record(self) -> None:
        """Record this thread's CPU. With more threads than words, those that share a word do not see each other."""
        if KNOWS_CPU:
            self.cpus.store_atomic(self.mine, current_cpu(self.k), "monotonic")

    def shares_cpu(self) -> Val:
        """Whether another thread of the run was last seen on this thread's CPU."""
        here = current_cpu(self.k)
        seen = [self.cpus.load_atomic(i, "monotonic").eq(here) & self.mine.ne(i) for i in range(Context.CPU_WORDS)]
        return reduce(operator.or_, seen)


def wait_while(
    k: Kernel, at: Buf, holds: Callable[[Val], Val], spin: Val, sleepers: Buf, team_cpus: TeamCpus | None = None
) -> None:
    """Wait until the word no longer ``holds``: spin for ``spin`` ticks, then park. Given ``team_cpus``, park sooner if
    another thread needs the CPU.
    """
    start, limit, has_looked = ticks(k), k.var(spin), k.var(k.cast(spin.eq(0), i64))
    with k.loop_while(lambda: holds(at.load_atomic())):
        pause(k)
        passed = ticks(k) - start
        if team_cpus is not None and KNOWS_CPU:
            with k.when((passed * SOON > spin) & has_looked.get().eq(0)):
                has_looked.set(1)
                with k.either(team_cpus.shares_cpu()) as (crowded, alone):
                    with crowded:
                        limit.set(0)
                    with alone:
                        yield_cpu(k)
                        with k.when((ticks(k) - start - passed) * SOON > spin):
                            limit.set(0)
                        team_cpus.record()
        with k.when(passed > limit.get()):
            sleepers.add_atomic(0, 1, "seq_cst")
            seen = at.load_atomic(0, "seq_cst")
            with k.when(holds(seen)):
                sleep(k, at, seen)
            sleepers.add_atomic(0, -1)
            if team_cpus is not None:
                team_cpus.record()


def wake_waiters(k: Kernel, at: Buf, sleepers: Buf) -> None:
    """Wake the threads parked on a word that has changed."""
    with k.when(sleepers.load_atomic(0, "seq_cst") > 0):
        wake(k, at)
