"""``sardonyx bench``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx.bench import Result, machine
from sardonyx.cli import FAILED, INTERRUPTED, UNUSABLE
from tests.bench.models import product
from tests.cli.commands import Commands, command_line

QUICK = ("--peer", "none", "--seconds", "0.2", "--rounds", "6", "--starts", "1", "--warm", "0.1")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("history") / "times.jsonl"


def rewritten(path: Path, to: Path, factor: float) -> Path:
    """The last result of a history with times so many times as long."""
    found: dict[str, Any] = json.loads(path.read_text().splitlines()[-1])
    for timing in found["timings"]:
        timing["rounds"] = [factor * seconds for seconds in timing["rounds"]]
        timing["median_s"] *= factor
    to.write_text(json.dumps(found))
    return to


@pytest.mark.parametrize("columns", [80, 120])
def test_a_benchmark_is_printed_and_kept(commands: Commands, digits: Path, history: Path, columns: int) -> None:
    done = commands("bench", digits, *QUICK, "--batches", "1,2", "--history", history, columns=columns)
    assert done.status == 0, done.err
    assert max(map(len, done.out.splitlines())) <= columns
    said = " ".join(done.out.split())
    for words in ("digits.onnx", "image uint8 [1, 8, 8]", "dimension batch was given the size 1", "p99", "peak memory"):
        assert words in said
    assert "Starts, the first one with an empty cache" in said and said.count("first start") == 1
    assert "last start" not in said
    assert "By batch" in said and "Most samples per second: batch" in said and done.err == ""


@pytest.mark.parametrize("columns", [80, 120])
def test_the_last_start_has_a_line_of_its_own(commands: Commands, digits: Path, columns: int) -> None:
    lines = commands("bench", digits, *QUICK, "--starts", "2", columns=columns).out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Starts, the first one with an empty cache"))
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[at + 1 : at + 4]]
    assert cells[0] == ["import", "load", "first run", "second run", "peak memory"]
    assert cells[1][:2] == ["sardonyx", "first start"] and cells[2][0] == "last start" and len(cells[2]) == 5


def test_json_is_the_result(commands: Commands, digits: Path, tmp_path: Path) -> None:
    image = tmp_path / "image.npy"
    np.save(image, np.full((3, 8, 8), 7, np.uint8))
    found = commands("bench", digits, *QUICK, "--input", image, "--threads", "1", "--json").json
    result = Result.from_json(found)
    assert result.inputs == {"image": "uint8 [3, 8, 8]"} and result.timings[0].threads == 1


def test_a_regression_fails(commands: Commands, digits: Path, history: Path, tmp_path: Path) -> None:
    commands("bench", digits, *QUICK, "--history", history)
    slower = rewritten(history, tmp_path / "slower.json", 1e4)
    good = commands("bench", digits, *QUICK, "--against", slower)
    assert good.status == 0 and "Nothing is worse than" in good.out
    faster = rewritten(history, tmp_path / "faster.json", 1e-4)
    bad = commands("bench", digits, *QUICK, "--against", faster, "--json")
    assert bad.status == FAILED and any("median" in line for line in bad.json["regressions"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--batches", "1,two"], "--batches takes numbers"),
        (["--precision", "low"], "no such precision"),
        (["--provider", "NoSuchProvider"], "no such provider"),
        (["--peer", "tensorflow"], "no such peer"),
        (["--torch", "nothing.pt2"], "no file nothing.pt2"),
        (["--dim", "batch"], "NAME=SIZE"),
        (["--dim", "rows=3"], "no such symbolic dimension"),
        (["--shape", "image=1x8x9"], "does not fit"),
        (["--input", "nothing.npy"], "no file nothing.npy"),
        (["--against", "nothing.json"], "no file nothing.json"),
        (["--seconds", "0"], "--seconds"),
    ],
)
def test_bad_options(commands: Commands, digits: Path, args: list[str], words: str) -> None:
    done = commands("bench", digits, *QUICK, *args)
    assert done.status == UNUSABLE and words in done.error and done.out == ""


def test_bad_models(commands: Commands, jpeg: Path, tmp_path: Path) -> None:
    for path, words in ((tmp_path / "nothing.onnx", "exist"), (jpeg, "JPEG"), (tmp_path, "folder")):
        done = commands("bench", path, *QUICK)
        assert done.status == UNUSABLE and words in done.error


def test_torch_runs_what_it_exported(commands: Commands, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU()).eval()
    torch.export.save(torch.export.export(net, (torch.zeros(2, 8),)), tmp_path / "net.pt2")
    found = commands(
        "bench", product(tmp_path / "p.onnx"), *QUICK, "--torch", tmp_path / "net.pt2", "--dim", "batch=2", "--json"
    ).json
    assert [timing["name"] for timing in found["timings"]] == ["sardonyx", "torch"] and found["failed"] == {}


def test_a_history_that_cannot_be_written(commands: Commands, digits: Path, tmp_path: Path) -> None:
    done = commands("bench", digits, *QUICK, "--history", tmp_path / "none" / "times.jsonl")
    assert done.status == UNUSABLE and "no such folder" in done.error


def test_a_busy_machine_is_refused(commands: Commands, digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "why_busy", lambda threads: ("Other processes took 2.0 of 2 cores.",))
    done = commands("bench", digits, *QUICK, "--require-quiet")
    assert done.status == UNUSABLE and "too busy to measure; got: Other processes took" in done.error


def test_interrupting_leaves_no_process_and_no_file(digits: Path, tmp_path: Path) -> None:
    history = tmp_path / "times.jsonl"
    command = command_line("bench", digits, "--peer", "none", "--seconds", "60", "--history", history)
    # A shell that runs the tests in the background has them ignore the signal.
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not any("sardonyx.bench.worker" in line for line in processes(child.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        os.killpg(child.pid, signal.SIGINT)
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == INTERRUPTED and err == "sardonyx: interrupted\n"
    assert not processes(child.pid) and not history.exists()


def processes(session: int) -> list[str]:
    """The command lines of the processes of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except (OSError, IndexError):
            continue
    return found
