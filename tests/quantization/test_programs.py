"""Programs written for onnxruntime.quantization: as they are, with their import changed, and under the shim."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx

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


def test_under_the_shim(tmp_path: Path, demo_dir: Path) -> None:
    arguments = [str(PROGRAMS / "quantize_model.py"), str(demo_dir / "digits.onnx"), str(demo_dir / "heldout.npz")]
    done = subprocess.run(
        [sys.executable, "-m", "sardonyx.shim", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROGRAMS.parent.parent / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "model_dynamic.onnx"
    for name in ("model_dynamic.onnx", "model_static.onnx", "model_qdq.onnx", "model_qop.onnx"):
        assert score(tmp_path / name, demo_dir) > 0.95
    assert "sardonyx" in onnx.load(tmp_path / "model_static.onnx").producer_name
