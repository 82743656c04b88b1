"""How threads wait for each other: spinning for a bounded time, then asleep.

It is a short time. Who spins longer is in the way of the thread that it waits for, if both are on one CPU: of two
processes with two threads each on two CPUs, each has an eighth of the runs with a millisecond of spinning. But to wake
a sleeper takes 50 microseconds where its CPU has gone idle, and some virtual machines take several times that, during
which those who wait for it fall asleep themselves: there, a session's options can ask for more.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.providers.cpu.dsl import Kernel
from sardonyx.providers.cpu.system import pause, sleep, ticks, wake
from sardonyx.providers.cpu.values import Buf, Val


def wait_while(k: Kernel, at: Buf, holds: Callable[[Val], Val], spin: Val, sleepers: Buf) -> None:
    """Until the word no longer ``holds``: spinning for ``spin`` ticks, then asleep."""
    start = ticks(k)
    with k.loop_while(lambda: holds(at.load_atomic())):
        pause(k)
        with k.when(ticks(k) - start > spin):
            sleepers.add_atomic(0, 1, "seq_cst")
            seen = at.load_atomic(0, "seq_cst")
            with k.when(holds(seen)):
                sleep(k, at, seen)
            sleepers.add_atomic(0, -1)


def tell(k: Kernel, at: Buf, sleepers: Buf) -> None:
    """Wake those who sleep until the word changes, which it has."""
    with k.when(sleepers.load_atomic(0, "seq_cst") > 0):
        wake(k, at)
