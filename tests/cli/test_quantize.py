"""``sardonyx quantize``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx.cli import FAILED, GOOD, UNUSABLE
from tests.bench.models import product
from tests.cli.commands import Commands


@pytest.fixture(autouse=True)
def in_a_folder_with_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo_dir: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with np.load(demo_dir / "heldout.npz") as file:
        np.savez("some.npz", images=file["images"][:40], labels=file["labels"][:40])


@pytest.mark.parametrize("columns", [80, 120])
def test_static(commands: Commands, digits: Path, columns: int) -> None:
    data = ("--data", "image=some.npz:images", "--labels", "some.npz:labels", "--batch", "20")
    done = commands("quantize", digits, "-o", "int8.onnx", *data, columns=columns)
    assert done.status == GOOD and done.err == "" and max(map(len, done.out.splitlines())) <= columns
    for words in ("right answers", "QuantizeLinear", "SQNR", "times as fast"):
        assert words in done.out
    operators = {node.op_type for node in onnx.load("int8.onnx").graph.node}
    assert "QuantizeLinear" in operators and Path("int8.onnx").stat().st_size < digits.stat().st_size / 2


def test_fewer_samples_than_labels(commands: Commands, digits: Path) -> None:
    data = ("--data", "image=some.npz:images", "--labels", "some.npz:labels", "--samples", "24")
    found = commands("quantize", digits, "-o", "q.onnx", *data, "--json").json
    assert found["outcome"]["samples"] == 24 and found["outcome"]["metric"][0] > 0.9
    assert any("first 24 samples" in statement for statement in found["statements"])
    with np.load("some.npz") as file:
        np.save("few.npy", file["labels"][:8])
    done = commands("quantize", digits, "-o", "q.onnx", *data[:2], "--labels", "few.npy", "--samples", "24")
    assert done.status == UNUSABLE and "8 labels" in done.error and "24 samples" in done.error


def test_integer_operators(commands: Commands, digits: Path) -> None:
    types = ("--weights", "uint8", "--activations", "uint8", "--format", "qoperator", "--op-type", "Conv")
    found = commands("quantize", digits, "-o", "q.onnx", "--data", "image=some.npz:images", *types, "--json").json
    assert found["output"] == "q.onnx" and found["statements"] == [] and found["budget"] is None
    assert found["outcome"]["operators"]["QLinearConv"] == [0, 3] and "QGemm" not in found["outcome"]["operators"]
    assert found["outcome"]["sqnr_db"] > 20 and found["outcome"]["samples"] == 40


def test_within_a_budget(commands: Commands, digits: Path) -> None:
    data = ("--data", "image=some.npz:images", "--batch", "20", "--op-type", "Gemm", "--max-seconds", "0")
    done = commands("quantize", digits, "-o", "q.onnx", *data, "--budget", "10", "--even-if-slower", columns=80)
    assert done.status == GOOD and "The budget is met" in done.out and "kept in" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    Path("q.onnx").unlink()
    done = commands("quantize", digits, "-o", "q.onnx", *data, "--budget", "300", "--json")
    assert done.status == FAILED and not Path("q.onnx").exists()
    assert done.json["budget"]["met"] is False and done.json["output"] is None


@pytest.mark.parametrize("samples", [40, 32])
def test_each_sqnr_says_what_it_is_of(commands: Commands, digits: Path, samples: int) -> None:
    data = ("--data", "image=some.npz:images", "--samples", samples, "--op-type", "Gemm", "--max-seconds", "0")
    done = commands("quantize", digits, "-o", "q.onnx", *data, "--budget", "10", "--even-if-slower", columns=400)
    searched, final = (line for line in done.out.splitlines() if "of the worst output over" in line)
    if samples == 32:
        assert searched.endswith("the SQNR is that of the worst output over 32 samples.")
        assert final.endswith("of the worst output over 32 samples.")
    else:
        assert searched.endswith("the SQNR is that of the worst output over the first 32 of 40 samples.")
        assert final.endswith("over all 40 samples; the search compared the first 32.")


def test_dynamic_on_random_samples(commands: Commands, digits: Path) -> None:
    done = commands("quantize", digits, "-o", "q.onnx", "--how", "dynamic", "--samples", "2")
    assert done.status == GOOD and "2 random samples stand in for data" in done.out and "ConvInteger" in done.out


@pytest.mark.parametrize("algorithm", ["default", "rtn", "k-quant", "hqq", "gptq"])
def test_weights_only(commands: Commands, tmp_path: Path, algorithm: str) -> None:
    path = product(tmp_path / "p.onnx", inner=64)
    given = ("--how", "weights", "--algorithm", algorithm, "--samples", "4", "--dim", "batch=3")
    done = commands("quantize", path, "-o", "int4.onnx", *given, "--json")
    assert done.status == GOOD and done.json["outcome"]["operators"]["MatMulNBits"] == [0, 1]
    assert done.json["outcome"]["sqnr_db"] > 15


def test_nothing_to_quantize(commands: Commands, digits: Path) -> None:
    done = commands("quantize", digits, "-o", "q.onnx", "--how", "weights", "--samples", "1")
    assert done.status == FAILED and "Nothing was quantized" in done.out
    assert "sardonyx: warning: no node was quantized" in done.err


def test_a_node_that_is_excluded_by_a_wrong_name_is_told(commands: Commands, digits: Path) -> None:
    done = commands("quantize", digits, "-o", "q.onnx", "--how", "dynamic", "--samples", "1", "--exclude", "conv9")
    assert done.status == GOOD and "no node 'conv9'" in done.error


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "--output"),
        (("-o", "none/q.onnx"), "no such folder"),
        (("-o", "."), "is a folder"),
        (("-o", "q.onnx", "--weights", "int9"), "int9"),
        (("-o", "q.onnx", "--how", "weights", "--bits", "3"), "other widths"),
        (("-o", "q.onnx", "--how", "dynamic", "--budget", "3"), "--budget is for"),
        (("-o", "q.onnx", "--data", "nothing"), "no file nothing"),
        (("-o", "q.onnx", "--data", "some.npz"), "no inputs"),
        (("-o", "q.onnx", "--data", "image=some.npz:labels"), "rank"),
        (("-o", "q.onnx", "--data", "image=some.npz:images", "--labels", "some.npz"), "several arrays"),
        (("-o", "q.onnx", "--how", "dynamic", "--labels", "some.npz:labels"), "answer for each label"),
        (("-o", "q.onnx", "--answers", "label"), "--labels"),
        (("-o", "q.onnx", "--activations", "int8", "--weights", "uint8"), "signed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_options(commands: Commands, digits: Path, tmp_path: Path, given: tuple[str, ...], said: str) -> None:
    done = commands("quantize", digits, *given)
    assert done.status == UNUSABLE and said in done.error and done.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["some.npz"]
