"""What one `session.run` costs when the model does nothing: microseconds per run of an Identity, interleaved.

python benchmarks/run_overhead.py [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper


def identity() -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model.SerializeToString()


def unoptimized(engine: Any, model: bytes) -> Any:
    """A session that runs the Identity rather than removing it."""
    options = engine.SessionOptions()
    options.graph_optimization_level = engine.GraphOptimizationLevel.ORT_DISABLE_ALL
    return engine.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def sessions(model: bytes) -> dict[str, Any]:
    """By name and version: ours, and onnxruntime's where it is installed."""
    names = [name for name in ("sardonyx", "onnxruntime") if importlib.util.find_spec(name)]
    engines = [importlib.import_module(name) for name in names]
    return {f"{e.__name__} {e.__version__}": unoptimized(e, model) for e in engines}


def measure(engines: dict[str, Any], rounds: int, runs: int = 100) -> dict[str, list[float]]:
    """Each round gives every engine `runs` runs in turn and notes the mean of those."""
    feed = {"x": np.arange(4, dtype=np.float32)}
    micros: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds + 2):
        for name, engine in engines.items():
            run = engine.run
            start = time.perf_counter_ns()
            for _ in range(runs):
                run(None, feed)
            if number >= 2:
                micros[name].append((time.perf_counter_ns() - start) / 1e3 / runs)
    return micros


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", type=Path, help="write the results there")
    args = parser.parse_args()

    micros = measure(sessions(identity()), args.rounds)
    print(f"identity of 4 floats, {args.rounds} rounds of 100 runs, {platform.machine()}; microseconds per run")
    print(f"{'':24}{'median':>9}{'10 %':>9}{'90 %':>9}")
    for name, values in micros.items():
        deciles = statistics.quantiles(values, n=10)
        print(f"{name:24}{statistics.median(values):9.1f}{deciles[0]:9.1f}{deciles[-1]:9.1f}")
    if args.json:
        args.json.write_text(json.dumps({"microseconds": micros, "machine": platform.machine()}, indent=1))


if __name__ == "__main__":
    main()
