"""A child that was forked while other threads held locks, compiled or imported does all that its parent does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from llvmlite.binding import ffi

import sardonyx as sx
from sardonyx import forks
from sardonyx.providers.cpu.codegen import compiler
from sardonyx.providers.cpu.machine import isa
from tests.providers.cpu.test_compiling import add_up

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
LIMIT_S = 20
HELD_S = 0.2


def status_of_child(job: Callable[[], object]) -> int:
    """How a forked child ends that does a job: 0, unless it raises or hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        code = 1
        try:
            job()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def thread_that(job: Callable[[threading.Event], object]) -> Iterator[None]:
    """While a thread does a job, from when it says that it is in the middle of it."""
    begun = threading.Event()
    thread = threading.Thread(target=job, args=(begun,))
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        thread.join()


def holds(held: AbstractContextManager[Any], until: threading.Event | None = None) -> Callable[[threading.Event], None]:
    """Holds a lock until told to stop, or for a while."""

    def hold(begun: threading.Event) -> None:
        with held:
            begun.set()
            (until or threading.Event()).wait(LIMIT_S if until else HELD_S)

    return hold


@pytest.mark.parametrize("make", [forks.lock, forks.rlock])
def test_locks_are_free_in_a_child(make: Callable[[], Any]) -> None:
    lock, is_seen = make(), threading.Event()
    with thread_that(holds(lock, is_seen)):
        try:
            assert status_of_child(lock.acquire) == 0
            assert not lock.acquire(blocking=False)
        finally:
            is_seen.set()


def _object() -> bytes:
    """A compiled kernel."""
    spec, chip = add_up(times=11), isa.current()
    return compiler.compiled(spec.name, compiler.text_of(spec, chip), chip)


@pytest.mark.parametrize("held", [compiler._gate, ffi.lib._lock], ids=["gate", "llvmlite"])
def test_a_fork_waits_for_what_is_inside_llvm(held: AbstractContextManager[Any]) -> None:
    began = time.monotonic()
    with thread_that(holds(held)):
        assert status_of_child(lambda: _object()) == 0
        assert time.monotonic() - began >= HELD_S
    assert _object()


def test_a_gate_lets_its_own_threads_fork_and_others_pass_afterwards() -> None:
    gate = forks.Gate()

    def enter() -> None:
        with gate:
            pass

    with gate:
        assert status_of_child(enter) == 0
    threads = [threading.Thread(target=lambda: [enter() for _ in range(200)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert [status_of_child(enter) for _ in range(5)] == [0] * 5
    for thread in threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads) and not gate._inside


def test_properties_are_free_in_a_child() -> None:
    class Slow:
        begun: threading.Event | None = None

        @forks.cached_property
        def made(self) -> int:
            if self.begun is not None:
                self.begun.set()
                time.sleep(HELD_S)
            return 3

    def ask(begun: threading.Event) -> None:
        slow.begun = begun
        assert slow.made == 3

    slow = Slow()
    with thread_that(ask):
        assert status_of_child(lambda: Slow().made) == 0
    assert slow.__dict__["made"] == 3


def test_a_fork_waits_for_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_load.py").write_text(
        "import threading, time, tests.test_forks as t\nt.loading.set()\ntime.sleep(0.2)\nready = True"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def load() -> None:
        import slow_to_load  # type: ignore[import-not-found]

        assert slow_to_load.ready

    thread = threading.Thread(target=load)
    thread.start()
    loading.wait()
    assert status_of_child(load) == 0
    thread.join()
    del sys.modules["slow_to_load"]


loading = threading.Event()


def test_a_fork_does_not_wait_for_imports_that_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "IMPORT_S", 0.05)
    monkeypatch.setattr(forks, "_others_import", lambda: True)
    assert status_of_child(lambda: None) == 0


def model(i: int) -> bytes:
    """One of which no other is compiled to the same kernels."""
    names = [("Exp", "Tanh", "Sigmoid", "Neg", "Abs")[i // 5**k % 5] for k in range(4)]
    body = " ".join(f"v{k + 1} = {name}(v{k})" for k, name in enumerate(names))
    text = f'<ir_version: 10, opset_import: ["": 21]> g (float[n, 8] v0) => (float[n, 8] v4) {{ {body} }}'
    return bytes(onnx.parser.parse_model(text).SerializeToString())


def test_children_start_sessions_while_the_parent_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    x, stop = np.ones((4, 8), "f"), threading.Event()

    def start(i: int) -> None:
        assert sx.InferenceSession(model(i)).run(None, {"v0": x})[0].shape == x.shape

    def keep_starting(begun: threading.Event) -> None:
        for i in range(400):
            if stop.is_set():
                return
            start(i)
            begun.set()

    with thread_that(keep_starting):
        try:
            found = [status_of_child(lambda i=i: start(500 + i)) for i in range(8)]  # type: ignore[misc]
        finally:
            stop.set()
    assert found == [0] * 8


LATE = """
import os, sys
from sardonyx import forks

def early():
    forks.imported("late")

os.register_at_fork(before=early)
for _ in range(2):
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    import late
    print(late.called)
"""
MODULE = """
import os
called = []
os.register_at_fork(before=lambda: called.append("before"), after_in_parent=lambda: called.append("after"))
"""


def test_a_module_imported_during_a_fork_releases_nothing(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(MODULE)
    (tmp_path / "program.py").write_text(LATE)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=60)
    assert (done.stdout.splitlines(), done.stderr) == (["[]", "['before', 'after']"], "")
