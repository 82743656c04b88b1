"""LSTM and GRU layers alone: microseconds a call beside onnxruntime, for streams of one step and for sequences.

    python benchmarks/recurrent.py [--threads N] [--seconds S] [--json FILE]

Both engines run in every round, onnxruntime without spinning threads, which would take the other's cores. A figure is
the median; the ratio is onnxruntime's over ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import sardonyx

GATES = {"LSTM": 4, "GRU": 3}


@dataclass(frozen=True)
class Case:
    kind: str
    hidden: int
    steps: int
    batch: int = 1
    ways: int = 1

    @property
    def name(self) -> str:
        both = ", both ways" if self.ways == 2 else ""
        return f"{self.kind} {self.hidden}, {self.steps} steps, batch {self.batch}{both}"

    def model(self) -> bytes:
        """A layer whose inputs are as wide as its state, with weights from one seed."""
        rng, gates, n = np.random.default_rng(0), GATES[self.kind], self.hidden
        shapes = {"w": (self.ways, gates * n, n), "r": (self.ways, gates * n, n), "b": (self.ways, 2 * gates * n)}
        weights = [
            numpy_helper.from_array((rng.standard_normal(s) / n**0.5).astype(np.float32), name)
            for name, s in shapes.items()
        ]
        direction = "bidirectional" if self.ways == 2 else "forward"
        late = {"linear_before_reset": 1} if self.kind == "GRU" else {}
        node = helper.make_node(
            self.kind, ["x", "w", "r", "b"], ["y", "h"], hidden_size=n, direction=direction, **late
        )  # fmt: skip
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", "batch", n])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["steps", self.ways, "batch", n])
        h = helper.make_tensor_value_info("h", TensorProto.FLOAT, [self.ways, "batch", n])
        graph = helper.make_graph([node], "layer", [x], [y, h], weights)
        made = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        onnx.checker.check_model(made)
        return bytes(made.SerializeToString())


CASES = (
    Case("LSTM", 128, 1), Case("LSTM", 256, 1), Case("LSTM", 64, 50), Case("LSTM", 128, 50), Case("LSTM", 256, 50),
    Case("LSTM", 512, 50), Case("LSTM", 256, 50, ways=2), Case("LSTM", 128, 50, batch=8),
    Case("LSTM", 256, 50, batch=32),
    Case("GRU", 128, 1), Case("GRU", 128, 50), Case("GRU", 256, 50, ways=2), Case("GRU", 256, 50, batch=8),
)  # fmt: skip


def sessions(model: bytes, threads: int) -> dict[str, Any]:
    found = {}
    for name, module in (("sardonyx", sardonyx), ("onnxruntime", onnxruntime)):
        options = module.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        found[name] = module.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return found


def measure(case: Case, threads: int, seconds: float) -> dict[str, Any]:
    runs = sessions(case.model(), threads)
    x = np.random.default_rng(1).standard_normal((case.steps, case.batch, case.hidden)).astype(np.float32)
    answers = {name: session.run(None, {"x": x}) for name, session in runs.items()}
    error = max(float(np.abs(a - b).max()) for a, b in zip(*answers.values(), strict=True))
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, session in runs.items():
            for _ in range(3):
                start = time.perf_counter()
                session.run(None, {"x": x})
                last = time.perf_counter() - start
            times[name].append(last * 1e6)
    medians = {name: statistics.median(t) for name, t in times.items()}
    return {**asdict(case), **medians, "ratio": medians["onnxruntime"] / medians["sardonyx"], "difference": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each case")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(f"sardonyx {sardonyx.__version__}, onnxruntime {onnxruntime.__version__}, {args.threads} threads")
    rows = []
    for case in CASES:
        row = measure(case, args.threads, args.seconds)
        rows.append(row)
        ours, theirs = row["sardonyx"], row["onnxruntime"]
        print(f"{case.name:42} {ours:9.1f} {theirs:9.1f} us  {row['ratio']:5.2f}x  off by {row['difference']:.1e}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
