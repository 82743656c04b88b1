"""Which cores are left alone at the moment.

On a virtual machine somebody else may have the other hardware thread of a core, for milliseconds or for microseconds.
Both have ten tile registers together then, so that products of tiles which are loaded from L1 take up to four times as
long as products in registers; on a core of one's own they take as long. And two of one's own "cores" may be the
hardware threads of one, whatever the machine says of itself. Some tile units multiply at two fifths of the rate of
others, for seconds, while vectors are as fast as ever.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from statistics import median
from typing import Any

from sardonyx.dtypes import bf16, f32
from sardonyx.providers.cpu.codegen.jit import linker
from sardonyx.providers.cpu.codegen.machine_limits import multiply_tiles, tiles_of_numbers
from sardonyx.providers.cpu.language.amx import NBYTES, Tiles
from sardonyx.providers.cpu.language.dsl import Kernel, function
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.machine.isa import Isa, current
from sardonyx.providers.cpu.memory.allocator import address, allocate


@function(x=(bf16,), sums=(f32,), rounds=i64)
def from_l1(k: Kernel, x: Buf, sums: Buf, rounds: Val) -> None:
    """``limits.multiply_tiles``, with tiles that are loaded in every round."""
    tiles = Tiles(k)
    tiles.configure()
    with k.loop(0, rounds):
        for t in range(4, 8):
            tiles.load(t, x.at((t - 4) * NBYTES // 2))
        for i in range(4):
            tiles.dot_bf16(i, 4 + i // 2, 6 + i % 2)
    for i in range(4):
        tiles.store(i, sums.at(i * NBYTES // 4))
    tiles.release()


class Probe:
    """Looks at the core at hand: what its tile unit can do at this moment, and whether somebody else uses it."""

    DOTS, DOT_FLOPS = 4, 2 * 16 * 16 * 32
    """Products of a round, and operations of a product."""
    LONG, SHORT = 4000, 240
    """Rounds that tell a rate, and those that tell two rates apart."""
    LOOKS = 40
    """That tell how quiet a core is."""
    QUIET = 0.8
    """Of the rate of products in registers, which those from L1 reach on a quiet core."""

    def __init__(self, isa: Isa, *, is_small: bool = False) -> None:
        self._long, self._short = (8, 4) if is_small else (self.LONG, self.SHORT)
        self._tiles = allocate(4 * NBYTES).view(bf16.numpy)
        self._tiles[:], self._sums = tiles_of_numbers(), allocate(4 * NBYTES)
        data = address(self._tiles), address(self._sums)
        self._registers, self._l1 = (
            partial(ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(linker.address(spec, isa, checked=False)), *data)
            for spec in (multiply_tiles(), from_l1())
        )

    def peak_flops(self) -> float:
        seconds = min(seconds_of(partial(self._registers, self._long)) for _ in range(2))
        return self._long * self.DOTS * self.DOT_FLOPS / seconds

    def is_quiet(self) -> bool:
        """Takes a few microseconds."""
        registers = seconds_of(partial(self._registers, self._short))
        return registers > self.QUIET * seconds_of(partial(self._l1, self._short))

    def quietest(self, allowed: Iterable[int]) -> list[int]:
        """These cores, those first whose products from L1 take the least time. Leaves the calling thread on the last of
        them.
        """
        took = {}
        for core in allowed:
            os.sched_setaffinity(0, {core})
            took[core] = median(seconds_of(partial(self._l1, self._short)) for _ in range(self.LOOKS))
        return sorted(took, key=took.__getitem__)

    def team(self, allowed: Sequence[int], count: int) -> list[int]:
        """So many of these cores, or all, each the quietest while those before it multiply."""
        found: list[int] = []
        for _ in range(min(count, len(allowed))):
            with self._at_work(found):
                found.append(self.quietest(core for core in allowed if core not in found)[0])
        return found

    @contextmanager
    def _at_work(self, cores: Sequence[int]) -> Iterator[None]:
        """These multiply meanwhile, for so long at a time that Python leaves the caller alone."""
        done, begun = threading.Event(), threading.Barrier(len(cores) + 1)

        def multiply(core: int) -> None:
            os.sched_setaffinity(0, {core})
            self._registers(self._long)
            begun.wait()
            while not done.is_set():
                self._registers(10 * self._long)

        team = [threading.Thread(target=multiply, args=(core,)) for core in cores]
        for thread in team:
            thread.start()
        begun.wait()
        try:
            yield
        finally:
            done.set()
            for thread in team:
                thread.join()


def seconds_of(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@cache
def probe_here() -> Probe | None:
    """That of the chip at hand; None where there are no tiles to look at."""
    isa = current()
    return Probe(isa) if isa.amx and not isa.is_emulated else None
