"""Which models of a folder an earlier run found faster, sooner or smaller, beyond what noise explains.

A run of ``benchmarks.folder`` is a mapping of models to entries. An entry has, by engine, the seconds of its ``rounds``
and the figures of its ``starts``, or ``failed``: why a model is not run by an engine.

onnxruntime's own figures take out how the machine changed between the runs. A figure has regressed if its interval lies
on the wrong side of 1, and by more than the figure's margin: intervals do not cover what differs between two runs of a
program, such as the memory that it happens to get. What is timed fewer than ``LEAST`` times has no interval, and is not
compared. A regression counts if a second measurement confirms it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.compare.report import ms
from sardonyx.bench.history import change
from sardonyx.bench.statistics import Ratio, ratio_of_medians

LEAST = 3
"""Times from which on there is an interval."""
Entry = Mapping[str, Any]
OURS, THEIRS = "sardonyx", "onnxruntime"


@dataclass(frozen=True)
class Figure:
    """A figure of a model, of which less is better."""

    name: str
    values: Callable[[Entry, str], Sequence[float]]
    """Of an engine; none where it was not measured."""
    margin: float
    """The least loss that counts, as a share."""
    least: float
    """The least loss that counts, in the figure's unit."""
    show: Callable[[float], str]
    is_timed: bool = True
    """Whether the machine's state changes it, as onnxruntime's figures tell."""


def _rounds(entry: Entry, engine: str) -> Sequence[float]:
    found: Sequence[float] = entry.get("rounds", {}).get(engine, ())
    return found


def _start(kind: str, key: str) -> Callable[[Entry, str], Sequence[float]]:
    def values(entry: Entry, engine: str) -> Sequence[float]:
        return [start[key] for start in entry.get("starts", {}).get(engine, {}).get(kind, ())]

    return values


def _milliseconds(seconds: float) -> str:
    return f"{ms(seconds)} ms"


def _megabytes(megabytes: float) -> str:
    return f"{megabytes:.0f} MB"


FIGURES = (
    Figure("run", _rounds, 0.05, 2e-6, _milliseconds),
    Figure("first start", _start("cold", "open_s"), 0.2, 0.1, _milliseconds),
    Figure("second start", _start("warm", "open_s"), 0.2, 0.01, _milliseconds),
    Figure("memory of the first start", _start("cold", "peak_mb"), 0.1, 8, _megabytes, is_timed=False),
    Figure("memory of the second start", _start("warm", "peak_mb"), 0.1, 8, _megabytes, is_timed=False),
)


@dataclass(frozen=True)
class Regression:
    """A figure that an earlier run found smaller."""

    model: str
    what: str
    then: str
    now: str
    factor: Ratio | None
    """How many times as good as then; None where there is nothing to compare with."""

    def __str__(self) -> str:
        factor = "" if self.factor is None else f", {self.factor} times as good"
        return f"{self.model}: {self.what}: {self.then} then, {self.now} now{factor}"


def regressions(earlier: Mapping[str, Entry], now: Mapping[str, Entry]) -> Iterator[Regression]:
    """Of the models in both runs, one for each figure; and models that are no longer run."""
    for model, entry in now.items():
        before = earlier.get(model)
        if before is None:
            continue
        why, failed = entry.get("failed", {}).get(OURS), before.get("failed", {})
        if why is not None and OURS not in failed:
            yield Regression(model, "run", "ran", why, None)
        for figure in FIGURES:
            factor = factor_of(figure, before, entry)
            if factor is not None and has_regressed(figure, entry, factor):
                then, since = (figure.show(_middle(figure.values(e, OURS))) for e in (before, entry))
                yield Regression(model, figure.name, then, since, factor)


def confirmed(first: Sequence[Regression], second: Sequence[Regression]) -> list[Regression]:
    """Those that two measurements found."""
    known = {(each.model, each.what) for each in second}
    return [each for each in first if (each.model, each.what) in known]


def factor_of(figure: Figure, earlier: Entry, now: Entry) -> Ratio | None:
    """How many times as good as then; None where one of both runs did not measure it."""
    pairs = [(figure.values(entry, OURS), figure.values(entry, THEIRS)) for entry in (earlier, now)]
    least = LEAST if figure.is_timed else 1
    if any(len(ours) < least for ours, _ in pairs):
        return None
    (then, clock), (since, clock_since) = pairs
    return change(then, since, (clock, clock_since) if figure.is_timed else ((), ()))


def has_regressed(figure: Figure, now: Entry, factor: Ratio) -> bool:
    lost = _middle(figure.values(now, OURS)) * (1 - factor.value)
    return factor.high < 1 and factor.value < 1 / (1 + figure.margin) and lost > figure.least


def _middle(values: Sequence[float]) -> float:
    return ratio_of_medians(values, [1.0]).value
