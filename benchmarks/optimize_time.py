"""How long it takes to normalize and optimize a graph, at three sizes: the cost of a node must not grow with them.

    python benchmarks/optimize_time.py                       graphs built from a fixed seed, once, three and five times
    python benchmarks/optimize_time.py --model BERT.onnx     and an exported model, as it is

`encoder` stacks transformer layers as torch's exporter writes them, shapes computed at run time included; `unrolled` is
a recurrent cell written out step by step. Seconds are the best of the rounds, without reading the file.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sardonyx.model.load import load
from sardonyx.normalize.run import normalize
from sardonyx.optimize.pipelines import optimize

SEED = 0
SIZES = (1, 3, 5)
LAYERS, STEPS = 12, 120
"""Of the smallest encoder and the smallest unrolled network: about 1,000 nodes each."""

WIDTH, HEADS = 16, 2
"""Small: the time asked for is that of the graph, not of folding large weights."""


class Network:
    """A graph under construction; constants are initializers drawn from one seed."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(SEED)

    def __call__(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def const(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.const(self._random.standard_normal(shape) / WIDTH)

    def model(self, inputs: dict[str, list[Any]], output: str, shape: list[Any]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
            self.initializers,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def linear(net: Network, x: str, inner: int = WIDTH, outer: int = WIDTH) -> str:
    return net("Add", net.weight(outer), net("MatMul", x, net.weight(inner, outer)))


def layer_norm(net: Network, x: str) -> str:
    centred = net("Sub", x, net("ReduceMean", x, axes=[-1]))
    variance = net("ReduceMean", net("Pow", centred, net.const(2.0)), axes=[-1])
    unit = net("Div", centred, net("Sqrt", net("Add", variance, net.const(1e-12))))
    return net("Add", net("Mul", unit, net.weight(WIDTH)), net.weight(WIDTH))


def gelu(net: Network, x: str) -> str:
    bent = net("Add", net("Erf", net("Div", x, net.const(2**0.5))), net.const(1.0))
    return net("Mul", net("Mul", x, bent), net.const(0.5))


def sizes(net: Network, x: str, *last: int) -> str:
    """Batch and sequence of ``x`` as found at run time, and the given dimensions."""
    axis = net.const([0], np.int64)
    found = [net("Unsqueeze", net("Gather", net("Shape", x), net.const(i, np.int64)), axis) for i in (0, 1)]
    return net("Concat", *found, *(net.const([d], np.int64) for d in last), axis=0)


def heads(net: Network, x: str, perm: list[int]) -> str:
    split = net("Reshape", linear(net, x), sizes(net, x, HEADS, WIDTH // HEADS))
    return net("Transpose", split, perm=perm)


def attention(net: Network, x: str, mask: str) -> str:
    q, k, v = (heads(net, x, perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    scores = net("Div", net("MatMul", q, k), net.const((WIDTH / HEADS) ** 0.5))
    mixed = net("MatMul", net("Softmax", net("Add", scores, mask), axis=-1), v)
    joined = net("Transpose", mixed, perm=[0, 2, 1, 3])
    return linear(net, net("Reshape", joined, sizes(net, joined, WIDTH)))


def encoder(times: int) -> onnx.ModelProto:
    net, x = Network(), "x"
    for _ in range(LAYERS * times):
        x = layer_norm(net, net("Add", attention(net, x, "mask"), x))
        wide = gelu(net, linear(net, x, WIDTH, 4 * WIDTH))
        x = layer_norm(net, net("Add", linear(net, wide, 4 * WIDTH, WIDTH), x))
    shape = ["batch", "sequence", WIDTH]
    return net.model({"x": shape, "mask": ["batch", 1, 1, "sequence"]}, x, shape)


def unrolled(times: int) -> onnx.ModelProto:
    net, state, steps = Network(), "h", STEPS * times
    inputs, recurrent, axis = net.weight(WIDTH, WIDTH), net.weight(WIDTH, WIDTH), net.const([1], np.int64)
    for t in range(steps):
        x = net("Squeeze", net("Gather", "x", net.const([t], np.int64), axis=1), axis)
        sums = net("Add", net("MatMul", x, inputs), net("MatMul", state, recurrent))
        gates = net("Add", sums, net.weight(WIDTH))
        state = net("Add", net("Mul", net("Sigmoid", gates), net("Tanh", gates)), state)
    return net.model({"x": ["batch", steps, WIDTH], "h": ["batch", WIDTH]}, state, ["batch", WIDTH])


GRAPHS: dict[str, Callable[[int], onnx.ModelProto]] = {"encoder": encoder, "unrolled": unrolled}


def measure(name: str, source: Any, rounds: int) -> dict[str, Any]:
    """The best of the rounds, each on a graph of its own."""
    best: tuple[float, float] | None = None
    for _ in range(rounds):
        model = load(source)
        nodes = sum(1 for _ in model.graph.all_nodes())
        start = time.perf_counter()
        normalize(model)
        middle = time.perf_counter()
        optimize(model.graph, "extended")
        end = time.perf_counter()
        if best is None or end - start < sum(best):
            best = middle - start, end - middle
    assert best is not None
    left = sum(1 for _ in model.graph.all_nodes())
    row = {"graph": name, "nodes": nodes, "left": left, "normalize": best[0], "optimize": best[1]}
    return {**row, "microseconds_per_node": 1e6 * sum(best) / nodes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", default=[], help="measure this model too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the results there")
    args = parser.parse_args()
    sources = [(f"{name} x{times}", build(times)) for name, build in GRAPHS.items() for times in SIZES]
    print(f"{'':24}{'nodes':>8}{'left':>8}{'normalize s':>13}{'optimize s':>12}{'together s':>12}{'us per node':>13}")
    rows = []
    for name, source in (*sources, *((path.stem, path) for path in args.model)):
        row = measure(name, source, args.rounds)
        rows.append(row)
        both = row["normalize"] + row["optimize"]
        seconds = f"{row['normalize']:13.3f}{row['optimize']:12.3f}{both:12.3f}{row['microseconds_per_node']:13.0f}"
        print(f"{name:24}{row['nodes']:8}{row['left']:8}{seconds}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
