"""Programs written for onnxruntime.quantization: as they are, with their import changed, and under the shim."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from tests.transformers.models import encoder, feeds

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"


def images(demo_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    held = np.load(demo_dir / "heldout.npz")
    return held["images"], held["labels"]


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def score(path: Path, demo_dir: Path) -> float:
    """The share of the held-out images that a model reads right."""
    pictures, labels = images(demo_dir)
    found = sardonyx.InferenceSession(path).run(["label"], {"image": pictures})[0]
    return float(np.mean(found == labels))


@pytest.mark.parametrize("engine", ["onnxruntime", "sardonyx"])
def test_the_three_ways_to_quantize(
    engine: str, tmp_path: Path, demo_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(f"{engine}.quantization")
    monkeypatch.chdir(tmp_path)
    text = (PROGRAMS / "quantize_model.py").read_text(encoding="utf-8")
    assert text.count("onnxruntime") == 1
    program: dict[str, Any] = {"__name__": "program"}
    exec(compile(text.replace("onnxruntime", engine), "quantize_model.py", "exec"), program)
    model, samples = str(demo_dir / "digits.onnx"), images(demo_dir)[0][:100, None]
    assert program["apply_dynamic_quantization"](model, "dynamic.onnx") == "dynamic.onnx"
    assert program["apply_static_quantization"](model, "static.onnx", samples, "image") == "static.onnx"
    formats = program["compare_quantization_formats"](model, samples, "image")
    assert formats == {"QDQ": "model_qdq.onnx", "QOperator": "model_qop.onnx"}
    assert operators(tmp_path / "dynamic.onnx")["MatMulInteger"] == 1
    for name in ("static.onnx", "model_qdq.onnx"):
        counts = operators(tmp_path / name)
        assert counts["QuantizeLinear"] > 3 and counts["Conv"] == 3 and not counts["QLinearConv"]
    assert operators(tmp_path / "model_qop.onnx")["QLinearConv"] == 3
    floats = score(demo_dir / "digits.onnx", demo_dir)
    for name in ("dynamic.onnx", "static.onnx", *formats.values()):
        assert score(tmp_path / name, demo_dir) > floats - 0.01, name


def run(name: str, *arguments: object, cwd: Path) -> str:
    """What a program prints under the shim."""
    done = subprocess.run(
        [sys.executable, "-m", "sardonyx.shim", str(PROGRAMS / name), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(PROGRAMS.parent.parent / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_under_the_shim(tmp_path: Path, demo_dir: Path) -> None:
    run("quantize_model.py", demo_dir / "digits.onnx", demo_dir / "heldout.npz", cwd=tmp_path)
    for name in ("model_dynamic.onnx", "model_static.onnx", "model_qdq.onnx", "model_qop.onnx"):
        assert score(tmp_path / name, demo_dir) > 0.95
    assert "sardonyx" in onnx.load(tmp_path / "model_static.onnx").producer_name


@pytest.fixture
def transformer(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save_model(encoder(hidden=16, layers=2), path)
    return path


def agreement(path: Path, reference: Path) -> float:
    """The cosine between the results of two models."""
    found, expected = (sardonyx.InferenceSession(p).run(None, feeds(4))[0].ravel() for p in (path, reference))
    return float(found @ expected / np.linalg.norm(found) / np.linalg.norm(expected))


@pytest.mark.parametrize("engine", ["onnxruntime", "sardonyx"])
def test_the_classes_that_optimum_calls(engine: str, tmp_path: Path, transformer: Path) -> None:
    pytest.importorskip(f"{engine}.quantization")
    text = (PROGRAMS / "quantizer_classes.py").read_text(encoding="utf-8")
    program: dict[str, Any] = {"__name__": "program"}
    exec(compile(text.replace("onnxruntime", engine), "quantizer_classes.py", "exec"), program)
    dataset = [{name: array[0].tolist() for name, array in feeds(2).items()} for _ in range(4)]
    excluded = program["excluded_nodes"](str(transformer))
    assert len(excluded) == 5 * 9 + 2 * 5 + 2
    made = program["quantize_all"](str(transformer), str(tmp_path), dataset)
    counts = {kind: operators(Path(path)) for kind, path in made.items()}
    assert counts["dynamic"]["MatMulInteger"] == counts["operators"]["QLinearMatMul"] == 16
    assert counts["static"]["QuantizeLinear"] == counts["percentile"]["QuantizeLinear"] > 20
    assert (tmp_path / "operators.onnx.data").exists()
    assert all(agreement(Path(path), transformer) > 0.99 for path in made.values())


def test_they_work_under_the_shim(tmp_path: Path, transformer: Path) -> None:
    assert "percentile.onnx" in run("quantizer_classes.py", transformer, tmp_path, cwd=tmp_path)


def test_optimum_under_the_shim(tmp_path: Path, transformer: Path) -> None:
    for package in ("optimum", "torch", "transformers"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    names = ["model_arm64.onnx", "model_avx2.onnx", "model_avx512_vnni.onnx", "model_static.onnx"]
    folder = tmp_path / "made"
    folder.mkdir()
    assert run("optimum_quantizer.py", transformer, folder, cwd=tmp_path).splitlines()[-1] == str(names)
    assert all(agreement(folder / name, transformer) > 0.99 for name in names)
    assert operators(folder / names[0])["MatMulInteger"] == 16 and operators(folder / names[-1])["QuantizeLinear"] > 20
