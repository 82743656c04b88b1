"""Intervals and verdicts on simulated times: equal contestants are called equal, a planted difference is found."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from sardonyx.bench.statistics import (
    LEAST_ROUNDS,
    geometric_mean,
    median_interval,
    paired_ratio,
    percentile,
    ratio_of_medians,
    relative_error,
    spread,
    verdict,
)

Array = np.ndarray
RNG = np.random.default_rng(7)
ROUNDS, STARTS = 24, 3
TRIALS = 400


def calm(rng: np.random.Generator) -> Array:
    """Both contestants' noise factors, by round."""
    return rng.normal(1, 0.01, (2, ROUNDS))


def heavy_tailed(rng: np.random.Generator) -> Array:
    """A fifth of the rounds is disturbed, up to many times as long."""
    return 1 + 0.01 * np.abs(rng.standard_t(1.5, (2, ROUNDS)))


def drifting(rng: np.random.Generator) -> Array:
    """The machine becomes up to a few times as slow and as fast again, for both."""
    drift = np.exp(np.cumsum(rng.normal(0, 0.1, ROUNDS)))
    return drift * rng.normal(1, 0.02, (2, ROUNDS))


def phased(rng: np.random.Generator) -> Array:
    """Slow phases of some rounds that hit one contestant of a pair more than the other, and spikes."""
    slow = np.repeat(rng.choice([1.0, 1.3], ROUNDS // 4), 4)
    return slow * (1 + 0.02 * rng.standard_exponential((2, ROUNDS))) + 0.5 * (rng.random((2, ROUNDS)) < 0.05)


def unequal_starts(rng: np.random.Generator) -> Array:
    """Each start of each contestant is up to two per cent faster or slower than others of the same."""
    bias = np.repeat(rng.uniform(0.99, 1.01, (2, STARTS)), ROUNDS // STARTS, axis=1)
    return bias * rng.normal(1, 0.005, (2, ROUNDS))


NOISES = [calm, heavy_tailed, drifting, phased, unequal_starts]
BY_START = np.repeat(np.arange(STARTS), ROUNDS // STARTS).tolist()


def verdicts(noise: Callable[[np.random.Generator], Array], slowdown: float) -> list[bool]:
    found = []
    for seed in range(TRIALS):
        ours, theirs = 3e-3 * noise(np.random.default_rng(seed))
        found.append(verdict(ours.tolist(), (slowdown * theirs).tolist(), BY_START).is_real)
    return found


@pytest.mark.parametrize("noise", NOISES)
def test_equal_contestants_are_called_equal_19_times_of_20(noise: Callable[[np.random.Generator], Array]) -> None:
    assert sum(verdicts(noise, 1.0)) <= TRIALS / 20


@pytest.mark.parametrize("noise", NOISES)
def test_a_slowdown_of_a_tenth_is_found(noise: Callable[[np.random.Generator], Array]) -> None:
    assert sum(verdicts(noise, 1.1)) >= TRIALS * 19 / 20


@pytest.mark.parametrize("rounds", [6, 15, 24, 80])
def test_intervals_cover_the_truth_as_often_as_they_say(rounds: int) -> None:
    hits = 0
    for seed in range(TRIALS):
        ratio = paired_ratio(np.random.default_rng(seed).lognormal(math.log(2), 0.2, rounds).tolist(), [1.0] * rounds)
        hits += ratio.low <= 2 <= ratio.high
    assert hits / TRIALS == pytest.approx(0.96, abs=0.025)


def test_a_drifting_machine_does_not_hide_a_ratio() -> None:
    drift = np.linspace(1, 10, 40)
    noise = RNG.normal(1, 0.02, 40)
    ratio = paired_ratio(list(1.5 * drift * noise), list(drift))
    assert ratio.low <= ratio.value <= ratio.high
    assert 1.45 < ratio.low < ratio.high < 1.55 and ratio.is_settled
    loose = ratio_of_medians(list(1.5 * drift * noise), list(drift))
    assert loose.low < 1.3 and loose.high > 1.7


def test_starts_that_disagree_are_no_difference() -> None:
    ours, theirs = [1.0] * 12, [1.1] * 6 + [0.95] * 6
    assert not verdict(ours, theirs, [0] * 6 + [1] * 6).is_real
    assert verdict(ours, [1.1] * 12, [0] * 6 + [1] * 6).is_real


def test_sentences() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(1, 0.01, (2, ROUNDS))
    said = verdict(one.tolist(), (1.1 * other).tolist(), names=("sardonyx", "onnxruntime")).sentence
    assert said.startswith("sardonyx is 1.1") and said.endswith("times as fast as onnxruntime: the difference is real.")
    said = verdict((1.1 * one).tolist(), other.tolist(), names=("sardonyx", "onnxruntime")).sentence
    assert said.startswith("onnxruntime is 1.1") and "as fast as sardonyx" in said
    assert "cannot be told apart" in verdict(one.tolist(), other.tolist()).sentence
    few = verdict([1.0] * (LEAST_ROUNDS - 1), [2.0] * (LEAST_ROUNDS - 1))
    assert not few.is_real and "too few" in few.sentence
    assert not verdict([1.0] * 20, [1.01] * 20).is_real


def test_equal_rounds_are_not_settled() -> None:
    times = list(RNG.normal(1, 0.1, 30))
    shuffled = list(RNG.permutation(times))
    assert not ratio_of_medians(times, shuffled).is_settled


def test_pairs_are_wanted() -> None:
    with pytest.raises(ValueError, match="2 and 1"):
        paired_ratio([1.0, 2.0], [1.0])


def test_medians_and_percentiles() -> None:
    assert spread([float(i) for i in range(11)]) == (5, 1, 9)
    assert geometric_mean([1.0, 4.0, 16.0]) == pytest.approx(4)
    middle, low, high = median_interval([float(i) for i in range(101)])
    assert middle == 50 and 30 < low < 50 < high < 70
    assert percentile([float(i) for i in range(101)], 0.99) == 99
    assert percentile([1.0] * 99, 0.99) is None and percentile([1.0] * 20, 0.95) == 1


@pytest.mark.parametrize(
    ("got", "reference", "wanted"),
    [([3.0, 4.5], [3.0, 4.0], 0.1), ([1.0, math.nan], [1.0, 1.0], math.inf), ([0.5], [0.0], 0.5)],
)
def test_relative_error(got: list[float], reference: list[float], wanted: float) -> None:
    assert relative_error(np.array(got, np.float32), np.array(reference)) == pytest.approx(wanted)


def test_relative_error_refuses_another_shape() -> None:
    with pytest.raises(ValueError, match="shape"):
        relative_error(np.ones((2, 1)), np.ones(2))
