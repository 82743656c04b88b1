"""Products and convolutions of bytes on one thread: time beside onnxruntime's, and beside f32 of the same size.

    python benchmarks/int8.py [--rounds N] [--json FILE]

Contestants are whole sessions of one node with constant weights, so that the call is in the figure as a user pays for
it. All run in every round; a figure is the best of all rounds, in processor time, which a busy neighbour does not
lengthen. The results of both engines are compared: they must be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import onnxruntime
from burst import burst_s
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.providers.cpu.machine import isa

Array = np.ndarray[Any, Any]
PRODUCTS = [(m, n, k) for m in (1, 128) for n, k in ((768, 768), (3072, 768), (768, 3072), (3072, 3072))]
CONVOLUTIONS = [
    ((1, 64, 56, 56), (64, 64, 3, 3), 1, 1),
    ((1, 64, 56, 56), (256, 64, 1, 1), 1, 1),
    ((1, 256, 14, 14), (256, 256, 3, 3), 1, 1),
    ((1, 512, 7, 7), (512, 512, 3, 3), 1, 1),
    ((1, 128, 56, 56), (128, 128, 3, 3), 2, 1),
    ((1, 3, 224, 224), (64, 3, 7, 7), 2, 1),
    ((1, 96, 56, 56), (96, 1, 3, 3), 1, 96),
]
RNG = np.random.default_rng(0)


def model(op_type: str, x: Array, constants: dict[str, Array], inputs: str, **attrs: Any) -> bytes:
    """One node, whose inputs are letters: x, and constants."""
    node = helper.make_node(op_type, list(inputs), ["y"], **attrs)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    out = {"MatMulInteger": TensorProto.INT32}.get(op_type, kind)
    graph = helper.make_graph(
        [node], op_type, [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", out, None)],
        [numpy_helper.from_array(v, name) for name, v in constants.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(made.SerializeToString())


def session(engine: Any, source: bytes, x: Array) -> Callable[[], Any]:
    options = engine.SessionOptions()
    options.intra_op_num_threads = 1
    made = engine.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return lambda: made.run(None, {"x": x})[0]


def contestants(op_type: str, x: Array, w: Array, real: str, **attrs: Any) -> dict[str, Callable[[], Any]]:
    """``real`` is the operator on f32."""
    points = {"p": np.array(3, x.dtype), "q": np.array(0, np.int8)}
    scales = {name: np.array(v, np.float32) for name, v in (("s", 0.01), ("t", 0.02), ("u", 5.0))}
    quantized = {"w": w, **points, **scales, "z": np.array(7, x.dtype)}
    if op_type == "MatMulInteger":
        source = model(op_type, x, {"w": w, **points}, "xwpq")
    else:
        source = model(op_type, x, quantized, "xspwtquz", **attrs)
    reals = x.astype(np.float32)
    return {
        "sardonyx": session(sardonyx, source, x),
        "onnxruntime": session(onnxruntime, source, x),
        "sardonyx f32": session(sardonyx, model(real, reals, {"w": w.astype(np.float32)}, "xw", **attrs), reals),
    }


def measure(name: str, runs: dict[str, Callable[[], Any]], products: int, rounds: int) -> dict[str, Any]:
    is_equal = bool((runs["sardonyx"]() == runs["onnxruntime"]()).all())
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for key, run in runs.items():
            best[key] = min(best[key], burst_s(run, clock=time.process_time))
    ours = best["sardonyx"]
    row = {
        "case": name, "us": {key: s * 1e6 for key, s in best.items()}, "gops": 2 * products / ours / 1e9,
        "over_onnxruntime": best["onnxruntime"] / ours, "over_f32": best["sardonyx f32"] / ours, "is_equal": is_equal,
    }  # fmt: skip
    print(
        f"{name:44s} {ours * 1e6:9.0f} us {row['gops']:8.1f} GOP/s  {row['over_onnxruntime']:5.2f} x onnxruntime"
        f"  {row['over_f32']:5.2f} x f32{'' if is_equal else '  DIFFERS'}"
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    chip, rows = isa.current(), []
    print(f"{platform.machine()} {chip.cpu} ({chip.name}), onnxruntime {onnxruntime.__version__}, one thread")
    for m, n, k in PRODUCTS:
        w = RNG.integers(-127, 128, (k, n)).astype(np.int8)
        for op_type, dtype in (("MatMulInteger", np.uint8), ("QLinearMatMul", np.uint8), ("QLinearMatMul", np.int8)):
            x = RNG.integers(0, 128, (m, k)).astype(dtype)
            name = f"{op_type} {np.dtype(dtype)} {m}x{n}x{k}"
            rows.append(measure(name, contestants(op_type, x, w, "MatMul"), m * n * k, args.rounds))
    for image, weights, stride, groups in CONVOLUTIONS:
        x, w = RNG.integers(0, 256, image).astype(np.uint8), RNG.integers(-127, 128, weights).astype(np.int8)
        attrs = {"strides": [stride] * 2, "pads": [weights[2] // 2] * 4, "group": groups}
        runs = contestants("QLinearConv", x, w, "Conv", **attrs)
        products = runs["sardonyx"]().size * w[0].size
        name = f"QLinearConv {'x'.join(map(str, image))} by {'x'.join(map(str, weights))} / {stride}"
        rows.append(measure(name, runs, products, args.rounds))
    if args.json:
        args.json.write_text(json.dumps({"cpu": chip.cpu, "isa": chip.name, "results": rows}, indent=1))


if __name__ == "__main__":
    main()
