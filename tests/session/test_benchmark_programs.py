"""Programs that benchmark a model with onnxruntime's API: the same source measures and answers alike with ours.

The source text below is run twice; ``onnxruntime`` is the only word that is exchanged.
"""

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

SERVER = '''
import os
import time

import numpy as np
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static


class Samples(CalibrationDataReader):
    def __init__(self, arrays, name):
        self.arrays, self.name = iter(arrays), name

    def get_next(self):
        array = next(self.arrays, None)
        return None if array is None else {self.name: array}


class Server:
    """Opens a model in float or int8 on the best provider, warms it up, predicts and times itself."""

    def __init__(self, path, provider="auto", quantization=None, samples=()):
        self.path, self.samples = path, samples
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.intra_op_num_threads = min(4, max(1, os.cpu_count() // 2))
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = options.enable_mem_reuse = True
        loaded = path
        if quantization == "dynamic_int8":
            loaded = self.dynamic()
        elif quantization == "static_int8":
            loaded = self.static()
        providers = self.detected() if provider == "auto" else [("CPUExecutionProvider", {})]
        self.session = ort.InferenceSession(loaded, sess_options=options, providers=providers)
        self.warm_up()

    def detected(self):
        available, chosen = ort.get_available_providers(), []
        if "TensorrtExecutionProvider" in available:
            chosen.append(("TensorrtExecutionProvider", {"trt_fp16_enable": True}))
        if "CUDAExecutionProvider" in available:
            chosen.append(("CUDAExecutionProvider", {}))
        return [*chosen, ("CPUExecutionProvider", {})]

    def dynamic(self):
        target = self.path.replace(".onnx", ".dynamic.onnx")
        quantize_dynamic(
            model_input=self.path, model_output=target, weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul", "Gemm"],
        )
        return target

    def static(self):
        target = self.path.replace(".onnx", ".static.onnx")
        quantize_static(
            model_input=self.path,
            model_output=target,
            calibration_data_reader=Samples(self.samples, "image"),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            weight_type=QuantType.QInt8,
            activation_type=QuantType.QUInt8,
            op_types_to_quantize=["Conv", "MatMul", "Gemm"],
        )
        return target

    def warm_up(self, count=5):
        first = self.session.get_inputs()[0]
        shape = [size if isinstance(size, int) else 1 for size in [1, *first.shape[1:]]]
        for _ in range(count):
            self.session.run(None, {first.name: np.zeros(shape, np.uint8)})

    def predict(self, inputs):
        return self.session.run(None, inputs)

    def benchmark(self, inputs, count=100):
        for _ in range(10):
            self.session.run(None, inputs)
        latencies = []
        for _ in range(count):
            start = time.perf_counter()
            self.session.run(None, inputs)
            latencies.append((time.perf_counter() - start) * 1000)
        return {
            "mean_ms": np.mean(latencies),
            "median_ms": np.median(latencies),
            "p95_ms": np.percentile(latencies, 95),
            "p99_ms": np.percentile(latencies, 99),
            "throughput": 1000 / np.mean(latencies),
        }
'''
LEVELS = '''
import time

import onnxruntime as ort

LEVELS = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def latency_by_level(path, inputs, count=20):
    """Milliseconds and outputs with each level of optimization."""
    found = {}
    for name, level in LEVELS.items():
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        session = ort.InferenceSession(path, sess_options=options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, inputs)
        start = time.perf_counter()
        for _ in range(count):
            session.run(None, inputs)
        found[name] = ((time.perf_counter() - start) / count * 1000, outputs)
    return found
'''
BATCHES = '''
import time

import onnxruntime as rt


def throughput_by_batch(path, images, batches):
    """Samples per second, and the answers, with batches of several sizes."""
    session = rt.InferenceSession(path, providers=rt.get_available_providers())
    source = session.get_inputs()[0].name
    label, probability = (output.name for output in session.get_outputs())
    found = {}
    for size in batches:
        start = time.perf_counter()
        answers = [session.run([label], {source: images[i : i + size]})[0] for i in range(0, len(images), size)]
        seconds = time.perf_counter() - start
        found[size] = (len(images) / seconds, answers)
    return found, session.run([probability], {source: images})[0]
'''


def run_with(engine: str, source: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(source.replace("onnxruntime", engine), f"program for {engine}", "exec"), namespace)
    return namespace


@pytest.fixture(params=["onnxruntime", "sardonyx"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(demo_dir: Path, tmp_path: Path) -> str:
    path = tmp_path / "digits.onnx"
    path.write_bytes((demo_dir / "digits.onnx").read_bytes())
    return str(path)


@pytest.fixture
def held_out(demo_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(demo_dir / "heldout.npz") as file:
        return file["images"], file["labels"]


@pytest.mark.parametrize("quantization", [None, "dynamic_int8", "static_int8"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_server_that_quantizes_and_times_itself(
    engine: str, model: str, held_out: tuple[np.ndarray, np.ndarray], quantization: str | None
) -> None:
    images, labels = held_out
    server = run_with(engine, SERVER)["Server"](model, "auto", quantization, np.split(images[:60], 6))
    label, probability = server.predict({"image": images})
    assert np.mean(label == labels) > 0.98 and np.allclose(probability.sum(1), 1, atol=1e-3)
    times = server.benchmark({"image": images[:1]}, count=40)
    assert 0 < times["median_ms"] <= times["p95_ms"] <= times["p99_ms"]
    assert times["throughput"] == pytest.approx(1000 / times["mean_ms"])


def test_latency_by_level(engine: str, model: str, held_out: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = held_out
    found = run_with(engine, LEVELS)["latency_by_level"](model, {"image": images}, count=2)
    assert list(found) == ["disabled", "basic", "extended", "all"]
    for milliseconds, (label, probability) in found.values():
        assert milliseconds > 0 and np.mean(label == labels) > 0.99
        np.testing.assert_allclose(probability, found["disabled"][1][1], rtol=1e-3, atol=1e-5)


def test_throughput_by_batch(engine: str, model: str, held_out: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = held_out
    found, probability = run_with(engine, BATCHES)["throughput_by_batch"](model, images, (8, 16, 360))
    assert probability.shape == (360, 10)
    for rate, answers in found.values():
        assert rate > 0 and np.mean(np.concatenate(answers) == labels) > 0.99


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
