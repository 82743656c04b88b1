"""Who takes part in each step of a run: the whole team, or its first thread alone.

A small step is over before a team has met. What is small is measured, not guessed: the first quick runs of a plan are
timed, step by step. Then the steps in which a team saves enough meetings are shared, and the first thread does the
others, between which nobody waits for anybody; how many are enough is tried. Where that promises little, one thread
alone may turn out to be quicker, as when workers sleep between runs: then it is in the race. What promises much is not
left to a busy moment, and nothing for good: a plan is tried again now and then.
Results do not depend on who computes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import forks
from sardonyx.providers.cpu.language.context import ALL, MEET, NOBODY, NONE, ONE, Row

if TYPE_CHECKING:
    from sardonyx.providers.cpu.runtime.step_table import Table

Array = np.ndarray[Any, Any]
Way = tuple[int, Array]
"""How many threads a run takes, and the rows of its table."""

MEETING_S = 1.5e-6
"""What it takes a team whose threads are awake to meet."""
WORTH_S = 8e-6
"""What a team must save in a run to be woken for it."""
CLEAR_S, CLEAR_SHARE = 4e-5, 0.2
"""Savings, and their share of a run by one thread, from which on that is out of the race."""
MEETINGS = (2, 0.5)
"""Meetings that a step must save to be shared. By the clock of one thread two, but a step that is not shared fetches
from other threads' caches what they wrote: both are tried."""
DOUBT = 0.05
"""Share of a run that more meetings must save: they cost most when the machine is busy."""
TRIALS = 4
"""Runs of each kind, of which the shortest times count."""
TRIED_S = 5e-3
"""Runs expected to take longer are worth a team in any case."""


class Trial:
    """The first runs of a plan: some by one thread, then some by the team in each of several ways; the quickest stays.

    Long runs are made by the team from the beginning: what its threads take for a step is added up.
    """

    def __init__(self, table: Table, rows: Array, turns: Array, threads: int, expected_s: float) -> None:
        """``rows`` are those of its shapes, all steps shared; ``turns`` is how often each step runs."""
        self._table, self._rows, self._turns, self._threads = table, rows, turns, threads
        self._is_long = expected_s > TRIED_S
        self._steps = np.full(len(table.steps), np.inf)
        self._lock, self.is_over = forks.lock(), True
        self.choice: Way = threads, rows
        """That of the next run."""
        self.is_doubtful = False
        """Whether one thread was quicker than the team, though steps promised another thing: somebody else may have had
        one of its CPUs, and two threads of it are on another until the system parts them."""
        self.begin()

    def begin(self) -> None:
        """The first run, of a trial that is not going on; what steps took at least stays known."""
        with self._lock:
            if self.is_over:
                self._restart()

    def _restart(self) -> None:
        self.choice = self._threads if self._is_long else 1, self._rows
        self._ways, self._best = [self.choice], [np.inf]
        self._runs, self.is_over = 0, False

    def take(self, way: Way, took: float, steps: Array) -> None:
        """How long a run took, and each of its steps, of all threads. Runs in a way that is no longer asked for, as
        others in other threads may be, count nothing.
        """
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
                quickest = min(range(len(self._ways)), key=lambda i: self._best[i] * (1 + DOUBT * (i > 1)))
                self.choice, self.is_over = self._ways[quickest], True
                self.is_doubtful = quickest == 0 and len(self._ways) > 1
            else:
                self.choice = self._ways[self._runs // TRIALS]

    def _find_ways(self) -> None:
        """For the team, by what steps take one thread."""
        found = [shared(self._table, self._rows, self._steps, self._turns, self._threads, n) for n in MEETINGS]
        gain, rows = found[0]
        if self._is_long:
            self._ways = [(self._threads, rows)]
        elif gain > WORTH_S:
            if gain > CLEAR_S and gain > CLEAR_SHARE * float(self._steps.sum()):
                self._best[0] = np.inf
            others = [rows, *(other for _, other in found[1:] if not np.array_equal(other, rows))]
            self._ways += [(self._threads, one) for one in others]
            self._best += [np.inf] * len(others)


def shared(
    table: Table, plain: Array, seconds: Array, turns: Array, threads: int, least: float = MEETINGS[0]
) -> tuple[float, Array]:
    """What a team saves, and the rows for it, where one thread takes ``seconds`` for each step.

    Steps are shared that save the time of ``least`` meetings.
    """
    saved = seconds * (1 - 1 / threads)
    alone = saved <= least * MEETING_S * turns
    rows = rows_for(table, plain, alone)
    meetings = float(turns[rows[:, Row.BARRIER] != NONE].sum())
    return float(saved[~alone].sum()) - meetings * MEETING_S, rows


def rows_for(table: Table, plain: Array, alone: Array) -> Array:
    """The rows of a shape, where the first thread does some steps alone.

    Steps of one interval touch no common memory. So all meet in front of a shared step if a step of an earlier interval
    came since they last met, and in front of one that is not if a shared step did.
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
