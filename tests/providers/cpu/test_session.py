"""Sessions on compiled code: shapes, threads, forks, cancelling, signals, bound memory, precision."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import sardonyx as sx
from sardonyx.providers.cpu.codegen import jit

Array = np.ndarray[Any, Any]

MLP = """
<ir_version: 10, opset_import: ["" : 21]>
mlp (float[batch, seq, 48] x) => (float[batch, seq, 40] y)
{
    a = MatMul(x, w1)
    b = Add(a, b1)
    c = Relu(b)
    d = MatMul(c, w2)
    e = Softmax<axis = -1>(d)
    y = Mul(e, s)
}
"""


def mlp(width: int = 96) -> bytes:
    model = onnx.parser.parse_model(MLP)
    rng = np.random.default_rng(1)
    for name, shape in {"w1": (48, width), "b1": (width,), "w2": (width, 40), "s": (40,)}.items():
        content = rng.standard_normal(shape).astype("f") / 4
        model.graph.initializer.append(onnx.numpy_helper.from_array(content, name))
    return model.SerializeToString()


def expected(model: bytes, x: Array) -> Array:
    weights = {
        t.name: onnx.numpy_helper.to_array(t).astype("d") for t in onnx.load_from_string(model).graph.initializer
    }
    d = np.maximum(x @ weights["w1"] + weights["b1"], 0) @ weights["w2"]
    e = np.exp(d - d.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) * weights["s"]


def feed(batch: int, seq: int) -> Array:
    return np.random.default_rng(batch * 1000 + seq).standard_normal((batch, seq, 48)).astype("f")


@pytest.fixture(scope="module")
def model() -> bytes:
    return mlp()


@pytest.fixture(scope="module")
def session(model: bytes) -> sx.InferenceSession:
    made = sx.InferenceSession(model)
    assert set(made.explain().counts()) == {"cpu"}
    return made


def test_shapes_of_every_kind(session: sx.InferenceSession, model: bytes) -> None:
    for batch, seq in [(1, 1), (2, 7), (3, 64), (2, 7), (1, 65), (0, 4), (5, 0), (1, 1)]:
        x = feed(batch, seq)
        (y,) = session.run(None, {"x": x})
        assert y.shape == (batch, seq, 40)
        np.testing.assert_allclose(y, expected(model, x.astype("d")), rtol=1e-5, atol=1e-6)


def test_a_new_shape_compiles_nothing(session: sx.InferenceSession) -> None:
    session.run(None, {"x": feed(1, 3)})
    before = list(jit.statistics.compiled)
    for seq in range(1, 80):
        session.run(None, {"x": feed(1, seq)})
    assert jit.statistics.compiled == before


def test_strided_input_and_untouched_feeds(session: sx.InferenceSession, model: bytes) -> None:
    wide = np.random.default_rng(3).standard_normal((2, 5, 96)).astype("f")
    x, kept = wide[:, ::-1, ::2], wide.copy()
    (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, expected(model, x.astype("d")), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(wide, kept)


def test_results_are_the_callers_own(session: sx.InferenceSession) -> None:
    x = feed(2, 3)
    first = session.run(None, {"x": x})[0]
    kept = first.copy()
    second = session.run(None, {"x": feed(2, 3) + 1})[0]
    np.testing.assert_array_equal(first, kept)
    assert not np.shares_memory(first, second) and not np.shares_memory(first, x)


@pytest.mark.parametrize("threads", [2, 16])
def test_results_do_not_depend_on_threads(model: bytes, threads: int) -> None:
    x = feed(3, 50)
    results = []
    for count in (1, threads):
        options = sx.SessionOptions()
        options.intra_op_num_threads = count
        results.append(sx.InferenceSession(model, options).run(None, {"x": x})[0])
    np.testing.assert_array_equal(results[0], results[1])


def test_four_callers_at_once(session: sx.InferenceSession, model: bytes) -> None:
    errors: list[BaseException] = []

    def caller(k: int) -> None:
        try:
            for i in range(25):
                x = feed(1 + (k + i) % 3, 1 + (7 * i + k) % 33)
                np.testing.assert_allclose(
                    session.run(None, {"x": x})[0], expected(model, x.astype("d")), rtol=1e-5, atol=1e-6
                )
        except BaseException as error:
            errors.append(error)

    callers = [threading.Thread(target=caller, args=(k,)) for k in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join(120)
    assert not errors and not any(c.is_alive() for c in callers)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_while_the_parent_runs(session: sx.InferenceSession, model: bytes) -> None:
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            session.run(None, {"x": feed(4, 60)})

    worker = threading.Thread(target=busy)
    worker.start()
    try:
        for _ in range(3):
            child = os.fork()
            if child == 0:
                try:
                    x = feed(2, 40)
                    np.testing.assert_allclose(
                        session.run(None, {"x": x})[0], expected(model, x.astype("d")), rtol=1e-5, atol=1e-6
                    )
                    os._exit(0)
                finally:
                    os._exit(1)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
    finally:
        stop.set()
        worker.join(60)
    test_shapes_of_every_kind(session, model)


def slow_model() -> tuple[bytes, Array]:
    """Some seconds of products."""
    rounds, n = 60, 1024
    nodes = [onnx.helper.make_node("MatMul", [f"v{i}", "w"], [f"v{i + 1}"]) for i in range(rounds)]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "slow",
        [info("v0", onnx.TensorProto.FLOAT, ["n", n])],
        [info(f"v{rounds}", onnx.TensorProto.FLOAT, ["n", n])],
        [onnx.numpy_helper.from_array(np.eye(n, dtype="f"), "w")],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    return made.SerializeToString(), np.ones((4096, n), "f")


@pytest.fixture(scope="module")
def slow() -> tuple[sx.InferenceSession, Array]:
    made, x = slow_model()
    return sx.InferenceSession(made), x


def test_a_cancelled_run(slow: tuple[sx.InferenceSession, Array]) -> None:
    session, x = slow
    options = sx.RunOptions()

    def cancel() -> None:
        options.terminate = True

    threading.Timer(0.2, cancel).start()
    start = time.monotonic()
    with pytest.raises(sx.errors.Fail, match="terminate"):
        session.run(None, {"v0": x}, options)
    assert time.monotonic() - start < 5
    np.testing.assert_array_equal(session.run(None, {"v0": x[:2]})[0], x[:2])


def test_ctrl_c_ends_a_run(slow: tuple[sx.InferenceSession, Array]) -> None:
    session, x = slow
    previous: Any = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            session.run(None, {"v0": x})
            time.sleep(2)
    finally:
        signal.signal(signal.SIGINT, previous)
    np.testing.assert_array_equal(session.run(None, {"v0": x[:3]})[0], x[:3])


def test_bound_memory_is_written_in_place(session: sx.InferenceSession, model: bytes) -> None:
    x, out = feed(2, 6), np.full((2, 6, 40), 9, "f")
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(out, expected(model, x.astype("d")), rtol=1e-5, atol=1e-6)
    x[...] = feed(2, 7)[:, :6]
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(out, expected(model, x.astype("d")), rtol=1e-5, atol=1e-6)


def test_a_bound_output_may_be_the_input() -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[n] x) => (float[n] y) { z = Neg(x)  y = Exp(z) }'
    session = sx.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    x = np.arange(100, dtype="f") / 10
    kept = np.exp(-x)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(x, kept, rtol=1e-6)


@pytest.mark.parametrize(("precision", "bound"), [("highest", 1e-6), ("high", 5e-5), ("medium", 2e-2)])
def test_precision(model: bytes, precision: str, bound: float) -> None:
    x = feed(2, 33)
    (y,) = sx.InferenceSession(model, precision=precision).run(None, {"x": x})
    exact = expected(model, x.astype("d"))
    assert np.linalg.norm(y - exact) / np.linalg.norm(exact) < bound


def test_an_unknown_precision_is_refused(model: bytes) -> None:
    with pytest.raises(sx.errors.InvalidArgument, match="precision"):
        sx.InferenceSession(model, precision="double")


def test_a_bad_index_names_the_node() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (int64[n] i, float[m, 3] t) => (float[n, 3] y) { [lookup] y = Gather<axis = 0>(t, i) }"""
    session = sx.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    table = np.arange(12, dtype="f").reshape(4, 3)
    with pytest.raises(sx.errors.InvalidArgument, match="lookup"):
        session.run(None, {"i": np.array([0, 4]), "t": table})
    (y,) = session.run(None, {"i": np.array([3, -4]), "t": table})
    np.testing.assert_array_equal(y, table[[3, 0]])


def test_sizes_that_contradict_each_other() -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[n] a, float[n] b) => (float[n] y) { y = Add(a, b) }'
    session = sx.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    ones: Callable[[int], Array] = lambda n: np.ones(n, "f")  # noqa: E731
    np.testing.assert_array_equal(session.run(None, {"a": ones(4), "b": ones(4)})[0], ones(4) * 2)
    said: list[str] = []
    sx.set_default_logger_callback(lambda *given: said.append(given[-1]))
    try:
        np.testing.assert_array_equal(session.run(None, {"a": ones(4), "b": ones(1)})[0], ones(4) * 2)
        session.run(None, {"a": ones(1), "b": ones(4)})
    finally:
        sx.set_default_logger_callback(None)
    assert ["compiled again" in message for message in said] == [True]
    assert set(session._sess.engine.as_written().explain().counts()) == {"cpu"}
    with pytest.raises(sx.errors.SardonyxError):
        session.run(None, {"a": ones(4), "b": ones(3)})


def test_unnamed_dimensions_may_differ() -> None:
    """Exporters write "?" for each size that they do not know; both of an image are compiled for."""
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [-1, 3, "?", "?"])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    w = onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], [w])
    opsets = [onnx.helper.make_opsetid("", 21)]
    session = sx.InferenceSession(
        onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    )
    assert session.get_inputs()[0].shape == [None, 3, "?", "?"]
    session._sess.engine.as_written = lambda: pytest.fail("not compiled")
    for size in ((6, 9), (9, 6), (5, 5)):
        (found,) = session.run(None, {"x": np.ones((2, 3, *size), np.float32)})
        assert found.shape == (2, 4, *size) and found[0, 0, 2, 2] == 27


def test_a_mask_whose_length_contradicts_its_name_is_added_as_it_was_written() -> None:
    """Attention would hide the keys that it does not speak of; what was written broadcasts, or fails."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[1, 2, n, 8] q, float[1, 2, n, 8] k, float[1, 2, n, 8] v, float[1, 1, 1, n] mask) => (float[a, b, c, d] y) {
        kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) t = Add(s, mask) w = Softmax<axis = -1>(t)
        y = MatMul(w, v)
    }"""
    session = sx.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    assert "Attention" in {node.op_type for node in session._sess.engine.model.graph.nodes}
    rng = np.random.default_rng(0)
    feeds = {x: rng.standard_normal((1, 2, 6, 8)).astype(np.float32) for x in "qkv"}
    for length in (6, 1):
        feeds["mask"] = rng.standard_normal((1, 1, 1, length)).astype(np.float32)
        scores = feeds["q"] @ feeds["k"].swapaxes(2, 3) + feeds["mask"]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        expected = weights / weights.sum(-1, keepdims=True) @ feeds["v"]
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-6)
    for length in (3, 7):
        with pytest.raises(sx.errors.InvalidArgument, match="broadcast"):
            session.run(None, feeds | {"mask": np.zeros((1, 1, 1, length), np.float32)})


def test_a_session_is_freed_with_its_last_reference(model: bytes) -> None:
    """And its weights: not when Python looks for cycles."""
    session = sx.InferenceSession(model)
    engine = weakref.ref(session._sess.engine)
    gc.collect()
    gc.disable()
    try:
        del session
        assert engine() is None
    finally:
        gc.enable()


def test_weights_are_packed_once(tmp_path: Path, model: bytes) -> None:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(mlp(512))
    first, second = sx.InferenceSession(path), sx.InferenceSession(path)

    def kept(session: sx.InferenceSession) -> set[int]:
        executable = session._sess.engine.planned
        return {a.ctypes.data for a in executable.constants if a.nbytes > 4096}  # type: ignore[union-attr]

    assert kept(first) == kept(second) != set()


def test_profile_names_the_nodes(tmp_path: Path, model: bytes) -> None:
    import json

    options = sx.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    session = sx.InferenceSession(model, options)
    session.run(None, {"x": feed(2, 9)})
    events = json.loads(Path(session.end_profiling()).read_text())
    nodes = [e for e in events if e["cat"] == "Node"]
    assert {e["args"]["op_name"] for e in nodes} & {"MatMul", "Relu", "Softmax", "Mul"}
    assert all(e["dur"] >= 0 for e in nodes)


def test_a_plan_is_known_before_memory_is_taken(session: sx.InferenceSession, model: bytes) -> None:
    small, large = (session.plan({"x": (1, n, 48)}) for n in (10, 1000))
    assert small.constants_nbytes == large.constants_nbytes > 0
    assert large.outputs_nbytes == 100 * small.outputs_nbytes
    assert small.least_nbytes <= small.intermediates_nbytes and large.peak_nbytes > small.peak_nbytes
    bounded = sx.InferenceSession(model, max_memory=small.peak_nbytes)
    bounded.run(None, {"x": feed(1, 10)})
    with pytest.raises(sx.errors.OutOfBudget, match="max_memory"):
        bounded.run(None, {"x": feed(1, 1000)})
    with pytest.raises(sx.errors.InvalidArgument, match="every input"):
        session.plan({})


def test_weights_that_slices_cannot_represent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a signal, whose taps become channels and are not even: they are refused once, and go in bf16 terms."""
    monkeypatch.setenv("SARDONYX_CPU", "sapphirerapids")
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[B, 1, 640] x) => (float[B, F, C] y) {
        a = Pad<mode = "reflect">(x, pads) b = Conv<strides = [128]>(a, w)
        c = Relu(b) y = Conv<pads = [1, 1]>(c, v) }"""
    parsed = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((258, 1, 256)) * np.hanning(256) ** 2).astype("f")
    v = rng.standard_normal((64, 258, 3), "f") / 30
    constants = {"w": w, "v": v, "pads": np.array([0, 0, 0, 0, 0, 64])}
    parsed.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    x = rng.standard_normal((20, 1, 640), "f")
    (y,) = sx.InferenceSession(parsed.SerializeToString()).run(None, {"x": x})
    (want,) = ReferenceEvaluator(parsed).run(None, {"x": x})
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)


def test_weights_that_bf16_does_not_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CPU", "sapphirerapids")
    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[n, 64] x) => (float[n, 96] y) { y = MatMul(x, w) }'
    parsed = onnx.parser.parse_model(text)
    w = np.random.default_rng(0).standard_normal((64, 96)).astype("f")
    w[3, 4], w[5, 6] = 1e37, 1e-40
    parsed.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    x = np.random.default_rng(1).standard_normal((33, 64)).astype("f")
    (y,) = sx.InferenceSession(parsed.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(y, x.astype("d") @ w, rtol=2e-5, atol=1e-5)
