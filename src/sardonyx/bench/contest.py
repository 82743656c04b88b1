"""Several entries timed together: every contestant started anew some times, and run in rounds after each start."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sardonyx.bench.engines import Contestant, Unavailable
from sardonyx.bench.machine import cores
from sardonyx.bench.process import Failed, Process
from sardonyx.bench.results import Start, Timing
from sardonyx.bench.rounds import interleave, places
from sardonyx.bench.statistics import median_interval, percentile
from sardonyx.bench.worker import WARM_SHARE
from sardonyx.records import Record

MOST_RUNS = 2000
"""Of an entry in a round."""
Step = Callable[[str], None]


class Entry(Record):
    """A contestant with feeds and callers. Entries of one contestant share its process."""

    name: str
    contestant: Contestant
    feeds: str = ""
    """The key of the feeds."""
    batch: int | None = None
    callers: int = 1


class Settings(Record):
    """What entries have in common."""

    model: Path
    feeds: Mapping[str, Path]
    threads: int
    rounds: int
    seconds: float
    """For all rounds."""
    starts: int
    cache: str
    """A folder, empty at first, for the caches of Sardonyx, one of each contestant."""
    warm_s: float
    """The longest that an entry is warmed up."""
    step: Step


class Outcome(Record):
    timings: dict[str, Timing]
    absent: dict[str, str]
    failed: dict[str, str]


class _Found:
    """What is known of an entry so far."""

    def __init__(self) -> None:
        self.rounds: list[float] = []
        self.costs: list[float] = []
        self.seconds: list[float] = []
        self.starts_of_rounds: list[int] = []
        self.starts: list[Start] = []
        self.warm_runs, self.is_warm, self.run_s = 0, True, 0.0
        self.peak_mb = self.engine_mb = 0.0
        self.version = ""
        self.nodes: dict[str, int] = {}


def contest(entries: Sequence[Entry], settings: Settings) -> Outcome:
    """Times of all entries. Who is not to be had, or fails, is named with the reason."""
    found: dict[str, _Found] = defaultdict(_Found)
    absent: dict[str, str] = {}
    failed: dict[str, str] = {}
    least, more = divmod(settings.rounds, settings.starts)
    share = [least + (start < more) for start in range(settings.starts)]
    for start, rounds in enumerate(share):
        taking_part = [e for e in entries if e.contestant.name not in absent and e.name not in failed]
        if rounds and taking_part:
            _one_start(taking_part, settings, start, (sum(share[:start]), rounds), found, absent, failed)
    timings = {e.name: _timing(e, found[e.name], settings) for e in entries if found[e.name].rounds}
    return Outcome(timings, absent, failed)


def _one_start(
    entries: Sequence[Entry],
    settings: Settings,
    start: int,
    numbers: tuple[int, int],
    found: dict[str, _Found],
    absent: dict[str, str],
    failed: dict[str, str],
) -> None:
    """Start all contestants, warm them up and run some rounds; ``numbers`` are the first round's and how many."""
    first, rounds = numbers
    at = f"start {start + 1} of {settings.starts}"
    with ExitStack() as stack:
        processes: dict[str, Process] = {}
        ready: dict[str, Entry] = {}
        for contestant in {e.contestant.name: e.contestant for e in entries}.values():
            settings.step(f"{at}: {contestant.name}")
            own = [e for e in entries if e.contestant.name == contestant.name]
            try:
                cache = _cache_of(contestant, settings)
                is_cold = not os.listdir(cache) if cache else start == 0
                process = stack.enter_context(_process(contestant, settings, cache))
                opened = process.open(contestant, settings.model)
                for entry in own:
                    warm = _warm(entry, process, settings, found[entry.name], opened)
                    if entry is own[0]:
                        times = (warm["first_s"], warm["second_s"])
                        began = Start(opened["import_s"], opened["open_s"], *times, is_cold)
                        found[entry.name].starts.append(began)
                    ready[entry.name] = entry
            except Unavailable as why:
                absent[contestant.name] = str(why)
            except Failed as why:
                failed |= {e.name: str(why) for e in own if e.name not in ready}
            processes[contestant.name] = process
        if not ready:
            return
        turn_s = settings.seconds / settings.rounds / len(ready)
        turns = {
            name: partial(_turn, processes[entry.contestant.name], entry, _runs(turn_s, found[name].run_s))
            for name, entry in ready.items()
        }
        threads = max(entry.contestant.threads or settings.threads for entry in ready.values())
        told, lost = interleave(
            turns,
            rounds,
            settings.seconds * rounds / settings.rounds,
            places(cores(), threads * max(entry.callers for entry in ready.values())),
            lambda number: settings.step(f"{at}: round {number + 1} of {settings.rounds}"),
            first,
        )
        failed |= lost
        for name, replies in told.items():
            _take(found[name], ready[name], replies, start)
            if name not in lost:
                peak_mb = processes[ready[name].contestant.name].ask("memory")["mb"]
                found[name].peak_mb = max(found[name].peak_mb, peak_mb)


def _process(contestant: Contestant, settings: Settings, cache: str) -> Process:
    return Process(contestant.threads or settings.threads, contestant.isa, cache)


def _cache_of(contestant: Contestant, settings: Settings) -> str:
    """The folder that a contestant caches in, which no other one has filled; only ours are given one: peers need none
    to be timed.
    """
    if not contestant.is_ours or not settings.cache:
        return ""
    folder = os.path.join(settings.cache, quote(contestant.name, safe=""))
    os.makedirs(folder, 0o700, exist_ok=True)
    return folder


def _warm(
    entry: Entry, process: Process, settings: Settings, found: _Found, opened: Mapping[str, Any]
) -> dict[str, Any]:
    """Run until times are stable; what the worker tells of it."""
    process.ask("feed", feeds=str(settings.feeds[entry.feeds]), key=entry.feeds)
    warm = process.ask("warm", seconds=settings.warm_s, key=entry.feeds)
    found.warm_runs = max(found.warm_runs, warm["runs"])
    found.is_warm &= warm["is_stable"]
    found.run_s = warm["run_s"]
    found.version, found.engine_mb = opened["version"], opened["engine_mb"]
    if entry.contestant.is_ours and not found.nodes:
        found.nodes = process.ask("about")["nodes"]
    return warm


def _runs(turn_s: float, run_s: float) -> int:
    return min(MOST_RUNS, max(1, int(turn_s / (1 + WARM_SHARE) / run_s)))


def _turn(process: Process, entry: Entry, runs: int, place: list[int]) -> dict[str, Any]:
    return process.ask("turn", runs=-(-runs // entry.callers), cores=place, callers=entry.callers, key=entry.feeds)


def _take(found: _Found, entry: Entry, replies: Sequence[Mapping[str, Any]], start: int) -> None:
    for reply in replies:
        found.rounds.append(statistics.median(reply["seconds"]))
        found.costs.append(reply["wall_s"] / len(reply["seconds"]) / (entry.batch or 1))
        found.seconds += reply["seconds"]
        found.starts_of_rounds.append(start)


def _timing(entry: Entry, found: _Found, settings: Settings) -> Timing:
    median, low, high = median_interval(found.rounds)
    p90, p95, p99 = (percentile(found.seconds, share) for share in (0.9, 0.95, 0.99))
    return Timing(
        name=entry.name,
        engine=entry.contestant.engine,
        version=found.version,
        precision=entry.contestant.precision,
        threads=entry.contestant.threads or settings.threads,
        callers=entry.callers,
        batch=entry.batch,
        runs=len(found.seconds),
        mean_s=statistics.fmean(found.seconds),
        median_s=median,
        low_s=low,
        high_s=high,
        p90_s=p90,
        p95_s=p95,
        p99_s=p99,
        throughput=1 / statistics.median(found.costs),
        rounds=tuple(found.rounds),
        costs_s=tuple(found.costs),
        starts_of_rounds=tuple(found.starts_of_rounds),
        warm_runs=found.warm_runs,
        is_warm=found.is_warm,
        starts=tuple(found.starts),
        peak_nbytes=int(found.peak_mb * 1e6),
        engine_nbytes=int(found.engine_mb * 1e6),
        nodes=found.nodes,
    )
