"""The garbage collector rests while sessions are built, and is as it was when the last of them is over."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sardonyx as sx
from sardonyx.session import build
from sardonyx.session.collecting import resting
from tests.session import models
from tests.test_forks import status_of_child

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_it_rests_while_a_model_is_compiled(is_on: bool, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, plain = [], build.assign

    def assign(*args: Any) -> Any:
        seen.append(gc.isenabled())
        if fails:
            raise MemoryError
        return plain(*args)

    monkeypatch.setattr(build, "assign", assign)
    (gc.enable if is_on else gc.disable)()
    content = models.model(models.MUL).SerializeToString()
    if fails:
        with pytest.raises(MemoryError):
            sx.InferenceSession(content)
    else:
        sx.InferenceSession(content)
    assert seen == [False] and gc.isenabled() == is_on


def test_it_rests_until_the_last_build_is_over() -> None:
    inside, may_end = threading.Event(), threading.Event()

    def job() -> None:
        with resting():
            inside.set()
            may_end.wait()

    other = threading.Thread(target=job)
    with resting():
        other.start()
        inside.wait()
    assert not gc.isenabled()
    may_end.set()
    other.join()
    assert gc.isenabled()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_it_does_not_rest_in_a_child() -> None:
    def job() -> None:
        assert gc.isenabled()
        with resting():
            assert not gc.isenabled()
        assert gc.isenabled()

    with resting():
        assert status_of_child(job) == 0
        assert not gc.isenabled()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_keeps_it_off() -> None:
    with resting():
        pass
    gc.disable()

    def job() -> None:
        assert not gc.isenabled()

    assert status_of_child(job) == 0


FIRST_BUILD = """
import gc, sys
import sardonyx as sx
{before}
found = []
gc.callbacks.append(lambda phase, info: found.append(info["generation"]) if phase == "start" else None)
sx.InferenceSession(sys.argv[1])
young = len(gc.get_objects(0)) + len(gc.get_objects(1))
print(young, gc.get_freeze_count(), gc.isenabled())
"""


@pytest.mark.parametrize("before", ["", "gc.freeze()"])
def test_what_the_first_build_imports_is_not_searched(before: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(models.model(models.MUL).SerializeToString())
    code = FIRST_BUILD.format(before=before)
    ran = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    young, frozen, is_on = ran.stdout.split()
    assert is_on == "True"
    if before:
        assert int(frozen) > 1000  # as the program left it
    else:
        assert int(young) < 2000 and frozen == "0"
