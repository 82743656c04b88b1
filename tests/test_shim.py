"""Programs written for onnxruntime, unedited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import importlib.metadata, importlib.util, sys
import numpy as np
import onnxruntime
import onnxruntime as ort
import onnxruntime.capi.onnxruntime_pybind11_state as state
from onnxruntime import InferenceSession, SessionOptions, backend, datasets
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_inference_collection import OrtValue
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile

assert __name__ == "__main__" and sys.argv[1:] == ["one", "--two"], sys.argv
assert ort.__version__ == ort.version == importlib.metadata.version("onnxruntime") == ort.get_version_string()
assert tuple(map(int, ort.__version__.split("."))) >= (1, 31)
assert importlib.util.find_spec("onnxruntime") is not None and importlib.util.find_spec("onnxruntime.training") is None
assert "onnxruntime" in {d.metadata["Name"] for d in importlib.metadata.distributions()}
import sardonyx
assert InferenceSession is sardonyx.InferenceSession
assert state is sys.modules["sardonyx.capi.onnxruntime_pybind11_state"]
assert state.__spec__.name == "sardonyx.capi.onnxruntime_pybind11_state" and OrtValue is ort.OrtValue
assert C.OrtValue is state.OrtValue and not hasattr(ort, "session")
try:
    InferenceSession("no.onnx", providers=["CPUExecutionProvider"])
except NoSuchFile:
    pass
path = datasets.get_example("mul_1.onnx")
session = InferenceSession(path, SessionOptions(), providers=ort.get_available_providers())
x = np.ones((3, 2), np.float32)
print(session.run(None, {"X": x})[0].sum())
try:
    import onnxruntime.nothing_of_the_kind
except ModuleNotFoundError as error:
    print(error)
for name in ("tools", "transformers.optimizer"):
    if importlib.util.find_spec("sardonyx." + name.partition(".")[0]) is None:
        try:
            importlib.import_module("onnxruntime." + name)
        except ImportError as error:
            assert "not part of Sardonyx" in str(error), error
        else:
            raise AssertionError(name)
"""


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "sardonyx.shim", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("how", ["file", "module"])
def test_programs_run_unedited(how: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = ["program.py"] if how == "file" else ["-m", "program"]
    done = run(*arguments, "one", "--two", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["21.0", "No module named 'onnxruntime.nothing_of_the_kind'"]


CHILDREN = """
import multiprocessing, subprocess, sys

def child(queue):
    import onnxruntime
    queue.put(onnxruntime.InferenceSession.__module__)

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print(queue.get(timeout=60))
        process.join()
    code = "from onnxruntime.capi import _pybind_state; print(_pybind_state.OrtValue.__module__)"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_child_processes_follow(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(CHILDREN)
    done = run("parent.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "sardonyx.session.session",
        "sardonyx.session.session",
        "sardonyx.session.native_values",
    ]


def test_usage(tmp_path: Path) -> None:
    assert run("--help", cwd=tmp_path).returncode == 0
    assert run(cwd=tmp_path).returncode == 2


def test_it_must_come_first(tmp_path: Path) -> None:
    program = "import sys, types; sys.modules['onnxruntime'] = types.ModuleType('onnxruntime')\nimport sardonyx\n"
    (tmp_path / "late.py").write_text(program + "sardonyx.as_onnxruntime()")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "late.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "before anything imports it" in done.stderr


def test_importing_is_light() -> None:
    program = (
        "import sys, sardonyx, sardonyx.capi._pybind_state; sardonyx.SessionOptions, sardonyx.OrtValue; "
        "print([m for m in ('onnx', 'ml_dtypes', 'llvmlite', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
