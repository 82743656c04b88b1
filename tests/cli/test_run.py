"""``sardonyx run``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from sardonyx.bench import answers
from sardonyx.cli import FAILED, UNUSABLE
from tests.bench.models import product
from tests.cli.commands import Commands


@pytest.mark.parametrize("columns", [80, 120])
def test_generated_inputs(commands: Commands, digits: Path, columns: int) -> None:
    done = commands("run", digits, "--check", "--dim", "batch=2", columns=columns)
    assert done.status == 0 and done.err == "" and max(map(len, done.out.splitlines())) <= columns
    assert "Generated: image, from the seed 0." in done.out and "2x10" in done.out
    assert "label agrees with onnxruntime's" in done.out and "probability agrees with onnxruntime's" in done.out


def test_inputs_from_files_and_outputs_to_files(
    commands: Commands, digits: Path, tmp_path: Path, demo_dir: Path
) -> None:
    with np.load(demo_dir / "heldout.npz") as file:
        images, labels = file["images"][:50], file["labels"][:50]
    np.save(tmp_path / "images.npy", images)
    done = commands("run", digits, "--input", f"image={tmp_path / 'images.npy'}", "--output", tmp_path / "out.npz")
    assert done.status == 0 and f"saved to {tmp_path / 'out.npz'}" in done.out.replace("\n", "")
    session = onnxruntime.InferenceSession(digits, providers=["CPUExecutionProvider"])
    label, probability = session.run(["label", "probability"], {"image": images})
    with np.load(tmp_path / "out.npz") as saved:
        assert np.array_equal(saved["label"], label) and np.mean(saved["label"] == labels) > 0.9
        np.testing.assert_allclose(saved["probability"], probability, rtol=1e-3, atol=1e-6)


def test_an_image(commands: Commands, digits: Path, tmp_path: Path, demo_dir: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    with np.load(demo_dir / "heldout.npz") as file:
        image, label = file["images"][3], int(file["labels"][3])
    pillow.fromarray(image).save(tmp_path / "digit.png")
    found = commands("run", digits, "--input", tmp_path / "digit.png", "--json").json
    assert found["inputs"]["image"]["shape"] == [1, 8, 8] and found["outputs"]["label"]["values"] == [label]


def test_json(commands: Commands, tmp_path: Path) -> None:
    path = product(tmp_path / "p.onnx")
    done = commands("run", path, "--seed", "3", "--with", "reference", "--output", tmp_path / "y.npy", "--json")
    found = done.json
    assert found["saved"] == str(tmp_path / "y.npy") and found["check"]["with"] == "reference"
    assert found["outputs"]["y"]["shape"] == [1, 16] and found["check"]["outputs"][0]["difference"] is None
    assert found["statements"][1] == "The symbolic dimension batch was given the size 1."
    assert np.load(tmp_path / "y.npy").max() == pytest.approx(found["outputs"]["y"]["max"])


def test_a_wrong_answer_fails(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = product(tmp_path / "p.onnx")
    monkeypatch.setattr(answers, "answers_of", lambda *_: {"y": np.full((1, 16), 3, np.float32)})
    done = commands("run", path, "--check")
    assert done.status == FAILED and "y DIFFERS from" in done.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--input", "nothing.npy"], "no file nothing.npy"),
        (["--input", "wrong.npy"], "image"),
        (["--output", "out.txt"], ".npz or .npy"),
        (["--output", "out.npy"], "one output"),
        (["--output", "none/out.npz"], "no such folder"),
        (["--provider", "NoSuchProvider"], "no such provider"),
        (["--precision", "low"], "precision"),
        (["--with", "tensorflow"], "cannot be checked"),
        (["--dim", "rows=2"], "no such symbolic dimension"),
        (["--shape", "image=1x9x8"], "does not fit"),
        (["--threads", "-2"], "--threads"),
    ],
)
def test_bad_options(
    commands: Commands, digits: Path, tmp_path: Path, args: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("wrong.npy", np.zeros((2, 9, 9), np.uint8))
    done = commands("run", digits, *args)
    assert done.status == UNUSABLE and words in done.error and done.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.npy"]


def test_bad_models(commands: Commands, jpeg: Path, tmp_path: Path) -> None:
    for path, words in ((tmp_path / "nothing.onnx", "exist"), (jpeg, "JPEG"), (tmp_path, "folder")):
        done = commands("run", path)
        assert done.status == UNUSABLE and words in done.error


def test_sizes_that_were_assumed_are_named_when_the_model_refuses_them(commands: Commands, tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [3, 4])
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "shape"], ["y"])], "g", [x], [y], [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, tmp_path / "reshape.onnx")
    done = commands("run", tmp_path / "reshape.onnx")
    assert done.status == UNUSABLE and "name them with --dim or --shape" in done.error
    assert commands("run", tmp_path / "reshape.onnx", "--dim", "rows=12").status == 0


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder here that nobody may write to")
def test_a_folder_without_permission(commands: Commands, digits: Path) -> None:
    done = commands("run", digits, "--output", "/proc/self/out.npz")
    assert done.status == UNUSABLE and done.error and done.out == ""
