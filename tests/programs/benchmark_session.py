"""Serve a model of float images and measure it: percentiles, throughput, batches, threads, levels, memory.

Usage: benchmark_session.py MODEL
"""

import json
import os
import resource
import sys
import time

import numpy as np
import onnxruntime as ort


def configure_cpu_session(model_path, num_threads=None, level=ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
    session_options = ort.SessionOptions()
    session_options.graph_optimization_level = level
    physical_cores = os.cpu_count() // 2  # Assume hyperthreading
    if num_threads is None:
        num_threads = min(4, physical_cores)
    session_options.intra_op_num_threads = num_threads
    session_options.inter_op_num_threads = 1
    session_options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    session_options.enable_mem_pattern = True
    session_options.enable_mem_reuse = True
    return ort.InferenceSession(model_path, sess_options=session_options, providers=["CPUExecutionProvider"])


class ModelServer:
    def __init__(self, model_path, provider="auto", max_batch_size=32):
        self.model_path = model_path
        self.max_batch_size = max_batch_size
        self.session = self._create_session(provider)
        self._warmup()

    def _create_session(self, provider):
        opts = ort.SessionOptions()
        opts.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        opts.enable_mem_pattern = True
        opts.enable_mem_reuse = True
        if provider == "auto":
            providers = self._detect_best_providers()
        elif provider == "tensorrt":
            providers = [
                ("TensorrtExecutionProvider", {"trt_fp16_enable": True, "trt_engine_cache_path": "./trt_cache"}),
                ("CUDAExecutionProvider", {}),
                ("CPUExecutionProvider", {}),
            ]
        else:
            providers = ["CPUExecutionProvider"]
        return ort.InferenceSession(self.model_path, sess_options=opts, providers=providers)

    def _detect_best_providers(self):
        available = ort.get_available_providers()
        selected = []
        if "TensorrtExecutionProvider" in available:
            selected.append(("TensorrtExecutionProvider", {"trt_fp16_enable": True, "trt_engine_cache_enable": True}))
        if "CUDAExecutionProvider" in available:
            selected.append(("CUDAExecutionProvider", {}))
        selected.append(("CPUExecutionProvider", {}))
        return selected

    def _warmup(self, n_iterations=5):
        input_meta = self.session.get_inputs()[0]
        shape = [1, *input_meta.shape[1:]]
        shape = [s if isinstance(s, int) else 1 for s in shape]
        dummy = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        for _ in range(n_iterations):
            self.session.run(None, {input_meta.name: dummy})

    def predict(self, inputs):
        return self.session.run(None, inputs)

    def benchmark(self, inputs, n_runs=100):
        for _ in range(10):
            self.session.run(None, inputs)
        latencies = []
        for _ in range(n_runs):
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


def mean_ms(session, inputs, n_runs=20):
    session.run(None, inputs)
    start = time.perf_counter()
    for _ in range(n_runs):
        session.run(None, inputs)
    return (time.perf_counter() - start) / n_runs * 1000


def main(model_path):
    server = ModelServer(model_path, provider="tensorrt")
    source, target = server.session.get_inputs()[0].name, server.session.get_outputs()[0].name
    images = np.random.default_rng(0).random((16, *server.session.get_inputs()[0].shape[1:])).astype(np.float32)
    expected = server.session.run([target], {source: images})[0]
    found = {"expected": expected.tolist(), "latency": server.benchmark({source: images[:1]}, n_runs=50)}
    found["batches"] = {}
    for batch_size in (1, 4, 16):
        batch_ms = mean_ms(server.session, {source: images[:batch_size]})
        found["batches"][batch_size] = batch_size / batch_ms * 1000
    found["threads"], found["outputs"] = {}, []
    for num_threads in (None, 1, 2, 4):
        session = configure_cpu_session(model_path, num_threads)
        found["threads"][str(num_threads)] = mean_ms(session, {source: images})
        found["outputs"].append(session.run([target], {source: images})[0].tolist())
    found["levels"] = {}
    for name in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"):
        session = configure_cpu_session(model_path, 1, getattr(ort.GraphOptimizationLevel, name))
        found["levels"][name] = mean_ms(session, {source: images})
        found["outputs"].append(session.run([target], {source: images})[0].tolist())
    found["peak_memory_kib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
