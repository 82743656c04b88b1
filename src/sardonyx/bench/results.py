"""What a benchmark found, as records that JSON keeps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from sardonyx.bench.statistics import Ratio
from sardonyx.records import Record


class Start(Record):
    """One start of a contestant in a process of its own."""

    import_s: float
    load_s: float
    """Opening the model, with the engine imported."""
    first_s: float
    """The first run of the process."""
    second_s: float | None
    """The second one, which waits for optimized code where the first began without it; None if that was not timed."""
    is_cold: bool
    """Whether the engine's cache was empty; of an engine without one, whether it is its first start."""


class Timing(Record):
    """The runs of one contestant."""

    name: str
    engine: str
    version: str
    precision: str
    threads: int
    callers: int
    batch: int | None
    runs: int
    mean_s: float
    median_s: float
    low_s: float
    high_s: float
    """The bounds of the median's interval."""
    p90_s: float | None
    p95_s: float | None
    p99_s: float | None
    """None where there were too few runs."""
    throughput: float
    """Samples per second of all callers: runs, times the batch size where the model has one."""
    rounds: tuple[float, ...]
    """The median of each round."""
    costs_s: tuple[float, ...]
    """Seconds per sample in each round, of all callers together."""
    starts_of_rounds: tuple[int, ...]
    """The number of the start in which each round ran."""
    warm_runs: int
    """Runs until the times no longer fell, of the slowest start."""
    is_warm: bool
    """False if they still fell when the time for it was over."""
    starts: tuple[Start, ...]
    """Of its process; empty where another timing's runs came first in the same process."""
    peak_nbytes: int
    """The most memory that the process held."""
    engine_nbytes: int
    """What it held before the model was opened: Python and the engine's own code."""
    nodes: Mapping[str, int]
    """Of Sardonyx: how many nodes each provider runs."""


class Comparison(Record):
    """Two contestants of one run."""

    subject: str
    other: str
    ratio: Ratio
    """How many times as fast the subject is."""
    is_real: bool
    sentence: str


class Sweep(Record):
    """One model under several values of one setting."""

    setting: str
    """``batch``, ``callers``, ``threads`` or ``precision``."""
    timings: tuple[Timing, ...]
    best: str
    """The value with the most samples per second."""
    sentence: str


class Result(Record):
    """A run of the benchmark."""

    model: str
    nbytes: int
    made: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    seed: int
    inputs: Mapping[str, str]
    statements: tuple[str, ...]
    """What was assumed about the inputs."""
    disturbances: tuple[str, ...]
    """Why the figures may mean little."""
    timings: tuple[Timing, ...]
    comparisons: tuple[Comparison, ...]
    sweeps: tuple[Sweep, ...]
    absent: Mapping[str, str]
    """Contestants that this machine does not have, and why."""
    failed: Mapping[str, str]
    """Contestants that failed, and how."""

    def timing(self, name: str) -> Timing:
        return next(timing for timing in self.timings if timing.name == name)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(self)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """The result that ``to_json`` wrote; KeyError, TypeError or ValueError for anything else."""
        found: dict[str, Any] = dict(data)
        found["timings"] = tuple(map(_timing, data["timings"]))
        found["comparisons"] = tuple(Comparison(**{**c, "ratio": Ratio(**c["ratio"])}) for c in data["comparisons"])
        found["sweeps"] = tuple(Sweep(**{**s, "timings": tuple(map(_timing, s["timings"]))}) for s in data["sweeps"])
        return cls(**_tuples(found))


def _timing(data: Mapping[str, Any]) -> Timing:
    found = _tuples(data)
    found["starts"] = tuple(Start(**{"second_s": None, **start}) for start in data["starts"])
    if not (isinstance(data["name"], str) and all(isinstance(s, (int, float)) and s > 0 for s in data["rounds"])):
        raise ValueError(f"this is no timing: {str(data)[:100]}")
    return Timing(**found)


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


def plain(value: Any) -> Any:
    """Records as JSON's types; numbers that are not finite are null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Record):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
