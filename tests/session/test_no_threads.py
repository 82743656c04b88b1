"""A system that lets a process no more threads: one of our errors, and a session that goes on afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import onnx.parser
import pytest

import sardonyx
from sardonyx.errors import OutOfBudget
from sardonyx.providers.cpu.codegen.jit import linker
from sardonyx.providers.cpu.machine import parallel
from sardonyx.providers.cpu.program import constants
from sardonyx.session import workers

TEXT = """
<ir_version: 10, opset_import: ["": 21]>
g (float[n, 64] x) => (float[n, 64] y) { a = MatMul(x, w) r = Relu(a) b = MatMul(r, v) y = Softmax(b) }
"""


@pytest.fixture
def model() -> bytes:
    parsed = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name in ("w", "v"):
        parsed.graph.initializer.append(
            onnx.numpy_helper.from_array(rng.standard_normal((64, 64)).astype(np.float32), name)
        )
    return parsed.SerializeToString()


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    def start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    yield lambda: monkeypatch.setattr(threading.Thread, "start", start)


def test_a_build(model: bytes, no_threads: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    monkeypatch.setattr(linker, "_addresses", {})
    constants._packed.clear()
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = 2
    with monkeypatch.context(), pytest.raises(OutOfBudget, match=r"no more threads.*intra_op_num_threads"):
        no_threads()
        sardonyx.InferenceSession(model, options)
    monkeypatch.undo()
    (y,) = sardonyx.InferenceSession(model, options).run(None, {"x": np.ones((3, 64), np.float32)})
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-5)


def test_a_run_elsewhere(model: bytes, no_threads: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    session = sardonyx.InferenceSession(model)
    monkeypatch.setattr(workers, "_pool", None)
    no_threads()
    with pytest.raises(OutOfBudget, match="no more threads"):
        session.run_async(None, {"x": np.ones((3, 64), np.float32)}, lambda *_: None, None)


def test_tasks_after_one_that_fails() -> None:
    done = []

    def task(i: int) -> int:
        if i == 1:
            raise RuntimeError("the second")
        time.sleep(0.01)
        done.append(i)
        return i

    assert parallel.results([lambda: task(0), lambda: task(2)], 2) == [0, 2]
    with pytest.raises(RuntimeError, match="the second"):
        parallel.results([lambda i=i: task(i) for i in range(100)], 1)  # type: ignore[misc]
    assert len(done) < 50
