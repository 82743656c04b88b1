"""Figures from rounds: medians, and ratios with the interval in which a bootstrap finds them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
RESAMPLES = 4000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """How many times as fast; `low` is the bound that counts."""

    value: float
    low: float
    high: float

    @property
    def is_settled(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.low > 1 or self.high < 1

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def paired_ratio(theirs: Sequence[float], ours: Sequence[float], seed: int = 0) -> Ratio:
    """The median of theirs / ours over rounds in which both ran, so that a slow minute of the machine hits both."""
    if len(theirs) != len(ours) or not ours:
        raise ValueError(f"pairs are wanted, not {len(theirs)} and {len(ours)} rounds")
    ratios = np.asarray(theirs, np.float64) / np.asarray(ours, np.float64)
    return _interval(np.median(ratios), np.median(_resampled(ratios, seed), axis=1))


def ratio_of_medians(theirs: Sequence[float], ours: Sequence[float], seed: int = 0) -> Ratio:
    """The ratio of medians of two runs of the program, whose rounds have nothing in common."""
    above, below = np.asarray(theirs, np.float64), np.asarray(ours, np.float64)
    drawn = np.median(_resampled(above, seed), axis=1) / np.median(_resampled(below, seed + 1), axis=1)
    return _interval(np.median(above) / np.median(below), drawn)


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, and what a tenth of the values lies below and above."""
    low, middle, high = np.quantile(np.asarray(values, np.float64), (0.1, 0.5, 0.9))
    return float(middle), float(low), float(high)


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


def _interval(value: Any, drawn: Array) -> Ratio:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, (tail, 1 - tail))
    return Ratio(float(value), float(low), float(high))
