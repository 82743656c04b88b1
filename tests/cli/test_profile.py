"""``sardonyx profile`` and ``sardonyx tune``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx.cli import FAILED, UNUSABLE
from sardonyx.session.config_file import read_config
from sardonyx.tune.setups import Runner
from tests.cli.commands import Commands
from tests.profile import planted

DOUBLES = "session.float64_as_float32"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs take a millisecond, or two in float64, whatever the clock says."""
    noise = np.random.default_rng(0)

    def seconds(self: Runner) -> float:
        return (1e-3 if DOUBLES in self.setup.entries else 2e-3) * (1 + 0.01 * float(noise.standard_normal()))

    monkeypatch.setattr(Runner, "seconds", seconds)


@pytest.fixture
def doubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """By a short path, which commands print."""
    monkeypatch.chdir(tmp_path)
    path = Path("wide.onnx")
    path.write_bytes(planted.doubles()[0])
    return path


@pytest.fixture
def trace(digits: Path, tmp_path: Path) -> Path:
    """Of a program that runs one digit at a time."""
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "program")
    session = ort.InferenceSession(str(digits), options)
    for _ in range(40):
        session.run(None, {"image": np.zeros((1, 8, 8), np.uint8)})
    return Path(session.end_profiling())


@pytest.mark.parametrize("columns", [80, 120])
def test_the_hot_list(commands: Commands, digits: Path, columns: int) -> None:
    done = commands("profile", digits, "--runs", 3, "--top", 2, "--dim", "batch=4", columns=columns)
    assert done.status == 0 and done.err == "" and max(map(len, done.out.splitlines())) <= columns
    kernels = [line for line in done.out.splitlines() if "conv" in line and "%" in line]
    assert len(kernels) == 2 and "No problem found." in done.out and "3 runs" in done.out


def test_a_trace_is_kept(commands: Commands, digits: Path) -> None:
    done = commands("profile", digits, "--runs", 2, "--save-trace", "trace.json", "--json")
    assert {e["cat"] for e in json.loads(Path("trace.json").read_text())} >= {"Session", "Node", "Kernel"}
    found = done.json
    assert found["trace"] == "trace.json" and len(found["profile"]["runs"]) == 2 and found["findings"] == []
    assert found["statements"][0].startswith("Generated: image")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_problem_with_its_evidence(commands: Commands, doubles: Path, columns: int) -> None:
    asked = ("profile", doubles, "--runs", 2, "--dim", "batch=16", "--fail-on-problem")
    done = commands(*asked, columns=columns)
    said = " ".join(done.out.split())
    assert done.status == FAILED and "Problem: 100 % of the operations are in float64" in said
    assert "evidence" in said and DOUBLES in said and max(map(len, done.out.splitlines())) <= columns
    assert commands(*asked[:-1], "--json").json["findings"][0]["fix"]["config"] == {DOUBLES: "1"}


def test_the_calls_of_a_program(commands: Commands, digits: Path, trace: Path, doubles: Path) -> None:
    done = commands("profile", digits, "--from-trace", trace, "--json")
    assert [f["code"] for f in done.json["findings"] if f["kind"] == "problem"] == ["batch-of-one"]
    other = commands("profile", doubles, "--from-trace", trace)
    assert other.status == UNUSABLE and "the trace is of another model" in other.error


@pytest.mark.parametrize("columns", [80, 120])
def test_tune_writes_what_a_session_reads(
    commands: Commands, doubles: Path, tmp_path: Path, steady: None, columns: int
) -> None:
    done = commands("tune", doubles, "--dim", "batch=16", columns=columns)
    said = " ".join(done.out.split())
    assert done.status == 0 and max(map(len, done.out.splitlines())) <= columns, done.err
    assert "2.00 ms" in said and "1.00 ms" in said and "Repaired: float64." in said and "wide.config.json" in said
    config = read_config("wide.config.json")
    assert config.entries == {DOUBLES: "1"} and all("\n" not in note for note in config.notes)
    feeds = {"x": planted.random_feed(16, 256, dtype=np.float64)}
    options = ort.SessionOptions()
    options.load_config("wide.config.json")
    plain, tuned = (ort.InferenceSession(str(doubles), o).run(None, feeds)[0] for o in (None, options))
    assert 0 < np.abs(tuned - plain).max() < 1e-5
    profiled = commands("profile", doubles, "--config", "wide.config.json", "--dim", "batch=16", "--runs", 2)
    assert "No problem found." in profiled.out


def test_tune_begins_with_a_config(commands: Commands, doubles: Path, steady: None) -> None:
    Path("base.json").write_text('{"format": "sardonyx.config", "version": 1, "options": {"precision": "high"}}')
    found = commands("tune", doubles, "--config", "base.json", "-o", "more.json", "--dim", "batch=16", "--json").json
    assert found["config_file"] == "more.json" and found["repaired"] == ["float64"]
    assert read_config("more.json").to_json() == found["config"]
    assert found["config"]["options"] == {"precision": "high"} and found["config"]["entries"] == {DOUBLES: "1"}


def test_tune_improves_the_calls_of_a_program(
    commands: Commands, digits: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "seconds", lambda self: 1e-3 / (self.setup.batch if self.setup.is_batched else 1))
    found = commands("tune", digits, "--from-trace", trace, "--json").json
    assert found["repaired"] == ["batch-of-one"] and found["config"]["calls"] == {"batch": 128}


def test_a_session_in_the_wrong_sizes(commands: Commands, tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Add", ["a", "b"], ["y"])]
    ports = [onnx.helper.make_tensor_value_info(n, 1, [d]) for n, d in (("a", "height"), ("b", "batch"), ("y", None))]
    graph = onnx.helper.make_graph(nodes, "g", ports[:2], ports[2:])
    onnx.save(onnx.helper.make_model(graph, ir_version=10), "sizes.onnx")
    Path("many.onnx").write_bytes(Path("sizes.onnx").read_bytes())
    done = commands("profile", "sizes.onnx", "--dim", "batch=3")
    assert done.status == UNUSABLE and "--dim" in done.error


BAD: list[tuple[tuple[Any, ...], str]] = [
    (("profile", "digits", "--runs", 0), "--runs"),
    (("profile", "digits", "--runs", 20_000), "number of runs"),
    (("profile", "digits", "--dim", "batch"), "NAME=SIZE"),
    (("profile", "digits", "--provider", "NoExecutionProvider"), "no such provider"),
    (("profile", "digits", "--precision", "low"), "precision"),
    (("profile", "digits", "--from-trace", "nothing.json"), "no such trace"),
    (("profile", "digits", "--from-trace", "jpeg"), "not JSON"),
    (("profile", "digits", "--from-trace", "nothing.json", "--save-trace", "x.json"), "mean nothing"),
    (("profile", "digits", "--save-trace", "no/such/trace.json"), "no such folder"),
    (("profile", "digits", "--config", "jpeg"), "not JSON"),
    (("profile", "jpeg"), "JPEG"),
    (("profile", "nothing.onnx"), "exist"),
    (("tune", "digits", "--rounds", 2), "--rounds"),
    (("tune", "digits", "--precisions", "exact"), "unknown precision"),
    (("tune", "digits", "--config", "nothing.json"), "no such config"),
    (("tune", "digits", "-o", "no/such/config.json"), "no such folder"),
    (("tune", "jpeg"), "JPEG"),
]


@pytest.mark.parametrize(("args", "words"), BAD, ids=lambda value: " ".join(map(str, value)))
def test_bad_arguments(
    commands: Commands, digits: Path, jpeg: Path, tmp_path: Path, args: tuple[Any, ...], words: str
) -> None:
    files = {"digits": digits, "jpeg": jpeg}
    before = sorted(tmp_path.rglob("*"))
    done = commands(*(files.get(arg, arg) for arg in args))
    assert done.status == UNUSABLE and words in done.error, done.err
    assert sorted(tmp_path.rglob("*")) == before
