"""Team sizes of steps: omitted barriers, trials, and how the executor follows them."""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sardonyx.interpret.context import RunContext
from sardonyx.providers.cpu import CpuProvider
from sardonyx.providers.cpu.language.context import ALL, CONTROL, MEET, NONE, ONE, Code, Context, Row
from sardonyx.providers.cpu.memory.allocator import address
from sardonyx.providers.cpu.runtime import plans, team_size
from sardonyx.providers.cpu.runtime.executable import CpuExecutable
from tests.comparing import assert_same
from tests.lower.agree import ROUNDING, feeds, parse, part_of
from tests.lower.test_control import GRAPHS
from tests.providers.cpu.test_team import StepTable as Ring


def table_of(intervals: list[int], control: frozenset[int] = frozenset()) -> Any:
    steps = [SimpleNamespace(is_control=i in control) for i in range(len(intervals))]
    rows = np.zeros((len(steps), Row.WORDS), np.int64)
    rows[1:, Row.BARRIER] = np.where(np.diff(intervals) > 0, MEET, NONE)
    rows[list(control), Row.BARRIER] = CONTROL
    return SimpleNamespace(steps=steps, intervals=intervals, rows=rows)


def rows_for(table: Any, alone: Any) -> Any:
    return team_size.rows_for(table, table.rows, alone)


def trial_of(intervals: list[int], threads: int, expected_s: float) -> team_size.Trial:
    table = table_of(intervals)
    return team_size.Trial(table, table.rows, np.ones(len(intervals)), threads, expected_s)


@pytest.mark.parametrize("seed", range(200))
def test_barriers_order_dependent_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    intervals = np.cumsum(rng.integers(0, 2, 12)).tolist()
    alone = rng.random(12) < rng.random()
    rows = rows_for(table_of(intervals), alone)
    meets = rows[:, Row.BARRIER] == MEET
    np.testing.assert_array_equal(rows[:, Row.WHO], np.where(alone, ONE, ALL))
    for i in range(12):
        for j in range(i + 1, 12):
            if intervals[i] < intervals[j] and not (alone[i] and alone[j]):
                assert meets[i + 1 : j + 1].any()
    assert meets.sum() <= len(set(intervals)) - 1
    assert not alone.all() or not meets.any()


def test_all_threads_meet_before_a_control_step() -> None:
    rows = rows_for(table_of([0, 1, 2, 2, 3], frozenset([1])), np.array([True, False, True, True, False]))
    assert rows[:, Row.BARRIER].tolist() == [NONE, CONTROL, NONE, NONE, MEET]


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("name", GRAPHS)
def test_results_are_those_of_one_thread(name: str, threads: int) -> None:
    part = part_of(parse(*GRAPHS[name]))
    provider = CpuProvider()
    provider.threads = threads
    executable = provider.compile(part)
    assert isinstance(executable, CpuExecutable)
    given = feeds(part, {"n": 4, "m": 3}, 0)
    wanted = executable.run(given, RunContext())
    shapes = list(executable._shapes.values())  # several where a loop found too little room
    rng = np.random.default_rng(7)
    for share in (0.0, 0.3, 0.7, 1.0):
        alone = rng.random(len(executable.table.steps)) < share
        for shape in shapes:
            shape.threads, shape.rows = threads, rows_for(executable.table, alone)
            shape.plan.frames.clear()
        for want, got in zip(wanted, executable.run(given, RunContext()), strict=True):
            assert_same(got, want, ROUNDING)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_error_of_the_first_thread_stops_all(count: int) -> None:
    ring = Ring(20, fail_at=3)
    ring.rows[:, Row.WHO], ring.rows[:, Row.BARRIER] = ONE, NONE
    ring.rows[30, Row.BARRIER] = MEET
    ring.run(count)
    assert ring.slots[Context.ERROR] == Code.INDEX
    assert ring.slots[Context.ERROR_STEP] == 0
    assert ring.x[-1] == 0  # the step after it was not executed


def test_a_chain_of_steps_of_one_thread() -> None:
    ring = Ring(20)
    ring.rows[:, Row.WHO], ring.rows[:, Row.BARRIER] = ONE, NONE
    ring.run(3)
    ring.check()


QUICK, SMALL, SLOW, LONG = 1e-6, 4e-6, 2e-5, 1e-3


@pytest.mark.parametrize(
    ("seconds", "team_s", "eager_s", "choice", "who"),
    [
        ([QUICK] * 4, None, None, 1, [ALL] * 4),
        ([QUICK, SLOW, SLOW, QUICK], 30e-6, None, 2, [ONE, ALL, ALL, ONE]),
        ([QUICK, SLOW, SLOW, QUICK], 60e-6, None, 1, [ALL] * 4),
        ([QUICK, LONG, LONG, QUICK], 2.3e-3, None, 2, [ONE, ALL, ALL, ONE]),  # a team that promises much
        ([QUICK, LONG, LONG, QUICK], 2.5e-3, None, 1, [ALL] * 4),
        ([QUICK, LONG, LONG, SMALL], 1.2e-3, 1.1e-3, 2, [ONE, ALL, ALL, ALL]),
        ([QUICK, LONG, LONG, SMALL], 1.1e-3, 1.2e-3, 2, [ONE, ALL, ALL, ONE]),
        ([QUICK, LONG, LONG, SMALL], 5e-3, 6e-3, 1, [ALL] * 4),
        ([QUICK, 1e-5, QUICK, QUICK], None, None, 1, [ALL] * 4),
    ],
)
def test_the_faster_choice_is_kept(
    seconds: list[float], team_s: float | None, eager_s: float | None, choice: int, who: list[int]
) -> None:
    trial = trial_of([0, 1, 2, 3], 2, 1e-4)
    ways = [way_s for way_s in (sum(seconds), team_s, eager_s) if way_s is not None]
    ends = []
    for way_s in ways:
        for noise in range(team_size.TRIALS):
            assert trial.choice[0] == (1 if way_s is ways[0] else 2)
            trial.take(trial.choice, way_s + noise % 3 * 1e-3, np.array(seconds) * (1 + noise % 3))
            ends.append(trial.is_over)
    assert ends == [False] * (len(ends) - 1) + [True]
    assert trial.choice[0] == choice
    assert trial.choice[1][:, Row.WHO].tolist() == who


def test_long_runs_try_the_whole_team() -> None:
    trial = trial_of([0, 1, 2], 4, 1.0)
    for i in range(team_size.TRIALS):
        assert trial.choice[0] == 4
        trial.take(trial.choice, 0.3, np.array([1.0, QUICK, 0.1]))
        assert trial.is_over == (i == team_size.TRIALS - 1)
    assert trial.choice[1][:, Row.WHO].tolist() == [ALL, ONE, ALL]


def test_steps_of_a_loop_count_by_the_trip() -> None:
    table = table_of([0, 1])
    gain, rows = team_size.shared(table, table.rows, np.array([1e-2, 1e-3]), np.array([1, 1000]), 2)
    assert 0 < gain < 5e-3
    assert rows[:, Row.WHO].tolist() == [ALL, ONE]


def executable_of_two() -> CpuExecutable:
    """By two threads, of any length."""
    part = part_of(parse("y = Add(x, x)", "float[n] x", "float[n] y"))
    provider = CpuProvider()
    provider.threads = 2
    executable = provider.compile(part)
    assert isinstance(executable, CpuExecutable)
    return executable


def test_shapes_of_a_plan_learn_from_each_other() -> None:
    executable = executable_of_two()
    for n in (5, 6, 7):
        executable.run([np.ones(n, np.float32)], RunContext())
    first, second, third = executable._shapes.values()
    for _ in range(2 * team_size.TRIALS):
        for n in (5, 6):
            assert executable.run_planned([np.ones(n, np.float32)]) is not None
    assert first.trial is None and second.trial is None and third.trial is not None
    executable.run_planned([np.ones(7, np.float32)])
    executable.run([np.ones(4, np.float32)], RunContext())
    assert [shape.trial for shape in executable._shapes.values()] == [None] * 4


def test_a_large_shape_does_not_do_as_a_small_one_of_its_plan() -> None:
    """Without intermediates, all sizes are in one bucket."""
    provider = CpuProvider()
    provider.threads = 2
    executable = provider.compile(part_of(parse("y = Add(x, x)", "float[n] x", "float[n] y")))
    assert isinstance(executable, CpuExecutable)
    for n in (5, 1 << 20):
        executable.run([np.ones(n, np.float32)], RunContext())
    small, large = executable._shapes.values()
    assert small.plan is large.plan
    assert small.threads == 1 and large.threads == 2 and small.trial is not large.trial


def test_a_trial_is_made_again() -> None:
    trial = trial_of([0, 1], 2, 1e-4)
    for begun in range(2):
        for i in range(2 * team_size.TRIALS):
            threads, _ = trial.choice
            assert threads == (1 if i < team_size.TRIALS else 2)
            busy_s = 1e-3 if threads == 2 and not begun else 0
            trial.take(trial.choice, 5e-5 / threads + busy_s, np.array([SLOW, SLOW]))
        assert trial.is_over and trial.choice[0] == 1 + begun and trial.is_doubtful == (not begun)
        trial.begin()
        assert not trial.is_over and trial.choice[0] == 1
        trial.begin()


def test_a_doubtful_choice_is_looked_at_soon() -> None:
    executable = executable_of_two()
    executable.run([np.ones(5, np.float32)], RunContext())
    (shape,) = executable._shapes.values()
    soon, first, factor = plans.SOON_LOOK, plans.FIRST_LOOK, plans.FACTOR
    for is_doubtful, promises_much, runs in (
        (True, False, soon), (True, False, soon), (False, False, soon * factor),
        (True, True, first), (True, True, first), (False, True, first * factor),
    ):  # fmt: skip
        trial = shape._last_trial
        assert trial is not None
        trial.is_over, trial.is_doubtful, trial.promises_much = True, is_doubtful, promises_much
        shape.look_again()
        assert shape.runs_left == runs


def test_measurements_after_a_decision_are_ignored() -> None:
    trial, seconds = trial_of([0, 1], 2, 1e-4), np.array([SLOW, SLOW])
    first = trial.choice
    for _ in range(team_size.TRIALS):
        trial.take(first, 5e-5, seconds)
    for _ in range(team_size.TRIALS):
        trial.take(first, 1e-9, seconds / 1e3)
    assert not trial.is_over and trial.choice[0] == 2
    for _ in range(team_size.TRIALS):
        trial.take(trial.choice, 3e-5, seconds)
    assert trial.is_over and trial.choice[0] == 2


def test_frames_execute_the_step_table_chosen_last() -> None:
    part = part_of(parse("y = Add(x, x)", "float[n] x", "float[n] y"))
    executable = CpuProvider().compile(part)
    assert isinstance(executable, CpuExecutable)
    x = np.arange(5, dtype=np.float32)
    executable.run([x], RunContext())
    (shape,) = executable._shapes.values()
    (frame,) = shape.plan.frames.values()
    for _ in range(2):
        shape.trial, shape.rows = None, shape.rows.copy()  # as a trial does while other frames are idle
        assert executable.run_planned([x]) is not None
        assert frame.slots[Context.STEPS] == address(shape.rows)
        assert frame.rows is shape.rows


def test_choices_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "FIRST_LOOK", 3)
    monkeypatch.setattr(plans, "FACTOR", 2)
    executable = executable_of_two()
    x = np.arange(5, dtype=np.float32)
    executable.run([x], RunContext())
    (shape,) = executable._shapes.values()
    is_tried = []
    for _ in range(9 * team_size.TRIALS + 12):
        is_tried.append(shape.trial is not None)
        (y,) = executable.run_planned([x]) or [None]
        np.testing.assert_array_equal(y, x + x)
    runs = [len(list(group)) for tried, group in groupby(is_tried) if not tried]
    assert runs[:2] == [3, 6]


def test_a_trial_that_a_fork_cut_in_two_begins_again() -> None:
    """A child may have the count of runs that another thread had just raised, and not yet the ways that follow."""
    tried = trial_of([0, 1], 2, 1e-4)
    way, steps = tried.choice, np.full(2, 1e-5)
    tried._runs = team_size.TRIALS
    tried.take(way, 1e-4, steps)
    for _ in range(8 * team_size.TRIALS):
        tried.take(tried.choice, 1e-4, steps)
    assert tried.is_over
