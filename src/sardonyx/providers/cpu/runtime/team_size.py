"""How many threads carry out each step of a run: the whole team, or its first thread alone.

A barrier costs more than a small step saves. Which steps are small is measured: the first runs of a plan are timed step
by step. Steps whose parallel saving exceeds the cost of a few barriers are shared by the team, the first thread does
the others without barriers between them, and several thresholds are tried. One thread alone takes part in the
comparison: waking workers may cost more than they save, and where another process has the other CPU, two threads on one
CPU are slower than one. The trial is repeated now and then: the machine may have been busy. Results do not depend on
the choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import forks
from sardonyx.providers.cpu.language.context import ALL, MEET, NOBODY, NONE, ONE, Row

if TYPE_CHECKING:
    from sardonyx.providers.cpu.runtime.step_table import StepTable

Array = np.ndarray[Any, Any]
ThreadChoice = tuple[int, Array]
"""The number of threads of a run, and the rows of its step table."""

BARRIER_S = 1.5e-6
"""Seconds of a barrier between threads that are awake."""
WORTH_S = 8e-6
"""Seconds that a team must save in a run to be woken for it."""
CLEAR_S, CLEAR_SHARE = 4e-5, 0.2
"""Savings, in seconds and as a share of a run by one thread, above which a team promises much: runs by one thread must
be shorter by ``CLEAR_DOUBT`` to be preferred."""
CLEAR_DOUBT = 0.2
BARRIERS = (2, 0.5)
"""Thresholds that are tried: a step is shared if that saves the time of so many barriers. Two by the clock of one
thread; fewer may pay, since a step by one thread reads from other cores' caches what they wrote."""
DOUBT = 0.05
"""Share of a run that a choice with more barriers must save: they cost most when the machine is busy."""
TRIALS = 4
"""Runs of each choice; the shortest counts."""
TRIED_S = 5e-3
"""Runs expected to take longer than this use the team in any case."""


class Trial:
    """The first runs of a plan: some by one thread, then some by the team for each threshold; the quickest stays.

    Long runs use the team from the first; the time of a step is then the sum over its threads.
    """

    def __init__(self, table: StepTable, rows: Array, executions: Array, threads: int, expected_s: float) -> None:
        """``rows`` of the step table with all steps shared; ``executions`` is how often each step runs."""
        self._table, self._rows, self._executions, self._threads = table, rows, executions, threads
        self._is_long = expected_s > TRIED_S
        self._steps = np.full(len(table.steps), np.inf)
        self._lock, self.is_over = forks.lock(), True
        self.choice: ThreadChoice = threads, rows
        """For the next run."""
        self.is_doubtful = False
        """Whether one thread was quicker though the steps' times promised otherwise: another process may have had one
        of the CPUs, so the trial is repeated sooner."""
        self.promises_much = False
        """Whether the team should be much quicker than one thread by the steps' times."""
        self.begin()

    def begin(self) -> None:
        """Start a trial, unless one is going on. The shortest time of each step is remembered."""
        with self._lock:
            if self.is_over:
                self._restart()

    def _restart(self) -> None:
        self.choice = self._threads if self._is_long else 1, self._rows
        self._ways, self._best = [self.choice], [np.inf]
        self._runs, self.is_over, self.promises_much = 0, False, False

    def take(self, way: ThreadChoice, took: float, steps: Array) -> None:
        """Record the time of a run and of its steps. Runs of an earlier choice, finished late by another thread, are
        ignored."""
        with self._lock:
            if self.is_over or way is not self.choice:
                return
            number, self._runs = self._runs // TRIALS, self._runs + 1
            if number >= min(len(self._ways), len(self._best)):  # another thread was here when this process was forked
                self._restart()
                return
            self._best[number] = min(self._best[number], took)
            if number == 0:
                self._steps = np.minimum(self._steps, steps)
            if self._runs == TRIALS:
                self._find_ways()
            if self._runs == TRIALS * len(self._ways):
                doubts = CLEAR_DOUBT if self.promises_much else 0, 0, DOUBT
                quickest = min(range(len(self._ways)), key=lambda i: self._best[i] * (1 + doubts[i]))
                self.choice, self.is_over = self._ways[quickest], True
                self.is_doubtful = quickest == 0 and len(self._ways) > 1
            else:
                self.choice = self._ways[self._runs // TRIALS]

    def _find_ways(self) -> None:
        """The choices for the team, from the times of steps on one thread."""
        found = [shared(self._table, self._rows, self._steps, self._executions, self._threads, n) for n in BARRIERS]
        gain, rows = found[0]
        if self._is_long:
            self._ways = [(self._threads, rows)]
        elif gain > WORTH_S:
            self.promises_much = gain > CLEAR_S and gain > CLEAR_SHARE * float(self._steps.sum())
            others = [rows, *(other for _, other in found[1:] if not np.array_equal(other, rows))]
            self._ways += [(self._threads, one) for one in others]
            self._best += [np.inf] * len(others)


def shared(
    table: StepTable, plain: Array, seconds: Array, executions: Array, threads: int, least: float = BARRIERS[0]
) -> tuple[float, Array]:
    """Seconds that a team saves, and the rows for it, from the seconds of each step on one thread.

    A step is shared if that saves the time of ``least`` barriers.
    """
    saved = seconds * (1 - 1 / threads)
    alone = saved <= least * BARRIER_S * executions
    rows = rows_for(table, plain, alone)
    meetings = float(executions[rows[:, Row.BARRIER] != NONE].sum())
    return float(saved[~alone].sum()) - meetings * BARRIER_S, rows


def rows_for(table: StepTable, plain: Array, alone: Array) -> Array:
    """Rows of the step table in which the first thread does some steps alone.

    Steps of one interval share no memory. A shared step needs a barrier if any step of an earlier interval ran since
    the last one; a step of the first thread alone, only if a shared step did.
    """
    rows: Array = plain.copy()
    is_there = plain[:, Row.WHO] != NOBODY
    rows[is_there, Row.WHO] = np.where(alone, ONE, ALL)[is_there]
    never = len(table.steps)
    earliest = earliest_shared = never
    for i, (step, now, is_alone) in enumerate(zip(table.steps, table.intervals, alone.tolist(), strict=True)):
        if step.is_control:
            earliest = earliest_shared = never
            continue
        if rows[i, Row.WHO] == NOBODY:
            rows[i, Row.BARRIER] = NONE
            continue
        meets = (earliest_shared if is_alone else earliest) < now
        rows[i, Row.BARRIER] = MEET if meets else NONE
        earliest = now if meets else min(earliest, now)
        earliest_shared = min(never if meets else earliest_shared, never if is_alone else now)
    return rows
