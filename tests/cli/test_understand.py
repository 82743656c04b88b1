"""``sardonyx inspect``, ``explain``, ``compare``, ``report`` and ``optimize``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx.cli import FAILED, GOOD, UNUSABLE
from tests.cli.commands import Commands

COMMANDS = (("inspect",), ("explain",), ("compare",), ("report",), ("optimize", "-o", "out.onnx"))


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("columns", [80, 120])
def test_inspect(commands: Commands, digits: Path, columns: int) -> None:
    done = commands("inspect", digits, columns=columns)
    assert done.status == GOOD and "Conv 3" in done.out and "tensor(uint8) [batch, 8, 8]" in done.out
    assert max(map(len, done.out.splitlines())) <= columns
    found = commands("inspect", digits, "--json", "--dim", "batch=4").json
    assert found["operators"]["Conv"] == 3 and found["sizes"] == [] and found["flops"] > 4e6
    assert "Conv(" in commands("inspect", digits, "--graph").out
    assert len(commands("inspect", digits, "--graph", "--json").json["graph"]) == 15


@pytest.mark.parametrize("columns", [80, 120])
def test_explain(commands: Commands, digits: Path, columns: int) -> None:
    done = commands("explain", digits, columns=columns)
    assert done.status == GOOD and "15 nodes" in done.out and max(map(len, done.out.splitlines())) <= columns
    assert "conv_nhwc" in commands("explain", digits, "--stage", "cpu").out
    assert "placement" in commands("explain", digits, "--all").out
    found = commands("explain", digits, "--json").json
    assert {p["provider"] for p in found["placements"]} == {"cpu"} and found["seconds"]["compile"] > 0


def test_optimize_saves_a_model_that_answers_the_same(commands: Commands, digits: Path, tmp_path: Path) -> None:
    done = commands("optimize", digits, "-o", "small.onnx", "--check", "--spelling", "portable")
    assert done.status == GOOD and "same results" in done.out
    onnx.checker.check_model("small.onnx")
    assert commands("compare", digits, "small.onnx", "--no-layers").status == GOOD
    found = commands("optimize", digits, "-o", "small.onnx", "--json").json
    assert found["nodes"]["after"] < found["nodes"]["before"] and found["output"] == "small.onnx"
    told = commands("optimize", digits, "-o", "small.onnx", "--explain", columns=80).out
    assert "rewrites" in told and max(map(len, told.splitlines())) <= 80
    assert commands("optimize", digits, "--bisect").out == "no pass changes the results\n"


def test_compare(commands: Commands, digits: Path, tmp_path: Path) -> None:
    assert commands("compare", digits, digits).status == GOOD
    proto = onnx.load(digits)
    weights = next(t for t in proto.graph.initializer if t.name == "w3")
    array = onnx.numpy_helper.to_array(weights)
    weights.CopyFrom(onnx.numpy_helper.from_array(np.flip(array).copy(), "w3"))
    onnx.save(proto, "other.onnx")
    done = commands("compare", digits, "other.onnx", "--json")
    assert done.status == FAILED and done.json["first"]["name"] == "c3"
    assert commands("compare", digits, "--engine", "sardonyx", "--engine", "reference").status == GOOD


def test_report(commands: Commands, digits: Path, tmp_path: Path) -> None:
    done = commands("report", digits)
    assert done.status == GOOD and "digits.html" in done.out
    assert (tmp_path / "digits.html").read_text("utf-8").startswith("<!doctype html>")
    found = commands("report", digits, "-o", "page.html", "--dim", "batch=8", "--json").json
    assert found["report"] == "page.html" and found["nbytes"] == Path("page.html").stat().st_size


def test_a_report_with_accuracy_and_another_version(
    commands: Commands, digits: Path, demo_dir: Path, tmp_path: Path
) -> None:
    np.save("images.npy", np.load(demo_dir / "heldout.npz")["images"][:5])
    commands("optimize", digits, "-o", "small.onnx")
    done = commands("report", digits, "--check", "--compare", "small.onnx", "--input", "images.npy")
    assert done.status == GOOD, done.err
    page = Path("digits.html").read_text("utf-8")
    data = json.loads(page.split('type="application/json">')[1].split("</script>")[0])
    titles = {table["title"]: table["rows"] for table in data["tables"]}
    assert [row[0] for row in titles["Outputs of small.onnx"]] == ["label", "probability"]
    (checked,) = (rows for title, rows in titles.items() if title.startswith("Accuracy beside"))
    assert [row[-1] for row in checked] == ["agrees", "agrees"] and 0 < checked[1][1] < 1e-4
    assert any("u8[5, 8, 8]" in text for _, text in data["summary"])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_files_that_are_no_models(commands: Commands, jpeg: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    before = sorted(tmp_path.rglob("*"))
    for path, word in ((tmp_path / "nothing.onnx", "exist"), (jpeg, "JPEG")):
        done = commands(command[0], path, *command[1:])
        assert done.status == UNUSABLE and word.lower() in done.error.lower(), done.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("inspect", "--dim", "batch"), "--dim is not NAME=SIZE"),
        (("inspect", "--dim", "width=3"), "no such symbolic dimension"),
        (("inspect", "--shape", "image=1x9x9"), "does not fit"),
        (("explain", "--provider", "NoExecutionProvider"), "NoExecutionProvider"),
        (("explain", "--stage", "gpu"), "gpu"),
        (("optimize",), "--output"),
        (("optimize", "-o", "x.onnx", "--level", "most"), "most"),
        (("optimize", "-o", "x.onnx", "--disable", "FuseGelo"), "FuseGelu"),
        (("optimize", "-o", "no/such/folder.onnx"), "no such folder"),
        (("compare", "--engine", "sardonyx"), "twice"),
        (("compare", "--engine", "sardonyx", "--engine", "tensorflow"), "tensorflow"),
        (("report", "-o", "no/such/folder.html"), "no such folder"),
        (("report", "--bench", "tensorflow"), "tensorflow"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_arguments(commands: Commands, digits: Path, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    done = commands(arguments[0], digits, *arguments[1:])
    assert done.status == UNUSABLE and said in done.error, done.err
    assert sorted(tmp_path.rglob("*")) == before
