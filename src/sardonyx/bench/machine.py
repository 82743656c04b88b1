"""The machine that figures belong to, and whether it is too busy for them to mean much."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sardonyx.records import Record

BUSY_SHARE, STOLEN_SHARE = 0.1, 0.02
"""Of the cores' time: what others may take, and what a hypervisor may, before times mean little."""
LOOK_S = 0.5
_STAT, _THROTTLED = Path("/proc/stat"), Path("/sys/fs/cgroup/cpu.stat")


def cores() -> list[int]:
    """The cores that this process may use, no more of them than its cgroup's quota pays for."""
    from sardonyx.providers.cpu.runtime.team import limit

    return sorted(os.sched_getaffinity(0))[: limit().threads]


def machine() -> dict[str, Any]:
    """What the figures belong to."""
    named: Sequence[str] = ()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        named = [line.split(":", 1)[1].strip() for line in lines if line.startswith(("model name", "CPU part"))]
    cpu = f"{platform.machine()} {named[0] if named else platform.processor()}".strip()
    return {"cpu": cpu, "cores": len(cores()), "system": f"{platform.system()} {platform.release()}"}


class Usage(Record):
    """Seconds of all cores since the machine's start."""

    at_s: float
    busy_s: float
    """Of whoever, steal left out."""
    own_s: float
    """Of this process and its children that have ended."""
    stolen_s: float
    """Of the hypervisor."""
    throttled_s: float
    """That threads of the cgroup waited for its quota."""

    @classmethod
    def now(cls) -> Usage:
        tick = os.sysconf("SC_CLK_TCK")
        try:
            user, nice, system, _idle, _wait, irq, softirq, steal = (
                int(n) / tick for n in _STAT.read_text(encoding="ascii").splitlines()[0].split()[1:9]
            )
        except (OSError, ValueError):
            user = nice = system = irq = softirq = steal = 0.0
        return cls(
            time.monotonic(), user + nice + system + irq + softirq, sum(os.times()[:4]), steal, _throttled_seconds()
        )


def _throttled_seconds() -> float:
    try:
        fields = dict(line.split() for line in _THROTTLED.read_text(encoding="ascii").splitlines())
        return int(fields.get("throttled_usec", 0)) / 1e6
    except (OSError, ValueError):
        return 0.0


def disturbances(before: Usage, after: Usage, threads: int) -> tuple[str, ...]:
    """Why times of so many threads, measured between two looks, mean little, a sentence for each reason."""
    available = len(cores())
    seconds = max(after.at_s - before.at_s, 1e-9)
    others = max(0.0, (after.busy_s - before.busy_s) - (after.own_s - before.own_s)) / seconds
    stolen = (after.stolen_s - before.stolen_s) / seconds
    throttled = (after.throttled_s - before.throttled_s) / seconds
    found = []
    if others > BUSY_SHARE * available:
        found.append(f"Other processes took {others:.1f} of {os.cpu_count() or available} cores.")
    if stolen > STOLEN_SHARE * available:
        found.append(f"The hypervisor took {100 * stolen / available:.0f} % of the cores' time.")
    if throttled > STOLEN_SHARE:
        found.append(f"The cgroup's quota stopped this process for {100 * throttled:.0f} % of the time.")
    if threads > available:
        found.append(f"{threads} threads are more than the {available} cores that this process may use.")
    return tuple(found)


def why_busy(threads: int, look_s: float = LOOK_S) -> tuple[str, ...]:
    """Why times that are measured now would mean little; takes a look of some tenths of a second."""
    before = Usage.now()
    time.sleep(look_s)
    return disturbances(before, Usage.now(), threads)
