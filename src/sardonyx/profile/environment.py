"""What surrounds a session: CPUs, the container's limits, and variables that size the thread pools of libraries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from sardonyx.records import Record

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Environment(Record):
    """The machine as a process sees it."""

    cpus: int
    """That the process may use."""
    total_cpus: int
    quota: float | None = None
    """CPUs' worth of time that the container has; None if it is not limited."""
    memory_nbytes: int | None = None
    """What the container may take; None if it is not limited."""
    periods: int = 0
    throttled_periods: int = 0
    """Periods of the quota in which it was used up, since the container started."""
    thread_variables: Mapping[str, int] = field(default_factory=dict)

    @property
    def cores(self) -> int:
        """Threads that can run at once, by mask and quota."""
        return self.cpus if self.quota is None else max(1, min(self.cpus, -int(-self.quota // 1)))


def environment(
    cgroup: str | None = None, variables: Mapping[str, str] | None = None, cpus: int | None = None
) -> Environment:
    """Read it from the system; ``cgroup`` is the folder of the process's control group, in either version."""
    from sardonyx.providers.cpu.runtime import team

    cgroup = team.CGROUP if cgroup is None else cgroup
    variables = os.environ if variables is None else variables
    total = os.cpu_count() or 1
    mask = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    folder = Path(cgroup)
    stat = _words(folder / "cpu.stat") or _words(folder / "cpu" / "cpu.stat")
    memory = _number(folder / "memory.max") or _number(folder / "memory" / "memory.limit_in_bytes")
    return Environment(
        cpus or mask,
        max(total, cpus or 0),
        team.quota(cgroup),
        memory if memory is not None and memory < 1 << 60 else None,
        stat.get("nr_periods", 0),
        stat.get("nr_throttled", 0),
        {name: int(text) for name in THREAD_VARIABLES if (text := variables.get(name, "")).isdecimal()},
    )


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _words(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
