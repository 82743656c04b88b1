"""Fresh processes: import, session creation and first run, with an empty cache folder and a filled one; peak memory."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sardonyx.bench.engines import Contestant, Unavailable
from sardonyx.bench.process import WORKER, Failed, Process

FIGURES = ("import_s", "open_s", "first_s", "peak_mb")


def measure_starts(
    model: Path,
    feeds: Path,
    contestants: Sequence[Contestant],
    threads: int,
    times: int,
    seconds: float = math.inf,
    deadline: float = math.inf,
    clock: str = "perf_counter",
    worker: str = WORKER,
    **how: Any,
) -> dict[str, Any]:
    """Each contestant's cold and warm starts, taken in turns until the seconds are over, and their medians.

    A start is timed by a clock of Python's ``time``; ``process_time`` adds up what all threads computed. ``worker`` and
    ``how`` say who takes the feeds, and in what way.
    """
    _read_through(model)
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    absent: dict[str, str] = {}
    begin = time.monotonic()
    for taken in range(times):
        if taken and time.monotonic() - begin > seconds * taken / (taken + 1):
            times = taken
            break
        for contestant in contestants:
            if contestant.name in absent:
                continue
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
                try:
                    for kind in ("cold", "warm"):
                        fresh = Process(threads, contestant.isa, cache, deadline, worker)
                        figures = _start(fresh, model, feeds, contestant, clock, how)
                        found.setdefault(contestant.name, {}).setdefault(kind, []).append(figures)
                except (Unavailable, Failed) as why:
                    absent[contestant.name] = str(why)
    whole = {name: of for name, of in found.items() if name not in absent}
    medians = {
        name: {kind: {key: statistics.median(s[key] for s in starts) for key in FIGURES} for kind, starts in of.items()}
        for name, of in whole.items()
    }
    return {"threads": threads, "times": times, "contestants": medians, "starts": whole, "absent": absent}


def _start(
    fresh: Process, model: Path, feeds: Path, contestant: Contestant, clock: str, how: Mapping[str, Any]
) -> dict[str, float]:
    with fresh as process:
        opened = process.open(contestant, model, clock=clock)
        process.ask("feed", feeds=str(feeds), **how)
        first = process.ask("turn", runs=1)["seconds"][0]
        peak = process.ask("memory")["mb"]
    return {"import_s": opened["import_s"], "open_s": opened["open_s"], "first_s": first, "peak_mb": peak}


def _read_through(path: Path) -> None:
    """Have the file in the page cache, so that no start pays for the disk."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
