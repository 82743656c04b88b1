"""How threads wait for each other: spinning for a bounded time, then asleep.

To wake a sleeper takes 50 microseconds where its CPU has gone idle, and several times that in a virtual machine. Those
who wait for it meanwhile would fall asleep themselves, and so on: with 20 microseconds of spinning, a small model took
three times as long for a hundred runs after a pause. So a thread spins longer than it takes to wake one. But soon it
lets threads go first that are ready to run on its CPU: of two processes with two threads each on two CPUs, each has an
eighth of the runs without that, and half with it.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.providers.cpu.dsl import Kernel
from sardonyx.providers.cpu.system import give_way, pause, sleep, ticks, wake
from sardonyx.providers.cpu.values import Buf, Val

ALONE = 5
"""The part of its time, as a power of a half, that a thread spins before it lets others go first."""


def wait_while(k: Kernel, at: Buf, holds: Callable[[Val], Val], spin: Val, sleepers: Buf) -> None:
    """Until the word no longer ``holds``: spinning for ``spin`` ticks, then asleep."""
    start = ticks(k)
    with k.loop_while(lambda: holds(at.load_atomic())):
        pause(k)
        passed = ticks(k) - start
        with k.when(passed > spin >> ALONE):
            give_way(k)
        with k.when(passed > spin):
            sleepers.add_atomic(0, 1, "seq_cst")
            seen = at.load_atomic(0, "seq_cst")
            with k.when(holds(seen)):
                sleep(k, at, seen)
            sleepers.add_atomic(0, -1)


def tell(k: Kernel, at: Buf, sleepers: Buf) -> None:
    """Wake those who sleep until the word changes, which it has."""
    with k.when(sleepers.load_atomic(0, "seq_cst") > 0):
        wake(k, at)
