"""Figures from rounds: medians, ratios with intervals, and whether a difference is real.

A difference of two contestants is judged by pairs: in each round both ran, one right after the other, so a machine that
is slow for a minute is slow for both. The logarithms of the ratios of equal contestants are symmetric about 0 whatever
the noise is, which is all that Wilcoxon's signed-rank test asks for: its interval is exact, and far outliers move it
little. What differs between two starts of one program (where its memory lies, say) is not in the rounds of one start,
so the interval is widened to the starts' own ratios, and a difference below ``LEAST_DIFFERENCE`` is never called real.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from sardonyx.records import Record

Array = np.ndarray[Any, Any]
RESAMPLES = 4000
CONFIDENCE = 0.95
LEAST_ROUNDS = 6
"""Fewer pairs have no interval of 95 %: their range is given, and no difference is called real."""
LEAST_DIFFERENCE = 0.02
EXACT = 60
"""So many pairs have exact quantiles of the signed-rank sum; more have those of the normal distribution."""


class Ratio(Record):
    """How many times as fast; ``low`` is the bound that counts."""

    value: float
    low: float
    high: float

    @property
    def is_settled(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.low > 1 or self.high < 1

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Verdict(Record):
    """Whether one contestant is faster than another."""

    ratio: Ratio
    """How many times as fast the one is as the other."""
    is_real: bool
    sentence: str


def paired_ratio(theirs: Sequence[float], ours: Sequence[float]) -> Ratio:
    """theirs / ours over rounds in which both ran: the Hodges-Lehmann estimate with its signed-rank interval."""
    if len(theirs) != len(ours) or not ours:
        raise ValueError(f"pairs are wanted, not {len(theirs)} and {len(ours)} rounds")
    logs = np.log(np.asarray(theirs, np.float64)) - np.log(np.asarray(ours, np.float64))
    i, j = np.triu_indices(len(logs))
    means = np.sort((logs[i] + logs[j]) / 2)
    outside = _outside(len(logs))
    return Ratio(*(float(np.exp(v)) for v in (np.median(means), means[outside], means[-1 - outside])))


@cache
def _outside(count: int) -> int:
    """How many of the means of pairs lie outside the interval on either side: the signed-rank sum's lower quantile."""
    tail = (1 - CONFIDENCE) / 2
    if count > EXACT:
        mean, variance = count * (count + 1) / 4, count * (count + 1) * (2 * count + 1) / 24
        return int(mean - 1.959964 * math.sqrt(variance) - 0.5)
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1
    for rank in range(1, count + 1):
        ways[rank:] = ways[rank:] + ways[:-rank].copy()
    below = np.cumsum(ways / 2.0**count)
    return int(np.searchsorted(below, tail, side="right"))


def verdict(
    ours: Sequence[float], theirs: Sequence[float], starts: Sequence[int] = (), names: tuple[str, str] = ("A", "B")
) -> Verdict:
    """Judge rounds that were run in pairs. ``starts`` numbers, for each round, the start of the processes it ran in."""
    ratio = paired_ratio(theirs, ours)
    by_start = [
        paired_ratio(*zip(*((t, o) for t, o, s in zip(theirs, ours, starts, strict=True) if s == start), strict=True))
        for start in sorted(set(starts))
    ]
    low, high = min([ratio.low, *(r.value for r in by_start)]), max([ratio.high, *(r.value for r in by_start)])
    ratio = Ratio(ratio.value, low, high)
    is_real = len(ours) >= LEAST_ROUNDS and ratio.is_settled and abs(math.log(ratio.value)) > LEAST_DIFFERENCE
    return Verdict(ratio, is_real, _sentence(ratio, is_real, len(ours), *names))


def _sentence(ratio: Ratio, is_real: bool, rounds: int, ours: str, theirs: str) -> str:
    if rounds < LEAST_ROUNDS:
        return f"{rounds} rounds are too few to tell {ours} from {theirs}."
    if not is_real:
        return f"{ours} and {theirs} cannot be told apart: the ratio of their times is {ratio}."
    if ratio.value < 1:
        ratio, ours, theirs = Ratio(1 / ratio.value, 1 / ratio.high, 1 / ratio.low), theirs, ours
    return f"{ours} is {ratio} times as fast as {theirs}: the difference is real."


def ratio_of_medians(theirs: Sequence[float], ours: Sequence[float], seed: int = 0) -> Ratio:
    """The ratio of medians of two runs of a program, whose rounds have nothing in common, with a bootstrap interval."""
    above, below = np.asarray(theirs, np.float64), np.asarray(ours, np.float64)
    drawn = np.median(_resampled(above, seed), axis=1) / np.median(_resampled(below, seed + 1), axis=1)
    return Ratio(float(np.median(above) / np.median(below)), *_bounds(drawn))


def median_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """The median with a bootstrap interval."""
    array = np.asarray(values, np.float64)
    return (float(np.median(array)), *_bounds(np.median(_resampled(array, seed), axis=1)))


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, and what a tenth of the values lies below and above."""
    low, middle, high = np.quantile(np.asarray(values, np.float64), (0.1, 0.5, 0.9))
    return float(middle), float(low), float(high)


def percentile(values: Sequence[float], share: float) -> float | None:
    """What a share of the values lies below; None if there are too few for it to differ from the largest."""
    if len(values) * (1 - share) < 1 - 1e-9:
        return None
    return float(np.quantile(np.asarray(values, np.float64), share))


def relative_error(got: Array, reference: Array) -> float:
    """|got - reference| / |reference| over all elements, in float64; NaN and Inf are infinitely wrong."""
    if got.shape != reference.shape:
        raise ValueError(f"the answer's shape is {got.shape}, the reference's {reference.shape}")
    if not np.isfinite(got).all():
        return math.inf
    wide = reference.astype(np.float64).ravel()
    size = float(np.linalg.norm(wide))
    distance = float(np.linalg.norm(got.astype(np.float64).ravel() - wide))
    return distance / size if size else distance


def _resampled(values: Array, seed: int) -> Array:
    return np.random.default_rng(seed).choice(values, (RESAMPLES, len(values)))


def _bounds(drawn: Array) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, (tail, 1 - tail))
    return float(low), float(high)
