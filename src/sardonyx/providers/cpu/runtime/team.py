"""The thread team: workers that wait, in native code, for plans to run.

One team serves every session of the process that asks for the same settings. It is never larger than the CPU mask and
the cgroup's quota allow; how its size came about can be read from ``Limit.reason``.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from sardonyx import forks
from sardonyx.errors import no_more_threads
from sardonyx.providers.cpu.codegen.jit import linker
from sardonyx.providers.cpu.codegen.object_loader import Address
from sardonyx.providers.cpu.language.context import MAX_WORKERS, Context, Mailbox
from sardonyx.providers.cpu.machine.isa import KNOWS_CPU
from sardonyx.providers.cpu.memory.allocator import DATA_OFFSET, address, allocate, need_headroom
from sardonyx.records import Record

Array = np.ndarray[Any, Any]

SPIN_US, IDLE_US = 200 if KNOWS_CPU else 20, 20
"""Microseconds that a thread spins before it parks (``spin_park``). In a run: longer than waking a parked thread takes,
unless the thread cannot tell whether another needs its CPU. Between runs: as long as a busy caller takes to come back.
"""


class Limit(Record):
    """How many threads may run at once, and why."""

    threads: int
    reason: str


def limit() -> Limit:
    """What the CPU mask and the cgroup's quota leave of the machine."""
    mask = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cpus = quota()
    whole = None if cpus is None else math.ceil(cpus)
    if whole is not None and whole < mask:
        return Limit(max(1, whole), f"the cgroup's quota is {whole} of {mask} CPUs")
    total = os.cpu_count() or mask
    return Limit(
        mask, f"the process may use {mask} of {total} CPUs" if mask < total else f"the machine has {mask} CPUs"
    )


CGROUP = "/sys/fs/cgroup"
"""The folder of this process's control group."""


def quota(cgroup: str | None = None) -> float | None:
    """CPUs of the cgroup's quota; None where there is none."""
    cgroup = CGROUP if cgroup is None else cgroup
    try:
        limit, period = _text(f"{cgroup}/cpu.max").split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    try:
        limited = int(_text(f"{cgroup}/cpu/cpu.cfs_quota_us"))
        return None if limited <= 0 else limited / int(_text(f"{cgroup}/cpu/cpu.cfs_period_us"))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


@cache
def _began() -> tuple[int, float]:
    """Ticks and seconds at the first look."""
    return now(), time.perf_counter()


@cache
def ticks_per_second() -> float:
    """The rate of the tick counter, measured since the first look."""
    start, began = _began()
    while time.perf_counter() - began < 2e-3:
        pass
    end, ended = now(), time.perf_counter()
    return (end - start) / (ended - began)


def _ticks(microseconds: int) -> int:
    return int(microseconds * 1e-6 * ticks_per_second())


def now() -> int:
    """The tick counter that kernels read."""
    out = ctypes.c_int64()
    _reader()(ctypes.addressof(out))
    return out.value


@cache
def _reader() -> Callable[[int], None]:
    """Native functions stay loaded for the life of the process."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(linker.native("language.system", "read_ticks"))


def natives(*, baseline: bool = False) -> list[Callable[[], Address]]:
    """Tasks that compile the native functions of a team."""
    native = partial(linker.native, baseline=baseline)
    return [
        partial(native, "runtime.executor", "run", data_offset=DATA_OFFSET),
        partial(native, "runtime.executor", "execute"),
        partial(native, "runtime.executor", "worker"),
        partial(native, "language.system", "read_ticks"),
    ]


class Settings(Record):
    """What makes two sessions share a team."""

    spin_us: int = SPIN_US
    """Spinning in a run."""
    idle_us: int = IDLE_US
    """Spinning of a worker between runs."""
    affinities: tuple[tuple[int, ...], ...] = ()
    """CPUs of each worker."""


class Team:
    """Workers, started when a run first asks for them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._mailboxes = allocate((1 + MAX_WORKERS) * Mailbox.WORDS * 8).view(np.int64)
        self.at = address(self._mailboxes)
        self._mailboxes[Mailbox.EXECUTE :: Mailbox.WORDS] = linker.native("runtime.executor", "execute")
        self._count = 0
        self.ids: dict[int, int] = {}
        """The system's number of each worker's thread."""
        self._lock = forks.lock()
        _began()
        self.execute = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
            linker.native("runtime.executor", "run", data_offset=DATA_OFFSET)
        )
        """Execute the step table of the context at an address; the GIL is released."""

    @forks.cached_property
    def spin(self) -> int:
        """Ticks that a thread of a run spins before it parks."""
        return _ticks(self.settings.spin_us)

    def workers(self, threads: int) -> int:
        """The number of workers for a run of ``threads`` threads, the caller's included; starts missing ones."""
        if threads - 1 > self._count:
            self._grow(min(threads - 1, MAX_WORKERS))
        return threads - 1

    def _grow(self, count: int) -> None:
        live = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(linker.native("runtime.executor", "worker"))
        idle = _ticks(self.settings.idle_us)
        with self._lock:
            for i in range(self._count, count):
                need_headroom()
                name = f"sardonyx-{i + 1}"
                try:
                    threading.Thread(target=self._live, args=(i, live, idle), name=name, daemon=True).start()
                except RuntimeError as error:
                    raise no_more_threads(error) from None
                self._count = self._mailboxes[Mailbox.COUNT] = i + 1

    def _live(self, i: int, live: Callable[[int, int], None], idle: int) -> None:
        self.ids[i] = threading.get_native_id()
        affinities = self.settings.affinities
        if i < len(affinities) and affinities[i] and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, affinities[i])
        live(self.at + (1 + i) * Mailbox.WORDS * 8, idle)


_teams: dict[Settings, Team] = {}
_lock = forks.lock()


def team_for(settings: Settings) -> Team:
    """The process's team of these settings."""
    found = _teams.get(settings)
    if found is None:
        with _lock:
            found = _teams.get(settings) or _teams.setdefault(settings, Team(settings))
    return found


generation = 0
"""Forks since the first process. A team of another generation has no threads."""


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global generation
    _teams.clear()
    generation += 1


forks.at_fork(in_child=_forget)


def new_context(team: Team, values: int = 0) -> Any:
    """Zeroed slots of a run's context, followed by room for values."""
    slots = allocate((Context.SLOTS + values) * 8).view(np.int64)
    slots[Context.SPIN] = team.spin
    return slots
