"""Control flow: captures, trip counts, scan axes, and the ways to leave a run early."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from sardonyx.errors import Fail, InvalidArgument, OutOfBudget
from sardonyx.interpret.bind import compile_graph
from sardonyx.interpret.context import RunContext
from tests.optimize.graphs import apply, parse

LOOP = (
    "t = Constant<value_int={trips}>() {cond} "
    "y, rows = Loop(t, {given}, x) "
    "<body = b (int64 i, bool c, float[2,3] s) => (bool d, float[2,3] u, float[2,3] v) {{ "
    "  d = {end} u = Add(s, x) v = Mul(s, s) }}>"
)


def loop(trips: int, *, given: str = "", end: str = "Identity(c)") -> object:
    cond = "k = Constant<value_int=1>() go = Cast<to=9>(k)" if given else ""
    body = LOOP.format(trips=trips, cond=cond, given=given, end=end)
    model = parse(body, outputs="float[2,3] y, float[n,2,3] rows")
    apply(model, "InferShapes")
    return compile_graph(model.graph)


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_a_loop_carries_captures_and_collects(trips: int) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y, rows = loop(trips).run([x], RunContext())
    np.testing.assert_array_equal(y, x * (trips + 1))
    assert rows.shape == (trips, 2, 3)
    for i in range(trips):
        np.testing.assert_array_equal(rows[i], (x * (i + 1)) ** 2)


def test_a_loop_may_carry_nothing() -> None:
    model = parse(
        "t = Constant<value_int=3>() w, rows = Loop(t, , x) "
        "<body = b (int64 i, bool c, float[2,3] s) => (bool c, float[2,3] s, float[2,3] v) { v = Neg(s) }>",
        outputs="float[n,2,3] rows",
    )
    apply(model, "FoldLoopInvariants", "RemoveDeadCode")
    x = np.ones((2, 3), np.float32)
    (rows,) = compile_graph(model.graph).run([x], RunContext())
    np.testing.assert_array_equal(rows, -np.ones((3, 2, 3)))


def test_an_endless_loop_is_refused_and_a_long_one_obeys_its_deadline() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(OutOfBudget, match="no reachable end"):
        loop(2**62).run([x], RunContext())
    slow = loop(2**30)
    with pytest.raises(Fail, match="deadline"):
        slow.run([x], RunContext(timeout_s=0.05))


def test_a_scan_output_of_another_shape_ends_the_loop_at_once() -> None:
    model = parse(
        f"t = Constant<value_int={2**30}>() y, rows = Loop(t, , x) "
        "<body = b (int64 i, bool c, float[n,m] s) => (bool d, float[n,k] u, float[n,m] v) "
        "{ d = Identity(c) u = Concat<axis=1>(s, x) v = Identity(s) }>",
        outputs="float[2,k] y, float[t,2,m] rows",
    )
    with pytest.raises(InvalidArgument, match="changes its shape in iteration 1"):
        compile_graph(model.graph).run([np.zeros((2, 3), np.float32)], RunContext(timeout_s=20))


def test_another_thread_can_stop_a_run() -> None:
    context = RunContext()
    slow = loop(2**30)
    timer = threading.Timer(0.05, lambda: setattr(context, "stop", True))
    timer.start()
    start = time.monotonic()
    with pytest.raises(Fail, match="terminate"):
        slow.run([np.zeros((2, 3), np.float32)], context)
    assert time.monotonic() - start < 5
    timer.join()


def test_scan_follows_axes_and_directions() -> None:
    model = parse(
        "z = Constant<value_floats=[0.0,0.0]>() "
        "last, sums = Scan(z, x) "
        "<num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[1], "
        "scan_output_directions=[1], body = b (float[2] s, float[2] e) => (float[2] n, float[2] o) "
        "{ n = Add(s, e) o = Identity(n) }>",
        outputs="float[2] last, float[2,3] sums",
    )
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    last, sums = compile_graph(model.graph).run([x], RunContext())
    np.testing.assert_allclose(last, x.sum(1), rtol=1e-5)
    np.testing.assert_allclose(sums, np.cumsum(x[:, ::-1], axis=1)[:, ::-1], rtol=1e-5)


def test_sequence_map_runs_its_body_per_element_with_captures() -> None:
    model = parse(
        "s = SequenceConstruct(x, x) "
        "m = SequenceMap(s) <body = b (float[2,3] e) => (float[2,3] o) { o = Mul(e, x) }> i = Constant<value_int=1>() "
        "y = SequenceAt(m, i)"
    )
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    np.testing.assert_array_equal(compile_graph(model.graph).run([x], RunContext())[0], x * x)


def test_an_error_names_the_node_and_its_inputs() -> None:
    model = parse("s = Constant<value_ints=[4,4]>() y = Reshape(x, s)", outputs="float[4,4] y")
    with pytest.raises(Exception, match="Reshape node"):
        compile_graph(model.graph).run([np.zeros((2, 3), np.float32)], RunContext())
