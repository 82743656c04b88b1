"""Branches and loops in the step table, by sessions, against the operators' own meanings."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sardonyx.errors import Fail, InvalidArgument, OutOfBudget
from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.ir.graph import Node
from sardonyx.lower.rules import control as lower_control
from sardonyx.providers.cpu import CpuProvider
from sardonyx.providers.cpu.runtime import plans, slices
from sardonyx.providers.cpu.runtime.executable import CpuExecutable
from sardonyx.providers.cpu.runtime.room import Room
from tests.comparing import assert_same
from tests.lower.agree import ROUNDING, feeds, parse, part_of
from tests.lower.test_control import GRAPHS


@pytest.fixture(autouse=True)
def teams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small runs wake a team too."""
    monkeypatch.setattr(plans, "ALONE_S", -1.0)
    monkeypatch.setattr(plans, "BARRIER_S", 0.0)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", GRAPHS)
def test_control_flow_runs_in_the_table(name: str, threads: int) -> None:
    part = part_of(parse(*GRAPHS[name]))
    provider = CpuProvider()
    provider.threads = threads
    executable = provider.compile(part)
    assert isinstance(executable, CpuExecutable)
    program = Program(part.nodes, part.inputs, part.outputs, bind)
    for sizes in ({"n": 4, "m": 3}, {"n": 1, "m": 1}, {"n": 9, "m": 20}, {"n": 0, "m": 3}):
        for seed in range(2):
            given = feeds(part, sizes, seed)
            for want, got in zip(program.run(given, RunContext()), executable.run(given, RunContext()), strict=True):
                if want.size or sizes["n"]:
                    assert_same(got, want, ROUNDING)
                else:
                    assert got.size == 0


LONG = (
    "y = Loop(m, , x) <body = b (int64 i, bool c, float[2,3] s) => (bool c, float[2,3] u) { u = Add(s, x) }>",
    "int64 m, float[2,3] x",
    "float[2,3] y",
)
ONES = np.ones((2, 3), np.float32)


def executable(graph: tuple[str, str, str], threads: int = 2) -> CpuExecutable:
    provider = CpuProvider()
    provider.threads = threads
    made = provider.compile(part_of(parse(*graph)))
    assert isinstance(made, CpuExecutable)
    return made


@pytest.mark.parametrize("threads", [1, 2])
def test_signals_are_handled_during_a_loop(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 1e-5)
    run, calls = executable(LONG, threads), []
    execute = run._team.execute
    monkeypatch.setattr(run._team, "execute", lambda *args: (calls.append(1), execute(*args)))
    (y,) = run.run([np.array(3000), ONES], RunContext())
    np.testing.assert_array_equal(y, ONES * 3001)
    assert len(calls) > 2


@pytest.mark.parametrize("threads", [1, 2])
def test_python_does_not_look_in_between_once_a_run_was_short(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "FLOPS_PER_SECOND", 1.0)
    graph = "h = MatMul(x, w) y = MatMul(h, w)", "float[n,64] x, float[64,64] w", "float[n,64] y"
    run, calls = executable(graph, threads), []
    execute = run._team.execute
    monkeypatch.setattr(run._team, "execute", lambda *args: (calls.append(1), execute(*args)))
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((8, 64), np.float32), rng.standard_normal((64, 64), np.float32)
    monkeypatch.setattr(plans, "SLICE_S", 10.0)
    assert run.run_planned([x, w]) is None
    (first,) = run.run([x, w], RunContext())
    assert len(calls) > 1
    calls.clear()
    for again in (run.run([x, w], RunContext()), run.run_planned([x, w])):
        assert again is not None
        np.testing.assert_array_equal(again[0], first)
    assert len(calls) == 2
    np.testing.assert_allclose(first, x @ w @ w, rtol=1e-4, atol=1e-3)


def test_short_runs_of_data_dependent_work_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "FLOPS_PER_SECOND", 1.0)
    monkeypatch.setattr(plans, "SLICE_S", 10.0)
    dear, cheap = (f"() => (float[n,64] y) {{ {arm} }}" for arm in ("h = MatMul(x, w) y = MatMul(h, w)", "y = Neg(x)"))
    body = f"y = If(c) <then_branch = t {dear}, else_branch = e {cheap}>"
    run, calls = executable((body, "bool c, float[n,64] x, float[64,64] w", "float[n,64] y"), 1), []
    execute = run._team.execute
    monkeypatch.setattr(run._team, "execute", lambda *args: (calls.append(1), execute(*args)))
    x, w = np.ones((8, 64), np.float32), np.eye(64, dtype=np.float32)
    for c, want in ((False, -x), (True, x)):
        calls.clear()
        np.testing.assert_array_equal(run.run([np.array(c), x, w], RunContext())[0], want)
    assert len(calls) > 1 and run.run_planned([np.array(True), x, w]) is None


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("body", ["u = Add(s, x)", "u = Identity(s)"])
def test_a_long_loop_obeys_its_deadline_and_other_threads(body: str, threads: int) -> None:
    run = executable((LONG[0].replace("u = Add(s, x)", body), *LONG[1:]), threads)
    args = [np.array(2**31 - 1), ONES]
    with pytest.raises(Fail, match="deadline"):
        run.run(args, RunContext(timeout_s=0.02))
    context = RunContext()
    timer = threading.Timer(0.05, lambda: setattr(context, "stop", True))
    timer.start()
    with pytest.raises(Fail, match="terminate"):
        run.run(args, context)
    timer.join()
    (y,) = run.run([np.array(2), ONES], RunContext())
    np.testing.assert_array_equal(y, ONES * 3 if "x" in body else ONES)


def test_a_loop_without_a_reachable_end_is_refused() -> None:
    with pytest.raises(OutOfBudget, match="no reachable end"):
        executable(LONG).run([np.array(2**62), ONES], RunContext())


def test_an_error_in_a_trip_names_its_node_and_ends_the_loop() -> None:
    body = """t = Constant<value_int=9>()
        y = Loop(t, , x) <body = b (int64 i, bool c, float[4] s) => (bool c, float[4] u)
        { [picker] e = Gather<axis=0>(x, i) u = Add(s, e) }>"""
    run = executable((body, "float[4] x", "float[4] y"))
    x = np.ones(4, np.float32)
    with pytest.raises(InvalidArgument, match=r"picker.*index is out of bounds") as found:
        run.run([x], RunContext())
    assert "4" in str(found.value)


def test_a_profile_has_one_event_for_all_trips() -> None:
    events: list[tuple[str, int]] = []

    def record(node: Node, start: int, end: int, *_: object) -> None:
        events.append((node.op_type, end - start))

    run = executable(LONG)
    run.run([np.array(2000), ONES], RunContext(record=record))
    (took,) = [took for op, took in events if op == "Add"]
    assert took > 0


def test_concurrent_runs_count_their_own_trips() -> None:
    run = executable(LONG)

    def one(trips: int) -> bool:
        (y,) = run.run([np.array(trips), ONES], RunContext())
        return bool((y == trips + 1).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, [700, 3, 1500, 0, 40] * 8))


def test_a_branch_that_sizes_exclude_fails_only_if_taken() -> None:
    body = """ax = Constant<value_ints=[1]>()
        y = If(p) <then_branch = t () => (a) { a = Squeeze(x, ax) },
                   else_branch = e () => (b) { b = ReduceSum<keepdims=0>(x, ax) }>"""
    run = executable((body, "bool p, float[n,k] x", "float[n] y"))
    wide, thin = np.ones((3, 4), np.float32), np.ones((3, 1), np.float32)
    yes, no = np.array(True), np.array(False)
    for _ in range(2):
        np.testing.assert_array_equal(run.run([no, wide], RunContext())[0], [4, 4, 4])
        np.testing.assert_array_equal(run.run([yes, thin], RunContext())[0], [1, 1, 1])
        with pytest.raises(InvalidArgument):
            run.run([yes, wide], RunContext())
    again = run.run_planned([no, wide])
    assert again is not None
    np.testing.assert_array_equal(again[0], [4, 4, 4])
    assert run.run_planned([yes, wide]) is None


def test_a_planned_run_of_a_loop_gives_the_same() -> None:
    session = executable(GRAPHS["scan"])
    x = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    expected = session.run([x], RunContext())
    again = session.run_planned([x])
    assert again is not None
    for got, want in zip(again, expected, strict=True):
        np.testing.assert_array_equal(got, want)
    assert executable(LONG).run_planned([np.array(2), ONES]) is None


FADING = (
    """more = Constant<value_float=0.5>() k = Constant<value_int=1>() go = Cast<to=9>(k)
    y, rows = Loop(, go, x) <body = b (int64 i, bool c, float[3] s) => (bool d, float[3] u, float[3] v) {
      u = Mul(s, more) v = Identity(s) a = ReduceMax<keepdims=0>(u) d = Less(least, a) }>""",
    "float[3] x, float least",
    "float[3] y, float[r,3] rows",
)


def fading(x: np.ndarray, least: float) -> np.ndarray:
    rows = [x]
    while rows[-1].max() / 2 > least:
        rows.append(rows[-1] / 2)
    return np.stack(rows)


@pytest.mark.parametrize("threads", [1, 2])
def test_room_for_rows_grows_and_stays(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower_control, "MOST_ROOM", 4)
    run = executable(FADING, threads)
    x = np.array([1, 0.5, 0.25], np.float32)
    repeated: list[int] = []
    grow = Room.grow
    monkeypatch.setattr(Room, "grow", lambda room, used: (repeated.append(used), grow(room, used)))
    for least in (0.3, 1e-30, 0.3, 1e-9, 2.0):
        want = fading(x, least)
        given = [x, np.array(least, np.float32)]
        for found in (run.run(given, RunContext()), run.run_planned(given)):
            assert found is not None
            np.testing.assert_array_equal(found[1], want)
            np.testing.assert_array_equal(found[0], want[-1] / 2)
    assert repeated == [4, 16, 64]
    assert run.memory([(3,), ()]).outputs_nbytes >= 128 * 12


def test_threads_make_room_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower_control, "MOST_ROOM", 4)
    run = executable(FADING)
    x = np.array([1, 0.5, 0.25], np.float32)

    def one(least: float) -> bool:
        rows = run.run([x, np.array(least, np.float32)], RunContext())[1]
        return bool((rows == fading(x, least)).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, [1e-20, 0.1, 1e-3, 1e-30] * 10))


@pytest.mark.parametrize("stop", ["deadline", "terminate"])
def test_a_loop_that_collects_for_ever_can_be_stopped(stop: str) -> None:
    graph = FADING[0].replace("float[3] v", "float[0] v").replace("v = Identity(s)", "v = Expand(none, zero)")
    graph = "zero = Constant<value_ints=[0]>() none = Constant<value_float=0.0>() " + graph.replace(
        "Mul(s, more)", "Neg(s)"
    )
    run = executable((graph, FADING[1], "float[3] y, float[r,0] rows"))
    args, context = [ONES[0], np.array(-9, np.float32)], RunContext(timeout_s=0.1 if stop == "deadline" else None)
    timer = threading.Timer(0.1, lambda: setattr(context, "stop", stop == "terminate"))
    timer.start()
    with pytest.raises((Fail, OutOfBudget), match=f"{stop}|too many rows"):
        run.run(args, context)
    timer.join()


def test_rows_that_take_too_much_memory_are_refused() -> None:
    graph = FADING[0].replace("float[3]", "float[n]").replace("Mul(s, more)", "Neg(s)")
    run = executable((graph, "float[n] x, float least", "float[n] y, float[r,n] rows"))
    with pytest.raises(OutOfBudget, match="output would be"):
        run.run([np.ones(1 << 20, np.float32), np.array(-9, np.float32)], RunContext())


@pytest.mark.parametrize(
    "graph", [LONG, FADING, ("s = Softmax(x) t = MatMul(s, s) z = MatMul(t, s)", "float[3,3] x", "float[3,3] z")]
)
def test_a_run_that_others_know_of_is_told_that_it_is_cancelled(graph: tuple[str, str, str], monkeypatch: Any) -> None:
    run, context = executable(graph, 1), RunContext()
    least = np.array(0.001, np.float32)
    args = (
        [np.array(5), ONES] if graph is LONG else [ONES[0], least] if graph is FADING else [np.eye(3, dtype=np.float32)]
    )
    for _ in range(2):
        run.run(args, RunContext())
    execute = run._team.execute
    monkeypatch.setattr(run._team, "execute", lambda at: (setattr(context, "stop", True), execute(at)))
    with pytest.raises(Fail, match="terminate"):
        run.run(args, context)
