"""One case timed: every contestant in its own process, all of them in every round, in an order that rotates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.compare.cases import Case, Files
from sardonyx.bench.arrays import stored
from sardonyx.bench.engines import Contestant, Unavailable
from sardonyx.bench.limits import limit_seconds
from sardonyx.bench.machine import cores
from sardonyx.bench.process import Failed, Process
from sardonyx.bench.results import plain
from sardonyx.bench.rounds import interleave, places
from sardonyx.bench.statistics import paired_ratio, spread

GAUGED = 3
"""The machine's limits are measured in every third round."""
MOST_RUNS = 2000
WORKER = "benchmarks.compare.worker"
Gauge = Callable[[], dict[str, Any]]
WARM_RUNS, WARM_S = 12, 0.5
"""So many runs come before the rounds, or as many as fit into half a second: engines learn from their first ones."""


@dataclass(frozen=True)
class Settings:
    """What the rounds of a case have in common."""

    cache: str
    threads: int
    rounds: int
    seconds: float
    deadline: float = math.inf
    """By the monotonic clock; who is running then has failed."""


def measure(case: Case, files: Files, contestants: Sequence[Contestant], settings: Settings) -> dict[str, Any]:
    """Times of each round, errors, limits and ratios of one case.

    Who is not to be had on this machine is under `absent`; who took part and failed, under `failed`.
    """
    cost = {name: float(v) for name, v in stored(files.reference, "cost").items()} if files.reference else {}
    result: dict[str, Any] = {"threads": settings.threads, "cost": cost, "contestants": {}, "absent": {}, "failed": {}}
    with ExitStack() as stack:
        processes = {c: stack.enter_context(_process(c, settings)) for c in contestants}
        with ThreadPoolExecutor() as pool:
            opening = {c: pool.submit(p.open, c, files.model) for c, p in processes.items()}
        for contestant in contestants:
            try:
                about = opening[contestant].result()
                about |= processes[contestant].ask("about")
                about |= _ready(processes[contestant], case, files)
            except (Unavailable, Failed) as why:
                result["absent" if isinstance(why, Unavailable) else "failed"][contestant.name] = str(why)
                del processes[contestant]
            else:
                about |= {"precision": contestant.precision, "rounds": []}
                result["contestants"][contestant.name] = about
        _rounds(case, processes, result, settings, _gauge(stack, cost, settings.threads) if cost else None)
    taking_part = [c for c in contestants if c.name in result["contestants"]]
    return result | _derived(case, taking_part, result)


def _gauge(stack: ExitStack, cost: dict[str, float], threads: int) -> Gauge:
    """Measures what the machine can do for a case, in a process of its own."""
    process = stack.enter_context(Process(threads))
    nbytes, moved = int(4 * cost["weights"]), int(cost.get("moved", 0))
    return lambda: process.ask("limits", threads=threads, nbytes=nbytes, moved=moved)


def _process(contestant: Contestant, settings: Settings) -> Process:
    """Only ours are given the cache folder: they share it safely, and peers need none to be timed."""
    cache = settings.cache if contestant.is_ours else ""
    return Process(settings.threads, contestant.isa, cache, settings.deadline, WORKER)


def _ready(process: Process, case: Case, files: Files) -> dict[str, Any]:
    """Run for the first time, which is the run that is checked, and until it is warm."""
    process.ask("feed", feeds=str(files.feeds), is_stepwise=bool(case.steps))
    checked = process.ask("check", reference=str(files.reference)) if files.reference else process.ask("turn", runs=1)
    process.ask("turn", runs=1)  # which waits for optimized code
    warm = _seconds(case, process.ask("turn", runs=1)["seconds"])
    if (more := min(WARM_RUNS, int(WARM_S / max(1, case.steps) / warm))) > 1:
        warm = _seconds(case, process.ask("turn", runs=more)["seconds"])
    first = statistics.fmean(checked.pop("seconds"))
    return {**checked, "first_s": first, "warm_s": warm}


def _seconds(case: Case, seconds: list[float]) -> float:
    """One figure for a turn: the median run, or the mean step, since each step has its own length of cache."""
    return statistics.fmean(seconds) if case.steps else statistics.median(seconds)


def _rounds(
    case: Case, processes: dict[Contestant, Process], result: dict[str, Any], settings: Settings, gauge: Gauge | None
) -> None:
    """Fill in the rounds. A contestant that fails leaves, with the rounds it has been in."""
    if not processes:
        return
    entries, limits = result["contestants"], []
    turn_s = settings.seconds / settings.rounds / (len(processes) + 1)
    steps = max(1, case.steps)
    runs = {c: min(MOST_RUNS, max(1, int(turn_s / steps / entries[c.name]["warm_s"]))) for c in processes}

    def turn(contestant: Contestant, place: list[int]) -> float:
        return _seconds(case, processes[contestant].ask("turn", runs=runs[contestant], cores=place)["seconds"])

    def measure_limits(number: int) -> None:
        if gauge and number % GAUGED == 0:
            limits.append(gauge())

    if gauge:
        gauge()
    turns = {c: partial(turn, c) for c in processes}
    found, failed = interleave(
        turns, settings.rounds, settings.seconds, places(cores(), settings.threads), measure_limits
    )
    for contestant, seconds in found.items():
        entries[contestant.name]["rounds"] = seconds
    for contestant, why in failed.items():
        result["failed"][contestant.name] = why
        if not found[contestant]:
            del entries[contestant.name]
    if not limits:
        return
    numbers = [key for key, value in limits[0].items() if isinstance(value, float)]
    result["limits"] = {key: statistics.median(figures[key] for figures in limits) for key in numbers}
    result["limits"]["source"] = limits[0]["source"]


def _derived(case: Case, contestants: Sequence[Contestant], result: dict[str, Any]) -> dict[str, Any]:
    """Medians, errors and shares per contestant; how many times as fast as each peer each of ours is."""
    entries, cost = result["contestants"], result["cost"]
    for entry in entries.values():
        entry["median_s"], entry["low_s"], entry["high_s"] = spread(entry["rounds"])
        if not cost:
            continue
        entry["error"] = max(entry["errors"].values(), default=math.nan)
        least = limit_seconds(
            result["limits"], entry["precision"], cost["flops"], cost["weights"], cost.get("moved", 0.0)
        )
        entry["share"] = least / entry["median_s"]
        if case.steps:
            itemsize = 2 if entry["precision"] == "medium" else 4
            nbytes = entry.get("packed_nbytes") or cost["weights"] * itemsize
            entry["reading_s"] = nbytes / result["limits"]["read_nbytes"]
    ratios: dict[str, dict[str, Any]] = {}
    for ours in (c for c in contestants if c.is_ours):
        against = {}
        for peer in (c for c in contestants if not c.is_ours):
            theirs, mine = entries[peer.name]["rounds"], entries[ours.name]["rounds"]
            both = min(len(theirs), len(mine))
            against[peer.name] = paired_ratio(theirs[:both], mine[:both])
        ratios[ours.name] = plain(against)
    return {"ratios": ratios}
