"""How threads wait for each other: spinning for a bounded time, then asleep.

To wake a sleeper takes 50 microseconds where its CPU has gone idle, and some virtual machines take four times that,
during which those who wait for it fall asleep themselves, and so on through the run. So a thread spins for longer than
that. But then it may be in the way of the very thread that it waits for, if both are on one CPU: of two processes with
two threads each on two CPUs, each has two fifths of its runs with 200 microseconds of spinning, and an eighth with a
millisecond. So it gives way once on the way, which takes a moment where nobody else wants the CPU, and if it took long,
somebody did. (Giving way again and again let the scheduler believe that such a thread needs no CPU of its own: nets of
many steps took up to twice as long.)
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.providers.cpu.dsl import Kernel
from sardonyx.providers.cpu.system import give_way, pause, sleep, ticks, wake
from sardonyx.providers.cpu.values import Buf, Val

SHARE = 10
"""The part of its time that a thread spins before it gives way, and that this may take."""


def wait_while(k: Kernel, at: Buf, holds: Callable[[Val], Val], spin: Val, sleepers: Buf) -> None:
    """Until the word no longer ``holds``: spinning for ``spin`` ticks, then asleep."""
    start, limit, has_asked = ticks(k), k.var(spin), k.var(0)
    with k.loop_while(lambda: holds(at.load_atomic())):
        pause(k)
        passed = ticks(k) - start
        with k.when((passed * SHARE > spin) & has_asked.get().eq(0)):
            has_asked.set(1)
            give_way(k)
            with k.when((ticks(k) - start - passed) * SHARE > spin):
                limit.set(0)
        with k.when(passed > limit.get()):
            sleepers.add_atomic(0, 1, "seq_cst")
            seen = at.load_atomic(0, "seq_cst")
            with k.when(holds(seen)):
                sleep(k, at, seen)
            sleepers.add_atomic(0, -1)


def tell(k: Kernel, at: Buf, sleepers: Buf) -> None:
    """Wake those who sleep until the word changes, which it has."""
    with k.when(sleepers.load_atomic(0, "seq_cst") > 0):
        wake(k, at)
