"""The trace that a session writes."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import sardonyx as ort
from sardonyx.errors import Fail
from sardonyx.session import trace
from tests.session.models import CHAIN, MUL, X, serialized

NET = """<ir_version: 10, opset_import: ["" : 21]> net (float[1, 16, 40, 40] x) => (float[1, 8] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Relu(a) c = Conv<pads = [1, 1, 1, 1]>(b, v) d = Add(c, x) e = Relu(d)
    f = GlobalAveragePool(e) g = Flatten(f) h = MatMul(g, m) y = Softmax(h) }"""
LOOP = """<ir_version: 10, opset_import: ["" : 21]> loop (int64 n, float[64, 64] x) => (float[64, 64] y) {
    go = Constant<value_ints = [1]>() is = Cast<to = 9>(go) is0 = Squeeze(is)
    y = Loop(n, is0, x) <body = b (int64 i, bool c, float[64, 64] s) => (bool c2, float[64, 64] t) {
        c2 = Identity(c) p = MatMul(s, w) t = Tanh(p) }> }"""
FUSED = {"Conv", "Relu", "Add"}


def net() -> bytes:
    model = parser.parse_model(NET)
    rng = np.random.default_rng(5)
    for name, shape in (("w", (16, 16, 3, 3)), ("v", (16, 16, 3, 3)), ("m", (16, 8))):
        weight = (rng.standard_normal(shape) / 12).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model.SerializeToString()


def loop() -> bytes:
    model = parser.parse_model(LOOP)
    weight = (np.random.default_rng(6).standard_normal((64, 64)) / 8).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model.SerializeToString()


def events_of(model: bytes, feeds: Mapping[str, Any], folder: Path, runs: int = 3, threads: int = 2) -> list[Any]:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "trace")
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model, options)
    for _ in range(runs):
        session.run(None, dict(feeds))
    return list(json.loads(Path(session.end_profiling()).read_text()))


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Three runs of a small net."""
    x = np.random.default_rng(7).standard_normal((1, 16, 40, 40)).astype(np.float32)
    return events_of(net(), {"x": x}, tmp_path_factory.mktemp("net"))


def within(event: Mapping[str, Any], outer: Mapping[str, Any], slack: float = 0.002) -> bool:
    begins, ends = (e["ts"] for e in (event, outer)), (e["ts"] + e["dur"] for e in (event, outer))
    (inner_begin, outer_begin), (inner_end, outer_end) = begins, ends
    return bool(outer_begin - slack <= inner_begin and inner_end <= outer_end + slack)


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
    events = [e for e in json.loads(Path(path).read_text()) if e["cat"] in ("Session", "Node")]
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


def test_the_schema_of_chrome_traces(events: list[Any]) -> None:
    """Fields that Perfetto requires of its JSON format, by phase."""
    for event in events:
        assert set(event) == {"cat", "pid", "tid", "dur", "ts", "ph", "name", "args"}
        assert event["ph"] in "XCM" and isinstance(event["name"], str) and isinstance(event["cat"], str)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["args"], dict)
        assert event["ts"] >= 0 and event["dur"] >= 0
    assert all(e["args"]["name"] for e in events if e["ph"] == "M" and e["name"].endswith("_name"))
    assert all(isinstance(v, int) for e in events if e["ph"] == "C" for v in e["args"].values())
    slices: dict[int, list[Any]] = {}
    for event in events:
        if event["ph"] == "X":
            slices.setdefault(event["tid"], []).append(event)
    for of_thread in slices.values():
        for one, other in pairwise(sorted(of_thread, key=lambda e: (e["ts"], -e["dur"]))):
            apart = other["ts"] >= one["ts"] + one["dur"] - 0.002
            assert apart or within(other, one) or other["ts"] == one["ts"], "slices of a thread nest or follow"


def test_nodes_of_a_part_leave_no_gap(events: list[Any]) -> None:
    runs = [e for e in events if e["name"] == "model_run"]
    assert len(runs) == 3
    for run in runs:
        nodes = [e for e in events if e["cat"] == "Node" and within(e, run)]
        assert len(nodes) > 3
        for one, other in pairwise(sorted(nodes, key=lambda e: e["ts"])):
            assert other["ts"] == pytest.approx(one["ts"] + one["dur"], abs=0.003)


def test_kernels_tell_what_they_are_made_of(events: list[Any]) -> None:
    kernels = [e for e in events if e["cat"] == "Kernel" and "nodes" in e["args"]]
    convolutions = [e for e in kernels if set(e["args"]["operators"]) >= FUSED and e["args"]["flops"]]
    assert convolutions, "the residual and both activations are fused"
    args = convolutions[0]["args"]
    assert 2 * 16 * 16 * 9 * 1600 <= args["flops"] < 2 * 16 * 16 * 9 * 1600 * 1.2
    assert args["bytes"] >= 4 * 16 * 1600 and args["bound"] in ("memory", "arithmetic")
    assert args["roofline_us"] > 0 and args["roofline_share"] == pytest.approx(
        args["roofline_us"] / convolutions[0]["dur"], rel=0.9
    )
    assert set(args["origins"]) & {"c", "d", "e"} or args["origins"]
    nodes = [e for e in events if e["cat"] == "Node"]
    assert all(any(within(k, n) for n in nodes) for k in kernels), "a kernel lies within the event of its node"
    assert all(e["args"]["engine"] == "cpu" and e["args"]["kernels"] for e in nodes)


def test_kernels_add_up_to_the_run(events: list[Any]) -> None:
    """What kernels add to the time of a run is the span of the part: steps that overlap share it."""
    for run in (e for e in events if e["name"] == "model_run"):
        kernels = [e for e in events if e["cat"] == "Kernel" and within(e, run)]
        whole = max(e["ts"] + e["dur"] for e in kernels) - min(e["ts"] for e in kernels)
        told = [e["args"]["wall_us"] for e in kernels if "wall_us" in e["args"]]
        assert len(told) == len({e["args"]["step"] for e in kernels}), "each step tells once"
        assert sum(told) == pytest.approx(whole, abs=0.05) and min(told) >= 0


def test_a_counter_tells_the_arena(events: list[Any]) -> None:
    live = [e["args"]["live_bytes"] for e in events if e["name"] == "arena"]
    assert max(live) >= 4 * 16 * 1600 and min(live) >= 0 and len(set(live)) > 1


def test_runs_tell_their_inputs(tmp_path: Path) -> None:
    x = np.asfortranarray(np.random.default_rng(8).standard_normal((1, 16, 40, 40)).astype(np.float32))
    assert not x.flags.c_contiguous
    (run,) = [e for e in events_of(net(), {"x": x}, tmp_path, runs=1) if e["name"] == "model_run"]
    assert run["args"]["inputs"] == {"x": {"float": [1, 16, 40, 40]}}
    assert run["args"]["strided_bytes"] == run["args"]["input_bytes"] == x.nbytes and run["args"]["output_bytes"] == 32


def test_loops_do_not_overlap(tmp_path: Path) -> None:
    x = np.ones((64, 64), np.float32)
    events = events_of(loop(), {"n": np.array(40), "x": x}, tmp_path, runs=1)
    (run,) = [e for e in events if e["name"] == "model_run"]
    kernels = sorted((e for e in events if e["cat"] == "Kernel" and e["tid"] == run["tid"]), key=lambda e: e["ts"])
    assert len(kernels) >= 2
    for one, other in pairwise(kernels):
        assert other["ts"] >= one["ts"] + one["dur"] - 0.002


def test_nodes_on_numpy_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CPU", "none")
    events = events_of(serialized(MUL), {"X": X}, tmp_path, runs=2)
    nodes = [e for e in events if e["cat"] == "Node"]
    assert len(nodes) == 2 and all(e["args"]["engine"] == "reference" for e in nodes)
    assert not [e for e in events if e["cat"] == "Kernel"]


def test_a_long_trace_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_EVENTS", 12)
    found = events_of(serialized(MUL), {"X": X}, tmp_path, runs=50)
    (machine,) = [e for e in found if e["name"] == "machine"]
    assert machine["args"]["left_out"] > 0 and sum(e["ph"] == "X" for e in found) <= 12


def analyze_profile(profile_path: str) -> dict[str, Any]:
    """How programs for onnxruntime read a profile."""
    with open(profile_path) as f:
        events = json.load(f)
    op_times: dict[str, Any] = {}
    for event in events:
        if event.get("cat") == "Node":
            op_type = event.get("args", {}).get("op_name", "unknown")
            duration_us = event.get("dur", 0)
            if op_type not in op_times:
                op_times[op_type] = {"total_us": 0, "count": 0}
            op_times[op_type]["total_us"] += duration_us
            op_times[op_type]["count"] += 1
    return dict(sorted(op_times.items(), key=lambda x: x[1]["total_us"], reverse=True))


def test_programs_for_onnxruntime_read_it(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    session = ort.InferenceSession(net(), options)
    for _ in range(10):
        session.run(None, {"x": np.ones((1, 16, 40, 40), np.float32)})
    found = analyze_profile(session.end_profiling())
    assert {"Conv", "Softmax"} <= set(found) and all(v["total_us"] > 0 for v in found.values())
    assert {v["count"] % 10 for v in found.values()} == {0}


def test_a_session_that_cannot_be_made_leaves_no_trace(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "trace")
    with pytest.raises(ort.errors.SardonyxError):
        ort.InferenceSession(b"no model", options)
    gc.collect()
    assert not list(tmp_path.iterdir())
