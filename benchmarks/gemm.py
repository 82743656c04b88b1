"""Matrix products with a constant right operand on one thread: GFLOP/s, and the share of what the machine can do.

    python benchmarks/gemm.py [--rounds N] [--sizes MxNxK ...] [--json FILE]

Contestants: our kernels on vectors (f32, and bf16 weights), on tiles where the chip has them (by precision), OpenBLAS
through numpy, and onnxruntime. All run in every round, and beside them the two limits: a loop of multiply-adds in
registers, and a read of as many bytes as the packed weights have. A figure is the best of all rounds, in time of the
thread, which a busy neighbour does not lengthen; shares are of the limit that is lower for the product at hand:
arithmetic, or for few rows reading B once. Where the chip has tiles, which tell, each round is on the core that others
leave alone most (``quiet``).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from burst import burst_s, onnxruntime_call
from quiet import probe_here

from sardonyx.dtypes import bf16, f32
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.groups import Contraction, Expression, Storage, View
from sardonyx.providers.cpu.codegen import machine_limits
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.kernels.common.matrices import problem
from sardonyx.providers.cpu.kernels.gemm import contraction
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.memory.allocator import allocate
from sardonyx.providers.cpu.program.constants import content
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step, Target

Array = np.ndarray[Any, Any]
SIZES = [
    "128x768x768",
    "128x3072x768",
    "128x768x3072",
    "128x3072x3072",
    "1x768x768",
    "1x3072x3072",
    "8x768x768",
    "1024x768x768",
]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="MxNxK")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


class Ours:
    """A product as our compiler would run it, on one thread."""

    def __init__(self, a: Array, b: Array, make: Callable[[Contraction], list[Step]]) -> None:
        (m, k), n = a.shape, b.shape[1]
        left, right = Storage("input", f32, a.size), Storage("constant", f32, b.size, tensor=Tensor.of(b))
        out = Storage("output", f32, m * n)
        self.result = allocate(4 * m * n).view(np.float32).reshape(m, n)
        self._arrays: dict[int, Array] = {left.number: a, out.number: self.result}
        views = View(left, (m, k), (k, 1)), View(right, (k, n), (n, 1))
        outputs = (View(out, (m, n), (n, 1)),)
        self.steps = make(Contraction((), Expression((f32,), (), (0,)), (), outputs, (), m, n, k, *views))
        self.packed_nbytes = 0
        self._launches = [self._launch(step) for step in self.steps]

    def _launch(self, step: Step) -> Launch:
        given = {name: self._array(x) if isinstance(x, Ref) else x for name, x in step.args.items()}
        return Launch(step.spec, given, scratch_nbytes=int(step.scratch_nbytes), checked=False)

    def _array(self, ref: Ref) -> Array:
        storage = ref.storage
        if storage.number not in self._arrays:
            constant = isinstance(storage, Packed)
            nbytes = storage.dtype.nbytes(int(storage.elements))
            empty = allocate(nbytes).view(storage.dtype.numpy)  # on lines, as in a session
            found = self._arrays[storage.number] = content(storage) if constant else empty
            self.packed_nbytes += found.nbytes * constant
        return self._arrays[storage.number].reshape(-1)[int(ref.offset) :]

    def __call__(self) -> None:
        for launch in self._launches:
            launch()


def contestants(a: Array, b: Array) -> dict[str, Callable[[], Any]]:
    chip = isa.current()
    found: dict[str, Callable[[], Any]] = {}
    for precision, name in (("highest", "vectors f32"), ("medium", "vectors, B bf16")):
        target = Target(chip, precision)
        found[name] = Ours(a, b, lambda group, t=target: contraction.multiply_adds(problem(group), t))  # type: ignore[misc]
    for precision in ("highest", "high", "medium") if chip.amx else ():
        target = Target(chip, precision)
        found[f"tiles, {precision}"] = Ours(a, b, lambda group, t=target: contraction.steps(group, t))  # type: ignore[misc]
    out = np.zeros((a.shape[0], b.shape[1]), np.float32)
    found["OpenBLAS (numpy)"] = lambda: np.dot(a, b, out=out)
    if importlib.util.find_spec("onnxruntime"):
        found["onnxruntime"] = onnxruntime_matmul(a, b)
    return found


def onnxruntime_matmul(a: Array, b: Array) -> Callable[[], Any]:
    from onnx import helper

    return onnxruntime_call([helper.make_node("MatMul", ["x", "b"], ["y"])], a, {"b": b})


def measure(m: int, n: int, k: int, rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    runs = contestants(a, b)
    best = dict.fromkeys(runs, float("inf"))
    flops, reads = 0.0, dict.fromkeys((bf16, f32), 0.0)
    for run in runs.values():
        run()
    probe = probe_here()
    cores = [] if probe is None else sorted(os.sched_getaffinity(0))
    for _ in range(rounds):
        if probe is not None:
            os.sched_setaffinity(0, probe.quietest(cores)[:1])
        flops = max(flops, machine_limits.peak_flops(f32))
        for dtype in reads:
            reads[dtype] = max(reads[dtype], machine_limits.read_bandwidth(dtype.nbytes(n * k)))
        for name, run in runs.items():
            best[name] = min(best[name], burst_s(run))
    if probe is not None:
        os.sched_setaffinity(0, cores)
    rows = {}
    for name, run in runs.items():
        stored = bf16 if isinstance(run, Ours) and run.packed_nbytes < 4 * n * k else f32
        limit_s = max(2 * m * n * k / flops, stored.nbytes(n * k) / reads[stored])
        error = float(abs(run.result - exact).max() / abs(exact).max()) if isinstance(run, Ours) else None
        rows[name] = {
            "gflops": 2 * m * n * k / best[name] / 1e9, "us": best[name] * 1e6, "share": limit_s / best[name],
            "error": error, "variant": run.steps[-1].variant if isinstance(run, Ours) else None,
        }  # fmt: skip
    return {"size": [m, n, k], "peak_gflops": flops / 1e9, "read_gbps": reads[f32] / 1e9, "contestants": rows}


def main() -> None:
    args = parse()
    print(
        f"{platform.machine()} {isa.current().cpu}, numpy {np.__version__}, one thread; share of the fp32 or read limit"
    )
    results = []
    for size in args.sizes:
        m, n, k = map(int, size.split("x"))
        found = measure(m, n, k, args.rounds)
        results.append(found)
        print(f"\n{size}: peak {found['peak_gflops']:.1f} GFLOP/s, read {found['read_gbps']:.1f} GB/s")
        for name, row in found["contestants"].items():
            error = "" if row["error"] is None else f"  error {row['error']:.1e}"
            print(f"  {name:18s} {row['gflops']:8.1f} GFLOP/s {row['us']:9.1f} us  {row['share']:6.1%}{error}")
    if args.json:
        chip = isa.current()
        args.json.write_text(json.dumps({"cpu": chip.cpu, "isa": chip.name, "results": results}, indent=1))


if __name__ == "__main__":
    main()
