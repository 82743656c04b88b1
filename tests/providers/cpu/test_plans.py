"""Plans are cached up to a number of bytes, and runs of all shapes share the session's arenas."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx
from sardonyx.errors import Fail
from sardonyx.providers.cpu.runtime import arenas, plans
from sardonyx.providers.cpu.runtime.arenas import Arena, Arenas
from sardonyx.providers.cpu.runtime.executable import CpuExecutable

TEXT = """
<ir_version: 10, opset_import: ["": 21]>
g (float[n, 32] x) => (float[n, 32] y)
{
    h = MatMul(x, w)
    r = Relu(h)
    p = Softmax<axis = 1>(r)
    s = ReduceMean<keepdims = 1>(p)
    c = Mul(r, s)
    y = MatMul(c, v)
}
"""
TWO_PARTS = """
<ir_version: 10, opset_import: ["": 21]>
g (float[n, 32] x) => (float[m, 32] y)
{
    a = Relu(x)
    t = Softmax<axis = 0>(a)
    b = Greater(t, a)
    i = NonZero(b)
    rows = Transpose<perm = [1, 0]>(i)
    f = Cast<to = 1>(rows)
    s = ReduceSum<keepdims = 1>(f)
    u = ReduceMax<keepdims = 0>(a, axes)
    z = Mul(u, s)
    y = Add(z, z)
}
"""
RNG = np.random.default_rng(0)
W, V = (RNG.standard_normal(shape).astype("f") for shape in ((32, 64), (64, 32)))


def session(text: str = TEXT, **options: Any) -> sardonyx.InferenceSession:
    made = onnx.parser.parse_model(text)
    constants = {"w": W, "v": V, "axes": np.array([0])}
    made.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items() if n in text)
    return sardonyx.InferenceSession(made.SerializeToString(), **options)


def whole(made: sardonyx.InferenceSession) -> CpuExecutable:
    found = made._sess.engine.planned
    assert isinstance(found, CpuExecutable)
    return found


def run(made: sardonyx.InferenceSession, n: int) -> None:
    x = np.random.default_rng(n).standard_normal((n, 32)).astype("f")
    r = np.maximum(x.astype("d") @ W, 0)
    p = np.exp(r - r.max(1, keepdims=True))
    s = (p / p.sum(1, keepdims=True)).mean()
    np.testing.assert_allclose(made.run(None, {"x": x})[0], r * s @ V, rtol=1e-3, atol=1e-3)


@pytest.fixture
def made_arenas(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Arena]]:
    """All that are made while a test runs, filled with what no run should see."""
    made: list[Arena] = []

    class Watched(Arena):
        def __init__(self, nbytes: int) -> None:
            super().__init__(nbytes)
            assert self._memory is not None
            self._memory[:] = 0xFF
            made.append(self)

    monkeypatch.setattr(arenas, "Arena", Watched)
    yield made


LENGTHS = [int(n) for n in np.random.default_rng(3).integers(1, 2000, 30)]


def test_plans_keep_to_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session()
    executable = whole(made)
    run(made, 10)
    monkeypatch.setattr(plans, "PLANS_NBYTES", 3 * executable._plans.nbytes + 100)
    for n in LENGTHS:
        run(made, n)
        run(made, 10)
        assert executable._plans.nbytes <= plans.PLANS_NBYTES and 2 <= len(executable._plans) <= 3
        kept = executable._plans._all
        assert all(shape.plan in kept for shape in executable._shapes.values())
        assert any(plan.fits(executable.table.measure(((10, 32),))[1]) for plan in kept)  # runs turn to it all the time


def test_a_plan_larger_than_the_budget_lives_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "PLANS_NBYTES", 1)
    made = session()
    for n in (10, 1000, 10):
        run(made, n)
        assert len(whole(made)._plans) == 1


def test_frames_of_many_callers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session()
    executable = whole(made)
    for n in (10, 1000, 100):
        run(made, n)
    (small,) = {shape.plan for shapes, shape in executable._shapes.items() if shapes[0][0] == 10}
    small.frames |= {Arena(1): frame for frame in [*small.frames.values()] * 50}
    monkeypatch.setattr(plans, "PLANS_NBYTES", executable._plans.nbytes // 2)
    held = executable._arenas.idle.pop()  # as a run of another thread has it
    run(made, 100)
    assert small not in executable._plans._all and not small.frames and len(executable._plans) == 2
    executable._arenas.put_back(held)


def test_frames_of_released_arenas_are_released() -> None:
    made = session()
    executable = whole(made)
    for _ in range(5):
        run(made, 10)
        executable._arenas.release()
    run(made, 10)
    (shape,) = executable._shapes.values()
    assert len(shape.plan.frames) == 1


def test_inputs_with_strides_or_a_type_of_their_own_are_made_ready() -> None:
    made = session()
    x = np.random.default_rng(0).standard_normal((20, 64)).astype(np.float32)
    want = made.run(None, {"x": x[::2, ::2].copy()})[0]
    strange = x[::2, ::2].copy().view(np.dtype(np.float32, metadata={"a": 1}))
    for given in (x[::2, ::2], np.asfortranarray(x[::2, ::2]), strange):
        for _ in range(3):
            np.testing.assert_array_equal(made.run(None, {"x": given})[0], want)


def test_an_input_of_another_type_stops_in_front_of_compiled_code() -> None:
    made = session()
    executable = whole(made)
    run(made, 10)
    for other in (np.float64, np.int32, ">f4"):
        with pytest.raises(Fail, match="another type than the part was compiled for"):
            executable.run_planned([np.ones((10, 32), other)])
    run(made, 10)


def test_all_shapes_share_one_arena(made_arenas: list[Arena]) -> None:
    made = session()
    executable = whole(made)
    for n in LENGTHS:
        run(made, n)
        assert len(executable._arenas.idle) == 1
    (idle,) = executable._arenas.idle
    needed = max(plan.run_nbytes for plan in executable._plans._all)
    assert needed <= idle.nbytes <= 1.26 * needed
    grown = [arena for arena in made_arenas if arena is not idle]
    assert all(arena._memory is None for arena in grown)
    count = len(made_arenas)
    for n in LENGTHS:
        run(made, n)
    assert len(made_arenas) == count


def test_a_repeated_shape_keeps_its_plan(made_arenas: list[Arena]) -> None:
    made = session()
    run(made, 300)
    (idle,) = whole(made)._arenas.idle
    at = idle.at
    for n in (300, 299, 20, 300, 300):
        run(made, n)
        assert whole(made)._arenas.idle == [idle] and idle.at == at
    assert made_arenas == [idle]


def test_parts_of_a_model_share_arenas(made_arenas: list[Arena]) -> None:
    made = session(TWO_PARTS)
    for n in (3000, 10, 2000):
        x = np.random.default_rng(n).standard_normal((n, 32)).astype("f")
        (y,) = made.run(None, {"x": x})
        a = np.maximum(x, 0)
        t = np.exp(a.astype("d") - a.max(0))
        wanted = 2 * a.max(0) * np.argwhere(t / t.sum(0) > a).sum()
        np.testing.assert_allclose(y, np.broadcast_to(wanted, y.shape), rtol=1e-3)
    assert len([arena for arena in made_arenas if arena._memory is not None]) == 1


def test_each_of_several_callers_has_an_arena_of_its_own(made_arenas: list[Arena]) -> None:
    made = session()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: run(made, n), LENGTHS * 4))
    live = [arena for arena in made_arenas if arena._memory is not None]
    assert 1 <= len(live) <= 8 and set(live) == set(whole(made)._arenas.idle)


def test_idle_arenas_keep_to_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "IDLE_NBYTES", 300_000)
    found = Arenas()
    held = [found.fitting(None, n) for n in (100_000, 50_000, 200_000, 40_000)]
    found.idle += held
    assert found.most_idle == 1
    found.trim()
    assert found.idle_nbytes <= 300_000 and held[2] in found.idle
    assert [arena in found.idle for arena in held] == [arena._memory is not None for arena in held]
    large = found.fitting(found.idle.pop(), 1_000_000)
    found.idle.append(large)
    found.trim()
    assert found.idle == [large]


def test_the_smallest_that_is_large_enough_is_taken() -> None:
    found = Arenas()
    small, middle, large = (found.fitting(None, n) for n in (10_000, 100_000, 1_000_000))
    found.idle += [large, middle]
    assert found.fitting(small, 50_000) is middle and found.idle == [large, small]
    assert found.fitting(middle, 5) is middle and found.idle == [large, small]


def test_no_memory_for_an_arena_leaves_the_session_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session()
    run(made, 10)

    def fails(nbytes: int) -> Any:
        raise MemoryError

    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(arenas, "reserve", fails)
            run(made, 2000)
        run(made, 10)
        run(made, 500)


def test_a_dropped_session_leaves_nothing_for_the_collector(made_arenas: list[Arena]) -> None:
    gc.collect()
    gc.disable()
    try:
        made = session()
        run(made, 500)
        executable = whole(made)
        alive = [weakref.ref(executable), weakref.ref(executable._arenas), *map(weakref.ref, executable.constants)]
        del executable, made
        assert not any(ref() is not None for ref in alive[:2])
        assert made_arenas and all(arena._memory is None for arena in made_arenas)
    finally:
        gc.enable()


def test_arenas_are_released_by_run_option(made_arenas: list[Arena]) -> None:
    made, options = session(), sardonyx.RunOptions()
    run(made, 500)
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "gpu:0;cpu:0")
    made.run(None, {"x": np.zeros((20, 32), "f")}, options)
    assert not whole(made)._arenas.idle and all(arena._memory is None for arena in made_arenas)
    run(made, 500)


def test_arenas_given_back_while_others_run(made_arenas: list[Arena]) -> None:
    made, is_over = session(), threading.Event()

    def release() -> None:
        while not is_over.wait(1e-3):
            whole(made)._arenas.release()

    with ThreadPoolExecutor(5) as pool:
        releasing = pool.submit(release)
        list(pool.map(lambda n: run(made, n), LENGTHS * 3))
        is_over.set()
        releasing.result()


def test_arenas_that_outlive_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that other modules hold die while the interpreter ends, after the names of the allocator."""
    held = Arenas()
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    monkeypatch.setattr(arenas, "allocator", None)
    held.__del__()
