"""What quantization gains on this machine: models raced against each other, and times of layers from profiles.

Contestants take turns, in an order that rotates, so that a busy neighbour slows all of them; times are medians over
rounds, and a ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sardonyx.bench.machine import Usage, disturbances
from sardonyx.bench.statistics import LEAST_ROUNDS, paired_ratio
from sardonyx.quantization.budget.samples import Feeds
from sardonyx.quantization.running import open_session

ROUNDS = 21
MIN_TURN_S = 2e-3
"""A turn repeats short runs until it takes this long."""
MAX_RACE_S = 8.0
"""After this time a race ends with the rounds that it has, at least MIN_ROUNDS."""
MIN_ROUNDS = 5
PROFILED_RUNS = 12


@dataclass(frozen=True)
class Race:
    """Seconds per run, of each contestant in each round."""

    seconds: Mapping[str, Sequence[float]]

    def ms(self, name: str) -> float:
        return 1e3 * statistics.median(self.seconds[name])

    def ratios(self, name: str, than: str) -> list[float]:
        return [b / a for a, b in zip(self.seconds[name], self.seconds[than], strict=True)]

    def speedup(self, name: str, than: str) -> float:
        """How many times as fast as another contestant."""
        return statistics.median(self.ratios(name, than))

    def is_faster(self, name: str, than: str) -> bool:
        """Whether the rounds show that it was: their ratio's interval of 95 % lies above 1. Too few rounds for an
        interval show it if it was faster in three of four.
        """
        ratios = self.ratios(name, than)
        if len(ratios) >= LEAST_ROUNDS:
            return paired_ratio(self.seconds[than], self.seconds[name]).low > 1.0
        return statistics.quantiles(ratios, n=4)[0] > 1.0 if len(ratios) > 1 else ratios[0] > 1.0


class Stopwatch:
    """Races and profiles models (paths) on one sample."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds, self._begun = feeds, Usage.now()

    def disturbances(self) -> tuple[str, ...]:
        """Why the times measured until now mean little."""
        return disturbances(self._begun, Usage.now(), 1)

    def race(self, models: Mapping[str, Any]) -> Race:
        sessions = {name: open_session(model) for name, model in models.items()}
        repeats = {name: self._repeats(session) for name, session in sessions.items()}
        seconds: dict[str, list[float]] = {name: [] for name in models}
        names, begun = list(models), time.perf_counter()
        for turn in range(ROUNDS):
            if turn >= MIN_ROUNDS and time.perf_counter() - begun > MAX_RACE_S:
                break
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                session, count = sessions[name], repeats[name]
                start = time.perf_counter()
                for _ in range(count):
                    session.run(None, self._feeds)
                seconds[name].append((time.perf_counter() - start) / count)
        return Race(seconds)

    def profile(self, model: Any) -> dict[str, float]:
        """Milliseconds of each step of one run, by the name of its node; of a node without name, by its result's."""
        with tempfile.TemporaryDirectory(prefix="sardonyx-", ignore_cleanup_errors=True) as folder:
            session = open_session(model, enable_profiling=True, profile_file_prefix=str(Path(folder) / "profile"))
            for _ in range(PROFILED_RUNS):
                session.run(None, self._feeds)
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        durations: dict[str, list[float]] = defaultdict(list)
        for event in events:
            if event["cat"] == "Node":
                durations[event["name"].removesuffix("_kernel_time")].append(event["dur"] / 1e3)
        return {name: statistics.median(each) * len(each) / PROFILED_RUNS for name, each in durations.items()}

    def _repeats(self, session: Any) -> int:
        """Runs per turn; the runs that find out also compile what a first and a second run compile."""
        for _ in range(2):
            session.run(None, self._feeds)
        start = time.perf_counter()
        session.run(None, self._feeds)
        return max(1, min(1000, int(MIN_TURN_S / max(time.perf_counter() - start, 1e-6))))
