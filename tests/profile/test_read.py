"""Profiles: what is read of a trace, ours or onnxruntime's, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx.errors import InvalidArgument, NoSuchFile
from sardonyx.profile import Profile, profile_model, read_trace
from sardonyx.profile.read import profile_of, typical_runs
from tests.profile import planted


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    model, feeds = planted.convnet()
    return profile_model(model, feeds, runs=3, trace=tmp_path_factory.mktemp("trace") / "trace.json")


def test_kernels(found: Profile) -> None:
    assert len(found.runs) == 3 and found.seconds > 0 and 0 < found.nodes_share <= 1
    residual = next(k for k in found.kernels if "d" in k.nodes)
    assert set(residual.operators) == {"Conv", "Add", "Relu"} and residual.op_type == "Conv"
    assert residual.flops >= 2 * 4 * 16 * 16 * 9 * 1024 and residual.weight_nbytes >= 4 * 16 * 16 * 9
    assert residual.nbytes >= residual.weight_nbytes and residual.bound in ("memory", "arithmetic")
    assert residual.seconds > 0 and residual.busy_s > 0 and residual.roofline_s > 0
    assert residual.roofline_share == pytest.approx(residual.roofline_s / residual.seconds)
    assert set(residual.origins) >= {"d"} and residual.label.count(",") == 1
    times = [k.seconds for k in found.hot(len(found.kernels))]
    assert times == sorted(times, reverse=True) and found.peak_nbytes >= 4 * 4 * 16 * 1024


def test_nodes_and_totals(found: Profile) -> None:
    assert {n.op_type for n in found.nodes} >= {"Conv", "MaxPool", "Gemm"} and {n.engine for n in found.nodes} == {
        "cpu"
    }
    assert found.by_operator()["Conv"] == pytest.approx(sum(n.seconds for n in found.nodes if n.op_type == "Conv"))
    assert found.flops == sum(k.flops for k in found.kernels) and found.nbytes > 0
    assert found.runs[0].inputs == {"x": ("float", (4, 3, 32, 32))} and found.runs[0].output_nbytes == 160
    assert (found.settings["precision"] == "highest" and {r["threads"] for r in found.rates} >= {1}) or found.rates


def spent(name: str, cat: str, start_us: float, took_us: float, **args: Any) -> dict[str, Any]:
    return {"name": name, "cat": cat, "ph": "X", "ts": start_us, "dur": took_us, "tid": 1, "args": args}


def trace_of(runs: list[list[float]]) -> list[dict[str, Any]]:
    """Events of runs whose kernels, each of a node of its own, take so many microseconds."""
    events: list[dict[str, Any]] = []
    at = 0.0
    for kernels in runs:
        events.append(spent("model_run", "Session", at, sum(kernels)))
        for i, took in enumerate(kernels):
            step = {"part": "part", "step": i, "variant": "", "threads": 1, "arithmetic": "f32"}
            named = {"operators": ["Relu"], "nodes": [f"n{i}"], "origins": []}
            counts = {"flops": 0, "bytes": 0, "weight_bytes": 0}
            events.append(spent(f"n{i}_kernel_time", "Node", at, took, op_name="Relu"))
            events.append(spent("loop", "Kernel", at, took, op_name="Relu", **step, **named, **counts))
            at += took
        at += 1.0
    return events


def test_kernels_add_up_to_a_run_where_others_disturb_it() -> None:
    """Each run is held up in another kernel, so that no kernel's median shows it."""
    runs = [[100.0 + 400.0 * (k == i % 5) for k in range(5)] for i in range(20)]
    found = profile_of(trace_of(runs), "trace")
    assert found.seconds == pytest.approx(900e-6)
    for uses in (found.kernels, found.nodes):
        assert sum(use.seconds for use in uses) == pytest.approx(found.seconds, rel=1e-6)


def test_runs_that_are_far_from_the_median_do_not_count() -> None:
    found = profile_of(trace_of([[100.0, 200.0]] * 8 + [[100.0, 9000.0]] * 2), "trace")
    assert [k.seconds for k in found.kernels] == pytest.approx([100e-6, 200e-6])


def test_kernels_of_rare_runs_are_told_of() -> None:
    found = profile_of(trace_of([[100.0]] * 8 + [[100.0, 9000.0]]), "trace")
    assert [k.seconds for k in found.kernels] == pytest.approx([100e-6, 9000e-6])


def test_typical_runs() -> None:
    assert typical_runs([5.0, 1.0, 3.0, 2.0, 4.0, 9.0, 0.0, 3.5]) == {2, 3, 4, 7}
    assert typical_runs([3.0]) == {0} and typical_runs([2.0, 1.0, 9.0]) == {0, 1, 2}


def test_reports(found: Profile) -> None:
    told = json.loads(json.dumps(found.to_json()))
    assert told["seconds"] == found.seconds and len(told["kernels"]) == len(found.kernels)
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80 and any("conv" in line for line in lines)


def test_the_trace_is_kept(tmp_path: Path) -> None:
    model, feeds = planted.perceptron()
    path = tmp_path / "kept.json"
    found = profile_model(model, feeds, runs=2, trace=path)
    again = read_trace(path)
    assert [k.nodes for k in again.kernels] == [k.nodes for k in found.kernels]
    assert len(again.runs) > len(found.runs) == 2, "those that warm up are in the file"
    assert again.is_own_calls and not found.is_own_calls


def test_generated_feeds() -> None:
    model, _ = planted.perceptron()
    sizes = {"dimensions": {"batch": 3}}, {"shapes": {"x": (3, 128)}}
    for size in sizes:
        found = profile_model(model, runs=1, **size)  # type: ignore[arg-type]
        assert found.runs[0].inputs == {"x": ("float", (3, 128))}


def test_too_few_runs() -> None:
    model, feeds = planted.perceptron()
    with pytest.raises(InvalidArgument, match="number of runs"):
        profile_model(model, feeds, runs=0)


def test_a_trace_of_onnxruntime(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, feeds = planted.convnet()
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "ort")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for _ in range(3):
        session.run(None, feeds)
    found = read_trace(session.end_profiling())
    assert len(found.runs) == 3 and not found.kernels
    assert any(n.op_type in ("Conv", "FusedConv") for n in found.nodes) and sum(found.by_operator().values()) > 0
    assert "not compiled" in str(found)


def event(category: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"cat": category, "name": name, "ph": "X", "ts": ts, "dur": dur, "tid": 1, "pid": 1, "args": args}


def test_nodes_within_nodes_count_once() -> None:
    events = [
        event("Session", "model_run", 0, 100),
        event("Node", "loop_kernel_time", 5, 90, op_name="Loop"),
        event("Node", "body_kernel_time", 10, 30, op_name="Add"),
        event("Node", "body_kernel_time", 45, 20, op_name="Add"),
    ]
    found = profile_of(events, "made up")
    assert found.by_operator() == pytest.approx({"Add": 50e-6, "Loop": 40e-6})
    assert found.nodes_share == pytest.approx(0.9) and {n.name: n.calls for n in found.nodes} == {"loop": 1, "body": 2}


def test_waits_belong_to_the_kernel_before_them() -> None:
    facts = dict(
        op_name="Conv", part="p", step="0", variant="", operators=["Conv"], nodes=["c"], origins=["c"], threads=2,
        flops=8, bytes=4, weight_bytes=0, arithmetic="f32",
    )  # fmt: skip
    worker = {"tid": 2}
    events = [
        event("Session", "model_run", 0, 100),
        event("Kernel", "gemm", 10, 50, **facts),
        event("Kernel", "gemm", 20, 20, op_name="Conv", part="p", step="0") | worker,
        event("Barrier", "barrier", 40, 20, part="p", step="0") | worker,
    ]
    (kernel,) = profile_of(events, "made up").kernels
    assert (kernel.seconds, kernel.busy_s, kernel.waited_s) == pytest.approx((50e-6, 70e-6, 20e-6))
    assert kernel.roofline_share == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\xff\xd8\xff\xe0 JFIF", "not JSON"),
        ("{}", "no list"),
        ("[]", "no event of a run"),
        ('[{"name": "x"}]', "no cat"),
        ('[{"name": "model_run", "cat": "Session", "ph": "X", "ts": "soon", "args": {}}]', "no ts"),
        ('[{"name": "model_run", "cat": "Session", "ph": "X", "ts": 1, "dur": "long", "args": {}}]', "no number"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_files_that_are_no_trace(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InvalidArgument, match=message) as refused:
        read_trace(path)
    assert str(path) in str(refused.value)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match="no such trace"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_trace(tmp_path)


def test_a_broken_field(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    run = event("Session", "model_run", 0, 9)
    broken = {
        "op_name": event("Node", "x_kernel_time", 1, 2),
        "threads": event("Session", "session_initialization", 0, 1, threads="many"),
    }
    for field, of in broken.items():
        path.write_text(json.dumps([run, of]))
        with pytest.raises(InvalidArgument, match=field):
            read_trace(path)
    assert np.isfinite(profile_of([event("Session", "model_run", 0, 9)], "made up").seconds)
