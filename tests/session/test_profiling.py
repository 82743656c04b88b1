"""The trace that a session writes."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path

import pytest

import sardonyx as ort
from sardonyx.errors import Fail
from tests.session.models import CHAIN, MUL, X, serialized


def profiled(folder: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "trace")
    return ort.InferenceSession(serialized(MUL), options)


def test_events(tmp_path: Path) -> None:
    before = time.monotonic_ns()
    session = profiled(tmp_path)
    assert before <= session.get_profiling_start_time_ns() <= time.monotonic_ns()
    session.run(None, {"X": X})
    path = session.end_profiling()
    assert path.startswith(str(tmp_path / "trace_")) and session.end_profiling() == ""
    text = Path(path).read_text().splitlines()
    assert text[0] == "[" and text[-1] == "]"
    assert all(tag in line for line in text[1:-1] for tag in ("pid", "dur", "ts", '"ph": "X"', "name", "args"))
    events = json.loads(Path(path).read_text())
    names = [e["name"] for e in events]
    assert names == [
        "model_loading_array",
        "session_initialization",
        "times_kernel_time",
        "SequentialExecutor::Execute",
        "model_run",
    ]
    node = events[2]
    assert node["cat"] == "Node" and node["args"]["op_name"] == "Mul"
    assert node["args"]["provider"] == "CPUExecutionProvider"
    assert node["args"]["input_type_shape"] == [{"float": [3, 2]}, {"float": [3, 2]}]
    assert (node["args"]["parameter_size"], node["args"]["output_size"]) == ("24", "24")
    run = events[4]
    assert run["ts"] <= node["ts"] and node["ts"] + node["dur"] <= run["ts"] + run["dur"] + 1


def test_a_session_that_ends_writes_its_trace(tmp_path: Path) -> None:
    session = profiled(tmp_path)
    del session
    gc.collect()
    (path,) = tmp_path.glob("trace_*.json")
    assert json.loads(path.read_text())


def test_without_profiling_there_is_none() -> None:
    session = ort.InferenceSession(serialized(CHAIN))
    assert session.end_profiling() == "" and session.get_profiling_start_time_ns() == 0


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    session = profiled(tmp_path / "no")
    with pytest.raises(Fail, match="cannot be written"):
        session.end_profiling()
