"""``sardonyx demo``."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from sardonyx import demo
from sardonyx.bench import api
from sardonyx.cli import GOOD, UNUSABLE
from sardonyx.demo import steps
from sardonyx.quantization.budget import latency
from tests.cli.commands import Commands


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder, and no other engine to time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "installed_peers", lambda: ())
    monkeypatch.setattr(steps, "BATCHES", ())
    monkeypatch.setattr(latency, "ROUNDS", 2)


def test_the_main_job_from_an_empty_folder(commands: Commands, tmp_path: Path) -> None:
    done = commands("demo", "--seconds", "0.2")
    assert done.status == GOOD and done.err == "" and max(map(len, done.out.splitlines())) <= 80
    words = " ".join(done.out.split())
    for said in ("accuracy: 359 of 360", "same as onnxruntime's", "15 nodes became 12", "The budget is met", "p99"):
        assert said in words
    assert "open sardonyx-demo/report.html in a browser" in words
    page = (tmp_path / "sardonyx-demo" / "report.html").read_text("utf-8")
    assert "Accuracy" in page and "Quantized models" in page
    for name in ("digits.onnx", "digits.optimized.onnx", "digits.int8.onnx"):
        onnx.checker.check_model(tmp_path / "sardonyx-demo" / name)
    assert [path.name for path in tmp_path.iterdir()] == ["sardonyx-demo"]


def test_json(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "CALIBRATING", 300)
    found = commands("demo", "there", "--seconds", "0.1", "--json").json
    assert (
        found["read"]["share"] == 359 / 360 and found["optimize"]["is_same"] and found["report"] == "there/report.html"
    )
    assert found["quantize"]["met"] and found["bench"]["timings"][0]["engine"] == "sardonyx"


def test_a_folder_that_cannot_be_made(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = commands("demo", "file")
    assert done.status == UNUSABLE and "cannot write there" in done.error and done.out == ""


def test_the_data_are_small_enough_to_ship() -> None:
    assert demo.MODEL.stat().st_size + demo.HELD_OUT.stat().st_size < 200_000
