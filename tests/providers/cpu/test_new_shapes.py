"""Shapes that did not run before: in a bucket that is planned they run as those that did, elsewhere as first ones."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx
from sardonyx.errors import InvalidArgument, OutOfBudget, SardonyxError
from sardonyx.providers.cpu.runtime import executable, plans
from sardonyx.providers.cpu.runtime.executable import CpuExecutable
from sardonyx.providers.cpu.runtime.serialize import DeserializedExecutable
from sardonyx.providers.cpu.runtime.team import Team

TEXT = """
<ir_version: 10, opset_import: ["": 21]>
g (float[n, 32] x, float[n, 64] z) => (float[n, 32] y, float[64, n] t)
{
    h = MatMul(x, w)
    a = Add(h, z)
    r = Relu(a)
    y = MatMul(r, v)
    t = Transpose<perm = [1, 0]>(r)
}
"""
FLATTENED = """
<ir_version: 10, opset_import: ["": 21]>
g (int8[a, b, c] x) => (int8[n, a] y) { r = Flatten(x) y = Transpose(r) }
"""
RNG = np.random.default_rng(0)
W, V = (RNG.standard_normal(shape).astype("f") for shape in ((32, 64), (64, 32)))


def model() -> bytes:
    made = onnx.parser.parse_model(TEXT)
    made.graph.initializer.extend([onnx.numpy_helper.from_array(W, "w"), onnx.numpy_helper.from_array(V, "v")])
    return made.SerializeToString()


def session(**options: Any) -> sardonyx.InferenceSession:
    return sardonyx.InferenceSession(model(), **options)


def feeds(n: int, of_z: int | None = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    shapes = {"x": (n, 32), "z": (of_z or n, 64)}
    return {name: rng.standard_normal(shape).astype("f") for name, shape in shapes.items()}


def check(got: list[np.ndarray], x: np.ndarray, z: np.ndarray) -> None:
    r = np.maximum(x.astype("d") @ W + z, 0)
    for a, b in zip(got, (r @ V, r.T), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def whole(made: sardonyx.InferenceSession) -> CpuExecutable:
    found = made._sess.engine.planned
    assert isinstance(found, CpuExecutable)
    return found


def test_a_new_shape_of_a_planned_bucket_needs_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session()
    made.run(None, feeds(100))
    executable = whole(made)
    monkeypatch.setattr(CpuExecutable, "run", lambda *_: pytest.fail("a context was made"))
    for n in (99, 97, 100, 98):
        check(made.run(None, feeds(n)), **feeds(n))
    assert len(executable._plans) == 1 and len(executable._shapes) == 4


def test_a_new_bucket_is_left_to_a_run_with_a_context() -> None:
    made = session()
    made.run(None, feeds(100))
    found, given = whole(made), feeds(1000)
    assert found.run_planned(list(given.values())) is None and len(found._plans) == 1
    check(made.run(None, given), **given)
    assert len(found._plans) == 2


def test_shapes_that_do_not_fit_each_other_are_refused_as_ever() -> None:
    made = session()
    made.run(None, feeds(100))
    given = feeds(100, of_z=99)
    assert whole(made).run_planned(list(given.values())) is None
    with pytest.raises(SardonyxError):
        made.run(None, given)


def test_new_shapes_of_several_buckets_in_several_threads() -> None:
    made = session()
    lengths = np.random.default_rng(1).permutation(np.r_[80:180])
    with ThreadPoolExecutor(4) as pool:
        for n, got in zip(lengths, pool.map(lambda n: made.run(None, feeds(n)), lengths), strict=True):
            check(got, **feeds(n))


def test_new_shapes_in_arrays_of_the_callers() -> None:
    made = session()
    made.run(None, feeds(100))
    for n in (99, 97, 99):
        binding, y = made.io_binding(), np.empty((n, 32), "f")
        for name, array in feeds(n).items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        binding.bind_output("t")
        made.run_with_iobinding(binding)
        check([y, binding.get_outputs()[1].numpy()], **feeds(n))


@pytest.mark.usefixtures("unverified")
def test_new_shapes_of_a_cached_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.onnx").write_bytes(model())
    sardonyx.InferenceSession(tmp_path / "model.onnx")
    made = sardonyx.InferenceSession(tmp_path / "model.onnx")
    assert isinstance(whole(made), DeserializedExecutable)
    for n in (100, 99, 300, 97, 100):
        check(made.run(None, feeds(n)), **feeds(n))
    with pytest.raises(SardonyxError):
        made.run(None, feeds(100, of_z=99))


def test_a_refused_shape_leaves_known_shapes_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session()
    made.run(None, feeds(100))

    def start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, pytest.raises(OutOfBudget, match=r"no more threads.*can't start new"):
        patch.setattr(Team, "workers", lambda team, _: team._grow(team._count + 1))
        patch.setattr(threading.Thread, "start", start)
        made.run(None, feeds(99))
    for n in (100, 99, 100):
        check(made.run(None, feeds(n)), **feeds(n))


def test_unused_plans_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 3)
    made = session()
    executable = whole(made)
    for n in (100, 200, 400, 99, 800):
        check(made.run(None, feeds(n)), **feeds(n))
    known = {n: executable._plans.find(executable.table.measure(((n, 32), (n, 64)))[1]) for n in (100, 200, 400, 800)}
    assert known[200] is None and len(executable._plans) == 3
    assert [shapes[0][0] for shapes in executable._shapes] == [100, 400, 99, 800]
    for n in (200, 99, 400, 798):
        check(made.run(None, feeds(n)), **feeds(n))


def test_the_budget_is_asked_for_every_shape() -> None:
    enough = session().plan({"x": (98, 32), "z": (98, 64)}).peak_nbytes
    made = session(max_memory=enough)
    made.run(None, feeds(98))
    with pytest.raises(OutOfBudget):
        made.run(None, feeds(100))
    check(made.run(None, feeds(97)), **feeds(97))


def test_sizes_that_the_shape_program_cannot_represent(caplog: pytest.LogCaptureFixture) -> None:
    """Empty arrays have dimensions whose product is longer than a size of memory. Numpy runs them, which is
    said once.
    """
    caplog.set_level(logging.WARNING, "sardonyx")
    made = sardonyx.InferenceSession(onnx.parser.parse_model(FLATTENED).SerializeToString())
    long, longer = (0, 1 << 31, 1 << 31), (0, 1 << 31, 1 << 31 | 1)
    for shape, said in (
        ((0, 3, 5), ""),
        ((0, 1 << 31, 1 << 30), ""),
        (long, "on numpy, slowly, once: a size has more than 62 bits"),
        ((0, 7, 3), ""),
        (long, ""),
        (longer, ""),
        (longer, ""),
    ):
        (y,) = made.run(None, {"x": np.empty(shape, np.int8)})
        assert y.shape == (shape[1] * shape[2], 0)
        assert (said in caplog.text) if said else not caplog.text
        caplog.clear()


def test_explain_tells_of_shapes_that_numpy_runs_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable, "MAX_SPECIALIZATIONS", 1)
    made = sardonyx.InferenceSession(onnx.parser.parse_model(FLATTENED).SerializeToString())
    for columns, is_told in ((1 << 31, False), (1 << 31 | 1, True)):
        made.run(None, {"x": np.empty((0, 1 << 31, columns), np.int8)})
        told = [p.on_numpy for p in made.explain().placements]
        assert any("runs bring shapes that are not compiled for: a size has more" in why for why in told) is is_told


def test_shapes_that_numpy_has_run_are_compiled_for_the_next_run() -> None:
    """A pad may crop more than an axis has; the rest is cropped from the other pad. Only single shapes are compiled."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x, float[m] a, float[k] b) => (float[j, 4] y)
    <int64[1] none = {0}> {
        before = Shape(a) cropped = Neg(before) after = Shape(b) pads = Concat<axis = 0>(cropped, none, after, none)
        p = Pad(x, pads) y = Exp(p)
    }"""
    made = sardonyx.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    for n, crop, after in ((3, 1, 2), (3, 5, 4), (3, 5, 4), (3, 5, 4), (2, 6, 5), (2, 6, 5)):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        (y,) = made.run(None, {"x": x, "a": np.ones(crop, np.float32), "b": np.ones(after, np.float32)})
        want = np.concatenate([x, np.zeros((after, 4), np.float32)])[crop:]
        np.testing.assert_allclose(y, np.exp(want), rtol=1e-6)
    specialized = whole(made).specialized
    assert specialized is not None and len(specialized._made) == 2


def test_wrong_shapes_are_not_compiled() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x, float[m, 4] z) => (float[k, 4] y)
    { y = Add(x, z) }"""
    made = sardonyx.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    for _ in range(3):
        with pytest.raises(InvalidArgument, match="broadcast"):
            made.run(None, {"x": np.ones((3, 4), np.float32), "z": np.ones((5, 4), np.float32)})
    assert whole(made).specialized is not None and not whole(made).specialized._made


def test_the_oldest_shapes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable, "MAX_SHAPES", 2)
    made = session()
    for n in (100, 99, 98, 97):
        check(made.run(None, feeds(n)), **feeds(n))
    assert [shapes[0][0] for shapes in whole(made)._shapes] == [98, 97]
