"""Operators that are bound by memory, alone, on tensors of 50 MB: what share of a copy's bandwidth do they reach?

    python benchmarks/bandwidth.py                 half a minute
    python benchmarks/bandwidth.py --threads 2 --only resize,softmax
    python benchmarks/bandwidth.py --json F        and the figures in a file

Each case is a model of one node. The copy is that of the C library, on as many threads, of as many bytes, taken in
turns with the case; bytes are those of inputs and outputs, each counted once; times are the best of all rounds. The
first line says what plain vector stores reach, and what those do that go past the caches. A store that does not reads
its cache line first: what writes much more than it reads stays below a copy that writes as much as it reads. With
``--cpu-time`` one thread is timed by the processor's clock, for a machine that others use too.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import sardonyx
from sardonyx.providers.cpu.codegen import machine_limits

Array = np.ndarray[Any, Any]
ROUNDS = 15


@dataclass(frozen=True)
class Case:
    node: str
    x: tuple[int, ...]
    constants: tuple[tuple[str, Array], ...] = ()

    def session(self, threads: int) -> sardonyx.InferenceSession:
        shape = ",".join(map(str, self.x))
        names = ",".join("ABCDE"[: len(self.x)])
        model = onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["" : 21]> '
            f"g (float[{shape}] x) => (float[{names}] y) {{ y = {self.node} }}"
        )
        model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in self.constants)
        options = sardonyx.SessionOptions()
        options.intra_op_num_threads = threads
        return sardonyx.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


TWICE = (("scales", floats(1, 1, 2, 2)),)
HALF = (("scales", floats(1, 1, 0.5, 0.5)),)
ODD = (("scales", floats(1, 1, 1.6, 1.6)),)
IMAGE, SMALL = (8, 64, 160, 160), (8, 64, 80, 80)
WINDOW = {
    2: "kernel_shape = [2, 2], strides = [2, 2]",
    3: "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]",
}
SAME = "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"
POOLS = ("MaxPool", "AveragePool")
CASES = {
    "resize nearest x2": Case('Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", '
                              'nearest_mode = "floor">(x, , scales)', SMALL, TWICE),
    "resize linear x2": Case('Resize<mode = "linear">(x, , scales)', SMALL, TWICE),
    "resize linear x1.6": Case('Resize<mode = "linear">(x, , scales)', (8, 64, 100, 100), ODD),
    "resize linear x0.5": Case('Resize<mode = "linear">(x, , scales)', IMAGE, HALF),
    "resize cubic x2": Case('Resize<mode = "cubic">(x, , scales)', SMALL, TWICE),
    **{f"{op} {k}x{k} stride 2": Case(f"{op}<{WINDOW[k]}>(x)", IMAGE) for op in POOLS for k in (2, 3)},
    **{f"{op} 3x3 stride 1": Case(f"{op}<{SAME}>(x)", IMAGE) for op in POOLS},
    "transpose NCHW to NHWC": Case("Transpose<perm = [0, 2, 3, 1]>(x)", IMAGE),
    "transpose NHWC to NCHW": Case("Transpose<perm = [0, 3, 1, 2]>(x)", (8, 160, 160, 64)),
    "softmax of 1000": Case("Softmax<axis = -1>(x)", (13107, 1000)),
    "softmax of 128": Case("Softmax<axis = -1>(x)", (102400, 128)),
    "layernorm of 768": Case("LayerNormalization<axis = -1>(x, w, b)", (17067, 768),
                             (("w", np.ones(768, np.float32)), ("b", np.ones(768, np.float32)))),
    "relu": Case("Relu(x)", IMAGE),
}  # fmt: skip


class Copy:
    """A copy of some bytes by threads that stand ready."""

    def __init__(self, nbytes: int, threads: int) -> None:
        self.source, self.target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
        self.parts = list(zip(np.array_split(self.source, threads), np.array_split(self.target, threads), strict=True))
        self.start, self.done = threading.Barrier(threads), threading.Barrier(threads)
        self.is_over = False
        for part in self.parts[1:]:
            threading.Thread(target=self._work, args=part, daemon=True).start()

    def _work(self, source: Array, target: Array) -> None:
        while True:
            self.start.wait()
            if self.is_over:
                return
            np.copyto(target, source)
            self.done.wait()

    def __call__(self) -> None:
        self.start.wait()
        np.copyto(self.parts[0][1], self.parts[0][0])
        self.done.wait()

    def close(self) -> None:
        self.is_over = True
        self.start.wait()


def measure(case: Case, threads: int, clock: Callable[[], float], rounds: int) -> dict[str, float]:
    """Bandwidths in GB/s, and the share."""

    def seconds(fn: Callable[[], object]) -> float:
        begin = clock()
        fn()
        return clock() - begin

    session = case.session(threads)
    feed = {"x": np.random.default_rng(0).standard_normal(case.x, np.float32)}
    (y,) = session.run(None, feed)
    nbytes = feed["x"].nbytes + y.nbytes
    del y
    copy = Copy(nbytes // 2, threads)
    runs, copies = [], []
    for _ in range(rounds):
        runs.append(seconds(lambda: session.run(None, feed)))
        copies.append(seconds(copy))
    copy.close()
    run, whole = min(runs), min(copies)
    return {"copy_gb_s": nbytes / whole / 1e9, "gb_s": nbytes / run / 1e9, "share": whole / run}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="many, where neighbours come and go")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    clock = time.process_time if args.cpu_time else time.perf_counter
    args.threads = 1 if args.cpu_time else args.threads
    plain, past = (
        machine_limits.copy_bandwidth(50 << 20, args.threads, is_non_temporal=is_non_temporal)
        for is_non_temporal in (False, True)
    )
    print(f"{args.threads} threads; stores of vectors: {plain / 1e9:.1f} GB/s, past the caches: {past / 1e9:.1f} GB/s")
    print(f"{'case':26}{'GB/s':>8}{'copy':>8}{'share':>8}")
    results = {}
    for name, case in CASES.items():
        if any(part in name for part in args.only.split(",")):
            found = results[name] = measure(case, args.threads, clock, args.rounds)
            print(f"{name:26}{found['gb_s']:8.1f}{found['copy_gb_s']:8.1f}{found['share']:8.0%}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"threads": args.threads, "cases": results}, indent=1))


if __name__ == "__main__":
    main()
