"""Results of earlier runs in a file, and what has become worse since.

Between two runs of a program the machine changes. Peers that were measured in both runs take that out: a contestant's
times are divided by theirs, round by round. A figure has become worse if its interval says so, and by more than a
margin, since intervals do not cover what differs between two runs of one program.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sardonyx import writing
from sardonyx.bench.engines import OURS
from sardonyx.bench.results import Result, Timing
from sardonyx.bench.statistics import Ratio, ratio_of_medians
from sardonyx.errors import InvalidArgument, NoSuchFile, NotFound
from sardonyx.records import Record

MARGIN = 0.05
"""The least loss that counts, as a share."""
MEMORY_MARGIN, MEMORY_NBYTES = 0.1, 8e6
"""The same of memory, where the loss must also be so many bytes."""
LEAST_S = 2e-6
"""A loss of less is no loss."""


class Regression(Record):
    """A figure that an earlier run found better."""

    name: str
    """The contestant, or the value of a sweep."""
    figure: str
    then: float
    now: float
    factor: Ratio
    """How many times as good as then; below 1."""

    def __str__(self) -> str:
        if self.figure == "memory":
            return f"{self.name}: {self.now / 1e6:.0f} MB of memory, {self.then / 1e6:.0f} MB then"
        return (
            f"{self.name}: {self.figure} {self.now * 1e3:.4g} ms, {self.then * 1e3:.4g} ms then: {self.factor} as fast"
        )


def change(then: Sequence[float], now: Sequence[float], clocks: tuple[Sequence[float], Sequence[float]]) -> Ratio:
    """How many times as good as then; ``clocks`` are the rounds of a peer, then and now, if both have as many."""
    if all(len(own) == len(clock) for own, clock in zip((then, now), clocks, strict=True)):
        then, now = (
            [a / b for a, b in zip(own, clock, strict=True)] for own, clock in zip((then, now), clocks, strict=True)
        )
    return ratio_of_medians(then, now)


def regressions(then: Result, now: Result, margin: float = MARGIN) -> list[Regression]:
    """What has become worse; InvalidArgument where the two runs cannot be compared."""
    for what in ("model", "machine", "inputs"):
        if getattr(then, what) != getattr(now, what):
            raise InvalidArgument(
                f"the earlier run had another {what.removesuffix('s')}, so that the two cannot be compared",
                expected=getattr(then, what),
                got=getattr(now, what),
            )
    earlier = {_key(timing): timing for timing in _own(then)}
    pairs = [(earlier[_key(timing)], timing) for timing in _own(now) if _key(timing) in earlier]
    if not pairs:
        raise InvalidArgument("the two runs have no contestant in common, of equal precision and threads")
    clocks = _clocks(then, now)
    return [found for before, after in pairs for found in _of_pair(before, after, clocks, margin)]


def _of_pair(
    then: Timing, now: Timing, clocks: tuple[Sequence[float], Sequence[float]], margin: float
) -> Iterator[Regression]:
    factor = change(then.rounds, now.rounds, clocks)
    lost_s = now.median_s * (1 - factor.value)
    if factor.high < 1 and factor.value < 1 / (1 + margin) and lost_s > LEAST_S:
        yield Regression(now.name, "median", then.median_s, now.median_s, factor)
    grown = now.peak_nbytes - then.peak_nbytes
    if grown > MEMORY_NBYTES and grown > MEMORY_MARGIN * then.peak_nbytes:
        shrunk = then.peak_nbytes / now.peak_nbytes
        yield Regression(now.name, "memory", then.peak_nbytes, now.peak_nbytes, Ratio(shrunk, shrunk, shrunk))


def _own(result: Result) -> list[Timing]:
    swept = [timing for sweep in result.sweeps for timing in sweep.timings]
    return [timing for timing in (*result.timings, *swept) if timing.engine == OURS]


def _key(timing: Timing) -> tuple[object, ...]:
    return timing.name, timing.precision, timing.threads, timing.batch, timing.callers


def _clocks(then: Result, now: Result) -> tuple[Sequence[float], Sequence[float]]:
    """The rounds of the first peer, of the same version, that both runs have."""
    peers = {(t.name, t.version, t.threads): t for t in then.timings if t.engine != OURS}
    for timing in now.timings:
        if (timing.name, timing.version, timing.threads) in peers:
            return peers[timing.name, timing.version, timing.threads].rounds, timing.rounds
    return (), ()


def append_history(path: str | os.PathLike[str], result: Result) -> None:
    """Add a result to a file of one JSON object a line, which is made where it is missing, and written whole."""
    before = Path(path).read_bytes() if Path(path).exists() else b""
    if before.strip():
        read_results(path)
    if before and not before.endswith(b"\n"):
        before += b"\n"
    writing.write_whole(os.fspath(path), [before, json.dumps(result.to_json()).encode() + b"\n"])


def read_results(path: str | os.PathLike[str]) -> list[Result]:
    """The results of a file: one JSON object, or one a line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NoSuchFile(f"there is no file {os.fspath(path)}") from None
    except UnicodeDecodeError:
        raise _no_results(path, "it is not text") from None
    try:
        whole = [json.loads(text)]
    except ValueError:
        try:
            whole = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise _no_results(path, error) from None
    try:
        return [Result.from_json(each) for each in whole]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _no_results(path, f"{type(error).__name__}: {error}") from None


def _no_results(path: Any, why: object) -> InvalidArgument:
    return InvalidArgument("the file holds no results of a benchmark", where=os.fspath(path), got=why)


def earlier_result(path: str | os.PathLike[str], model: str) -> Result:
    """The last result of a file for a model."""
    found = [result for result in read_results(path) if result.model == model]
    if not found:
        raise NotFound(f"the file has no result of {model}", where=os.fspath(path))
    return found[-1]
