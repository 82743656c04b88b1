"""One case timed: every contestant in its own process, all of them in every round, in an order that rotates."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare.cases import Case, stored
from benchmarks.compare.engines import Contestant, Unavailable
from benchmarks.compare.limits import limit_seconds
from benchmarks.compare.process import Failed, Process, cores
from benchmarks.compare.stats import paired_ratio, spread

LEAST_ROUNDS, LATE_ROUNDS = 5, 3
"""Rounds that a case gets even if its time is over, or over twice."""
GAUGED = 3
"""The machine's limits are measured in every third round."""
MOST_RUNS = 2000
WARM_RUNS, WARM_S = 12, 0.5
"""So many runs come before the rounds, or as many as fit into half a second: engines learn from their first ones."""


@dataclass(frozen=True)
class Settings:
    """What the rounds of a case have in common."""

    folder: Path
    cache: str
    threads: int
    rounds: int
    seconds: float
    deadline: float = math.inf
    """By the monotonic clock; who is running then has failed."""


def measure(case: Case, contestants: Sequence[Contestant], settings: Settings) -> dict[str, Any]:
    """Times of each round, errors, limits and ratios of one case.

    Who is not to be had on this machine is under `absent`; who took part and failed, under `failed`.
    """
    cost = {name: float(v) for name, v in stored(case.reference(settings.folder), "cost").items()}
    result: dict[str, Any] = {"threads": settings.threads, "cost": cost, "contestants": {}, "absent": {}, "failed": {}}
    with ExitStack() as stack:
        processes = {c: stack.enter_context(_process(c, settings)) for c in contestants}
        with ThreadPoolExecutor() as pool:
            opening = {c: pool.submit(p.open, c, case.onnx(settings.folder)) for c, p in processes.items()}
        for contestant in contestants:
            try:
                about = opening[contestant].result()
                about |= processes[contestant].ask("about")
                about |= _ready(processes[contestant], case, settings.folder)
            except (Unavailable, Failed) as why:
                result["absent" if isinstance(why, Unavailable) else "failed"][contestant.name] = str(why)
                del processes[contestant]
            else:
                about |= {"precision": contestant.precision, "rounds": []}
                result["contestants"][contestant.name] = about
        gauge = stack.enter_context(Process(settings.threads))
        nbytes = int(4 * cost["weights"])
        _rounds(case, processes, result, settings, lambda: gauge.ask("limits", threads=settings.threads, nbytes=nbytes))
    taking_part = [c for c in contestants if c.name in result["contestants"]]
    return result | _derived(case, taking_part, result)


def _process(contestant: Contestant, settings: Settings) -> Process:
    """Only ours are given the cache folder: they share it safely, and peers need none to be timed."""
    cache = settings.cache if contestant.is_ours else ""
    return Process(settings.threads, contestant.isa, cache, settings.deadline)


def _ready(process: Process, case: Case, folder: Path) -> dict[str, Any]:
    """Run for the first time, which is the run that is checked, and until it is warm."""
    process.ask("feed", feeds=str(case.feeds(folder)))
    checked = process.ask("check", reference=str(case.reference(folder)))
    warm = _seconds(case, process.ask("turn", runs=1)["seconds"])
    if (more := min(WARM_RUNS, int(WARM_S / max(1, case.steps) / warm))) > 1:
        warm = _seconds(case, process.ask("turn", runs=more)["seconds"])
    first = statistics.fmean(checked.pop("seconds"))
    return {**checked, "first_s": first, "warm_s": warm}


def _seconds(case: Case, seconds: list[float]) -> float:
    """One figure for a turn: the median run, or the mean step, since each step has its own length of cache."""
    return statistics.fmean(seconds) if case.steps else statistics.median(seconds)


def _rounds(
    case: Case, processes: dict[Contestant, Process], result: dict[str, Any], settings: Settings, gauge: Any
) -> None:
    """Fill in the rounds. A contestant that fails leaves, with the rounds it has been in."""
    if not processes:
        return
    entries, limits = result["contestants"], []
    turn_s = settings.seconds / settings.rounds / (len(processes) + 1)
    steps = max(1, case.steps)
    runs = {c: min(MOST_RUNS, max(1, int(turn_s / steps / entries[c.name]["warm_s"]))) for c in processes}
    gauge()
    start = time.monotonic()
    for number in range(settings.rounds):
        spent = (time.monotonic() - start) / settings.seconds
        if not processes or (spent > 1 and number >= (LEAST_ROUNDS if spent < 2 else LATE_ROUNDS)):
            break
        if number % GAUGED == 0:
            limits.append(gauge())
        order = list(processes)
        shift = number % len(order)
        place = cores_of_round(cores(), settings.threads, number)
        for contestant in order[shift:] + order[:shift]:
            try:
                seconds = processes[contestant].ask("turn", runs=runs[contestant], cores=place)["seconds"]
                entries[contestant.name]["rounds"].append(_seconds(case, seconds))
            except Failed as why:
                del processes[contestant]
                result["failed"][contestant.name] = str(why)
                if not entries[contestant.name]["rounds"]:
                    del entries[contestant.name]
    numbers = [key for key, value in limits[0].items() if isinstance(value, float)]
    result["limits"] = {key: statistics.median(figures[key] for figures in limits) for key in numbers}
    result["limits"]["source"] = limits[0]["source"]


def cores_of_round(cores: Sequence[int], threads: int, number: int) -> list[int]:
    """As many as there are threads, the same for all contestants, and others in the next round: on a shared machine
    cores differ in what their neighbours leave of them.
    """
    first = number * threads
    return sorted({cores[(first + i) % len(cores)] for i in range(threads)})


def _derived(case: Case, contestants: Sequence[Contestant], result: dict[str, Any]) -> dict[str, Any]:
    """Medians, errors and shares per contestant; how many times as fast as each peer each of ours is."""
    entries, cost = result["contestants"], result["cost"]
    for entry in entries.values():
        entry["median_s"], entry["low_s"], entry["high_s"] = spread(entry["rounds"])
        entry["error"] = max(entry["errors"].values())
        least = limit_seconds(result["limits"], entry["precision"], cost["flops"], cost["weights"])
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
        ratios[ours.name] = {name: asdict(ratio) for name, ratio in against.items()}
    return {"ratios": ratios}
