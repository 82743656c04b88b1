"""Threads, callbacks, awaiting, cancelling, forking, pickling."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as ort
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.providers.cpu.runtime import executable
from sardonyx.session import compiled_cache
from tests.session.models import LOOP, MUL, X, model, serialized


@pytest.fixture(scope="module")
def mul() -> ort.InferenceSession:
    return ort.InferenceSession(serialized(MUL))


@pytest.fixture(scope="module")
def endless() -> tuple[ort.InferenceSession, dict[str, Any]]:
    """A run that takes hours unless it is stopped."""
    return ort.InferenceSession(serialized(LOOP)), {"x": np.ones(1, np.float32), "trips": np.array(10**7)}


def test_many_threads(mul: ort.InferenceSession) -> None:
    def job(i: int) -> bool:
        return all(np.array_equal(mul.run(None, {"X": X * i})[0], X * X * i) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(job, range(16)))


def test_callbacks(mul: ort.InferenceSession) -> None:
    heard: list[tuple[Any, Any, str]] = []
    done = threading.Semaphore(0)

    def callback(results: Any, data: Any, error: str) -> None:
        heard.append((results, data, error))
        done.release()

    mul.run_async(["Y"], {"X": X}, callback, "mine")
    assert done.acquire(timeout=30)
    (results, data, error) = heard.pop()
    assert data == "mine" and not error and np.array_equal(results[0], X * X)
    mul.run_async(None, {"X": X.astype(int)}, callback, None)
    assert done.acquire(timeout=30)
    results, _, error = heard.pop()
    assert results == [] and error.startswith("Unexpected input data type")
    with pytest.raises(ValueError, match="are missing"):
        mul.run_async(None, {}, callback, None)


def test_awaiting(mul: ort.InferenceSession) -> None:
    async def main() -> None:
        runs = [mul.run_awaitable(None, {"X": X * i}, timeout=30) for i in range(5)]
        for i, (y,) in enumerate(await asyncio.gather(*runs)):
            np.testing.assert_array_equal(y, X * X * i)
        with pytest.raises(InvalidArgument):
            await mul.run_awaitable(None, {"X": X.astype(int)})
        with pytest.raises(InvalidArgument, match="Invalid output name"):
            await mul.run_awaitable(["Z"], {"X": X})

    asyncio.run(main())


def stopped(before: set[threading.Thread]) -> bool:
    """Whether the process comes to rest: no worker burns time any more."""
    for _ in range(200):
        start = time.process_time()
        time.sleep(0.05)
        if time.process_time() - start < 0.03:
            return True
    return False


def test_a_timeout_stops_the_run(endless: tuple[ort.InferenceSession, dict[str, Any]]) -> None:
    session, feed = endless

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await session.run_awaitable(None, feed, timeout=0.2)

    asyncio.run(main())
    assert stopped(set())


def test_cancelling_the_task_stops_the_run(endless: tuple[ort.InferenceSession, dict[str, Any]]) -> None:
    session, feed = endless

    async def main() -> None:
        task = asyncio.create_task(session.run_awaitable(None, feed))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert stopped(set())


def test_terminate_stops_current_runs(endless: tuple[ort.InferenceSession, dict[str, Any]]) -> None:
    session, feed = endless
    options = ort.RunOptions()
    threading.Timer(0.2, lambda: setattr(options, "terminate", True)).start()
    with pytest.raises(Fail, match="terminate flag"):
        session.run(None, feed, options)


@pytest.mark.parametrize("kind", ["bytes", "path", "proto"])
def test_sessions_are_pickled(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mul.onnx").write_bytes(serialized(MUL))
    source = {"bytes": serialized(MUL), "path": "mul.onnx", "proto": model(MUL)}[kind]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_initializer("W", ort.OrtValue.ortvalue_from_numpy(X * 2))
    content = pickle.dumps(ort.InferenceSession(source, options))
    monkeypatch.chdir("/")
    twin = pickle.loads(content)
    np.testing.assert_array_equal(twin.run(None, {"X": X})[0], X * X * 2)
    assert twin.get_session_options().intra_op_num_threads == 2


class Named(ort.InferenceSession):
    """A session with something of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(serialized(MUL))
        self.name = name


def test_subclasses_are_pickled_with_what_they_add() -> None:
    twin = pickle.loads(pickle.dumps(Named("mine")))
    assert twin.name == "mine" and np.array_equal(twin.run(None, {"X": X})[0], X * X)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_sessions_work_in_a_forked_child(mul: ort.InferenceSession) -> None:
    asyncio.run(mul.run_awaitable(None, {"X": X}))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            direct = mul.run(None, {"X": X})[0]
            awaited = asyncio.run(mul.run_awaitable(None, {"X": X}, timeout=20))[0]
            code = int(not (np.array_equal(direct, X * X) and np.array_equal(awaited, X * X)))
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("module, name", [(executable, "_compiling"), (compiled_cache, "_building")])
def test_a_child_forked_while_another_thread_compiles_compiles_too(module: Any, name: str) -> None:
    held, done = threading.Event(), threading.Event()

    def compile_for_long() -> None:
        with getattr(module, name):
            held.set()
            done.wait(60)

    thread = threading.Thread(target=compile_for_long)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if getattr(module, name).acquire(timeout=10) else 1)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
