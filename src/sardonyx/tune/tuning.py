"""``tune_model``: try settings on top of one another, measure each beside what was there before, keep what helps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from sardonyx.bench.machine import Usage, cores, disturbances
from sardonyx.bench.rounds import interleave
from sardonyx.bench.statistics import Ratio, Verdict, paired_ratio, verdict
from sardonyx.errors import InvalidArgument, SardonyxError
from sardonyx.profile.diagnosis import Diagnosis, diagnose
from sardonyx.profile.environment import Environment, environment
from sardonyx.profile.measure import generated
from sardonyx.profile.records import Profile
from sardonyx.session.config_file import MAX_NOTES, MAX_TEXT
from sardonyx.session.cpu_options import PRECISIONS
from sardonyx.session.options import SessionOptions
from sardonyx.session.session import InferenceSession
from sardonyx.tune.candidates import Candidate, candidates
from sardonyx.tune.records import Trial, Tuning
from sardonyx.tune.setups import Feeds, Model, Runner, Setup, largest_error

MAX_ERROR = 1e-5
ROUNDS, SECONDS = 30, 5.0
"""Of each comparison."""
LEAST_ROUNDS, MOST_ROUNDS = 6, 1000
SMALL = 1.1
"""Gains below this are measured again with new sessions."""
CALLS = frozenset(("batch-of-one", "copy", "strided-inputs"))
"""Findings that a change of calls repairs, which a profile of the model alone does not show."""


def tune_model(
    model: Model,
    feeds: Feeds | None = None,
    *,
    options: SessionOptions | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    profile: Profile | None = None,
    precisions: Sequence[str] = (),
    max_error: float = MAX_ERROR,
    precision_error: float = 1e-2,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    surroundings: Environment | None = None,
    step: Callable[[str], None] = lambda what: None,
) -> Tuning:
    """Try settings for a model, with these feeds or random ones, beginning with these options.

    ``profile`` is of a program that runs the model, whose calls are improved too. A setting whose outputs have a larger
    relative error than ``max_error`` is left out. ``precisions`` ("high", "medium") are tried only if they are given,
    and may have an error up to ``precision_error``. ``seconds`` are those of the rounds of each comparison.
    """
    if not LEAST_ROUNDS <= rounds <= MOST_ROUNDS:
        raise InvalidArgument("the number of rounds", expected=f"{LEAST_ROUNDS} to {MOST_ROUNDS}", got=rounds)
    if unknown := [p for p in precisions if p not in PRECISIONS]:
        raise InvalidArgument("an unknown precision", expected=", ".join(PRECISIONS), got=unknown)
    asked = SessionOptions() if options is None else options
    around = environment() if surroundings is None else surroundings
    given = feeds if feeds is not None else _fitting(model, profile)
    common: dict[str, Any] = {"providers": providers, "surroundings": around}
    step("looking for problems")
    usage = Usage.now()
    before = diagnose(model, given, options=asked, profile=profile, **common)
    tuner = _Tuner(model, given, asked, providers, rounds, seconds, (max_error, precision_error))
    for candidate in candidates(before, around, tuple(precisions)):
        step(f"trying {candidate.change}")
        tuner.attempt(candidate)
    step("comparing all that was kept")
    first, last = tuner.whole()
    after = _after(before, diagnose(model, given, options=tuner.kept.applied(asked), **common), tuner.trials)
    ratio = paired_ratio(first, last)
    config = replace(tuner.kept.config, notes=tuple(_note(t) for t in tuner.trials if t.is_kept)[:MAX_NOTES])
    disturbed = disturbances(usage, Usage.now(), len(cores()))
    return Tuning(tuple(tuner.trials), config, before, after, median(first), median(last), ratio, disturbed)


class _Tuner:
    """The settings that were kept so far, and the trials."""

    def __init__(
        self,
        model: Model,
        feeds: Feeds,
        asked: SessionOptions,
        providers: Sequence[str],
        rounds: int,
        seconds: float,
        errors: tuple[float, float],
    ) -> None:
        self._model, self._feeds, self._asked, self._providers = model, feeds, asked, list(providers)
        self._rounds, self._seconds, self._errors = rounds, seconds, errors
        self._sessions: dict[str, InferenceSession] = {}
        self.kept = Setup()
        self.trials: list[Trial] = []

    def attempt(self, candidate: Candidate) -> None:
        """Compare a candidate on top of what was kept with what was kept."""
        changed = self.kept.plus(candidate.setup)
        is_first_batch = changed.is_batched and not self.kept.is_batched
        plain = replace(self.kept, batch=changed.batch) if is_first_batch else self.kept
        try:
            now, then = self._runner(changed), self._runner(plain)
            exact = self._runner(replace(Setup(), batch=changed.batch))
            error = largest_error(now.outputs(), exact.outputs())
            if error > self._errors[candidate.is_precision]:
                self._record(candidate, None, error, f"its error of {error:.1e} is too large")
                return
            ours, theirs = self._rounds_of(now, then)
        except SardonyxError as why:
            self._record(candidate, None, float("nan"), f"it cannot be run: {str(why).splitlines()[0]}")
            return
        found = verdict(ours, theirs, names=("with it", "without it"))
        is_kept, reason = _decision(candidate, found, error)
        if is_kept and not candidate.is_kept_if_equal and found.ratio.value < SMALL and not self._holds(changed, plain):
            is_kept, reason = False, "other sessions with it are no faster"
        if is_kept:
            self.kept = changed
        self._sessions = {key: self._sessions[key] for key in {_key(Setup()), _key(self.kept)} & self._sessions.keys()}
        self._record(candidate, found, error, reason, is_kept, (median(theirs), median(ours)))

    def _holds(self, changed: Setup, plain: Setup) -> bool:
        """Whether new sessions agree that a setup is faster. Two sessions with the same settings can differ by some per
        cent, by where their memory lies, in all rounds of a comparison.
        """
        self._sessions = {}
        ours, theirs = self._rounds_of(self._runner(changed), self._runner(plain))
        found = verdict(ours, theirs, names=("with it", "without it"))
        return found.is_real and found.ratio.value > 1

    def whole(self) -> tuple[list[float], list[float]]:
        """Seconds of a row in rounds: as it was, and with all that was kept."""
        ours, theirs = self._rounds_of(self._runner(self.kept), self._runner(Setup(batch=self.kept.batch)))
        return theirs, ours

    def _runner(self, setup: Setup) -> Runner:
        key = _key(setup)
        if key not in self._sessions:
            self._sessions[key] = InferenceSession(self._model, setup.applied(self._asked), providers=self._providers)
        return Runner(self._sessions[key], setup, self._feeds)

    def _rounds_of(self, now: Runner, then: Runner) -> tuple[list[float], list[float]]:
        turns = {"now": lambda _: now.seconds(), "then": lambda _: then.seconds()}
        start = time.perf_counter()
        for runner in (now, then):
            runner.seconds()
        enough = 2 * LEAST_ROUNDS * (time.perf_counter() - start)
        found, _ = interleave(turns, self._rounds, max(self._seconds, enough), [[0]])
        return found["now"], found["then"]

    def _record(
        self,
        candidate: Candidate,
        found: Verdict | None,
        error: float,
        reason: str,
        is_kept: bool = False,
        times: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        ratio = Ratio(1.0, 1.0, 1.0) if found is None else found.ratio
        is_real = found is not None and found.is_real
        self.trials.append(Trial(candidate.change, candidate.code, *times, ratio, is_real, error, is_kept, reason))


def _key(setup: Setup) -> str:
    """What setups have in common that share a session."""
    return repr((sorted(setup.options.items()), sorted(setup.entries.items())))


def _decision(candidate: Candidate, found: Verdict, error: float) -> tuple[bool, str]:
    told = f", and its error is {error:.1e}" if error else ""
    if found.is_real and found.ratio.value > 1:
        return True, f"the difference is real{told}"
    if found.is_real:
        return False, "it is slower"
    if candidate.is_kept_if_equal:
        return True, f"it is no slower, and the problem is gone{told}"
    return False, "the difference may be noise"


def _note(trial: Trial) -> str:
    """A line for people who open the config."""
    return f"{trial.change}: {trial.times_text}"[:MAX_TEXT]


def _after(before: Diagnosis, alone: Diagnosis, trials: Sequence[Trial]) -> Diagnosis:
    """The findings that are left: of the model under the new settings, and of calls that no kept setting fixes."""
    fixed = {trial.code for trial in trials if trial.is_kept}
    of_calls = [f for f in before.findings if f.code in CALLS or f.code == "python-between-runs"]
    left = [f for f in of_calls if f.code not in fixed]
    return Diagnosis(alone.profile, (*(f for f in alone.findings if f.code not in CALLS), *left), alone.disturbances)


def _fitting(model: Model, profile: Profile | None) -> Feeds:
    """Random feeds, of the shapes that a program's runs had."""
    shapes: Mapping[str, tuple[int, ...]] = {}
    if profile is not None and profile.runs:
        shapes = {name: shape for name, (_, shape) in profile.runs[-1].inputs.items()}
    return generated(model, shapes=shapes)
