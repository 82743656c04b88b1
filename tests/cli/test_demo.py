"""``sardonyx demo``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from sardonyx import demo
from sardonyx.bench import api
from sardonyx.cli import GOOD, UNUSABLE
from sardonyx.demo import steps
from sardonyx.quantization.budget import latency
from sardonyx.quantization.budget.latency import Race
from tests.cli.commands import Commands


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder, no other engine to time, and races that integers win."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "installed_peers", lambda: ())
    monkeypatch.setattr(steps, "BATCHES", ())
    monkeypatch.setattr(latency.Stopwatch, "race", racing(integers=0.5e-3))


def racing(integers: float) -> Callable[..., Race]:
    """Races in which a float model takes a millisecond, and others this many seconds."""
    return lambda self, models: Race({name: [1e-3 if name == "float" else integers] * 5 for name in models})


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


def test_integers_that_do_not_pay_are_not_recommended(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sardonyx-demo"
    folder.mkdir()
    (folder / "digits.int8.onnx").write_text("of an earlier demo")
    monkeypatch.setattr(latency.Stopwatch, "race", racing(integers=2e-3))
    done = commands("demo", "--seconds", "0.1")
    words = " ".join(done.out.split())
    assert done.status == GOOD and "int8 does not pay on this machine" in words and "0.50 times as fast" in words
    assert not (folder / "digits.int8.onnx").exists() and (folder / "report.html").exists()


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
