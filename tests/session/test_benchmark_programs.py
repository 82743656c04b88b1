"""A program that serves and times a model with onnxruntime's API measures and answers alike with ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

pytest.importorskip("onnxruntime")


@pytest.fixture
def float_images(tmp_path: Path) -> Path:
    """A model of images with a symbolic batch."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("kernel", (8, 3, 3, 3)), ("dense", (8, 10)))
    ]
    nodes = [
        helper.make_node("Conv", ["input", "kernel"], ["features"], strides=[2, 2]),
        helper.make_node("Relu", ["features"], ["active"]),
        helper.make_node("GlobalAveragePool", ["active"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "dense"], ["output"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])
        for name, shape in (("input", (3, 32, 32)), ("output", (10,)))
    ]
    graph = helper.make_graph(nodes, "images", ends[:1], ends[1:], weights)
    path = tmp_path / "images.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


PROGRAM = Path(__file__).parent.parent / "programs" / "benchmark_session.py"


@pytest.fixture(params=["onnxruntime", "sardonyx", "the shim"])
def measured(request: pytest.FixtureRequest, float_images: Path, tmp_path: Path) -> dict[str, Any]:
    """What the program of benchmarks prints: as it is, with its import changed, and as it is under the shim."""
    pytest.importorskip("resource")
    text = PROGRAM.read_text(encoding="utf-8")
    assert text.count("import onnxruntime") == text.count("onnxruntime") == 1
    program = tmp_path / "program.py"
    program.write_text(text.replace("onnxruntime", "sardonyx") if request.param == "sardonyx" else text)
    shim = ["-m", "sardonyx.shim"] if request.param == "the shim" else []
    done = subprocess.run(
        [sys.executable, *shim, str(program), str(float_images)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_percentiles_throughput_threads_levels_and_memory(measured: dict[str, Any], float_images: Path) -> None:
    import onnxruntime

    times = measured["latency"]
    assert 0 < times["median_ms"] <= times["p95_ms"] <= times["p99_ms"]
    assert times["throughput"] == pytest.approx(1000 / times["mean_ms"])
    assert list(measured["threads"]) == ["None", "1", "2", "4"] and len(measured["levels"]) == 4
    for table in ("batches", "threads", "levels"):
        assert all(number > 0 for number in measured[table].values())
    assert 20 * 1024 < measured["peak_memory_kib"] < 2 * 1024**2
    images = np.random.default_rng(0).random((16, 3, 32, 32)).astype(np.float32)
    (right,) = onnxruntime.InferenceSession(str(float_images)).run(None, {"input": images})
    for outputs in (measured["expected"], *measured["outputs"]):
        np.testing.assert_allclose(outputs, right, rtol=1e-4, atol=1e-4)
