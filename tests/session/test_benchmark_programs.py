"""Programs that benchmark a model with onnxruntime's API: the same source measures and answers alike with ours.

The source text below is run twice; ``onnxruntime`` is the only word that is exchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
