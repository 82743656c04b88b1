"""The float64 reference of a case: the model with every weight and activation in float64, run by the interpreter.

    python -m benchmarks.compare.reference FOLDER [CASE ...]

CASE.f64.npz holds the outputs (`out:NAME`), the floating-point operations of one run's matrix products and
convolutions (`cost:flops`), how many weights those read (`cost:weights`), and how far the answers that lie beside the
feeds are from the reference (`cost:told`), which shows that it is the same model.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare.cases import Case, cache_of, cases_in, step_feeds
from sardonyx import dtypes
from sardonyx.bench.arrays import Feeds, store, stored
from sardonyx.bench.statistics import relative_error
from sardonyx.interpret.bind import compile_graph
from sardonyx.interpret.context import RunContext
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.model.load import load
from sardonyx.normalize import normalize
from sardonyx.ops import limits

TYPE_ATTRIBUTES = ("to", "dtype", "stash_type", "output_dtype")
NARROW = (dtypes.f32, dtypes.f16)
RECURRENT = ("LSTM", "GRU", "RNN")
NEAR, NEARLY_NOTHING = 1e-2, 1e-5
"""How far an answer that lies beside the feeds may be from the reference: in relation to it, or in each element."""
NEAR_QUANTIZED = 0.3
"""The same of a model that quantizes its activations: random weights amplify each number that is rounded otherwise."""
ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear")


def widen(graph: Graph) -> None:
    """Have every f32 and f16 constant read as f64, and every attribute that says f32 or f16 say f64."""
    kept = _index_arithmetic(graph)
    wide: dict[Value, Value] = {}
    for node in [n for n in graph.nodes if n not in kept]:
        for i, value in enumerate(node.inputs):
            if value is not None and value.const is not None and value.const.dtype in NARROW:
                if value not in wide:
                    wide[value] = graph.add_const(_wide(value.const), f"{value.name}_f64")
                node.set_input(i, wide[value])
        for key, attr in node.attrs.items():
            if isinstance(attr, Tensor):
                node.attrs[key] = _wide(attr)
        for key in TYPE_ATTRIBUTES:
            if node.attrs.get(key) in [t.onnx for t in NARROW]:
                node.attrs[key] = dtypes.f64.onnx
        if node.op_type in ("LayerNormalization", "RMSNormalization"):
            node.attrs["stash_type"] = dtypes.f64.onnx
        if node.op_type == "ConstantOfShape":
            node.attrs.setdefault("value", Tensor.of(np.zeros(1)))
        for _, sub in node.subgraphs():
            widen(sub)


def _index_arithmetic(graph: Graph) -> set[Node]:
    """Nodes whose floats become integers: T5's buckets of distances are those that f32 rounds to, at any precision."""
    kept: set[Node] = set()
    ends = [n for n in graph.nodes if n.op_type == "Cast" and not dtypes.of_onnx(n.attrs["to"]).is_float]
    waiting = [end.input(0) for end in ends]
    while waiting:
        value = waiting.pop()
        if value is not None and value.dtype in NARROW and value.producer not in (None, *kept):
            assert value.producer is not None
            kept.add(value.producer)
            waiting += value.producer.inputs
    return kept


def _wide(tensor: Tensor) -> Tensor:
    if tensor.dtype not in NARROW:
        return tensor
    return Tensor(dtypes.f64, tensor.shape, lambda: tensor.numpy().astype(np.float64), name=tensor.name)


class Cost:
    """Counts what the matrix products, convolutions and recurrences of a run compute and read."""

    def __init__(self) -> None:
        self.flops = self.weights = 0
        self.fixed: set[Value] = set()
        """Values that no feed changes, beside constants."""

    def record(self, node: Node, _start: int, _end: int, args: Any, results: Any) -> None:
        read = [i for i, v in enumerate(node.inputs) if v is not None and (v.is_const or v in self.fixed)]
        if len(read) == sum(v is not None for v in node.inputs) and not list(node.subgraphs()):
            self.fixed |= set(node.outputs)
        products = _products(node, args, results)
        if products:
            self.flops += 2 * products
            self.weights += sum(args[i].size for i in read if i < (3 if node.op_type in RECURRENT else 2))


def _products(node: Node, args: Any, results: Any) -> int:
    """How many products of two numbers are summed up; 0 where the operator sums none."""
    if node.op_type == "MatMul":
        return int(args[0].shape[-1] * results[0].size)
    if node.op_type == "Gemm":
        return int(args[0].shape[0 if node.attrs.get("transA") else 1] * results[0].size)
    if node.op_type == "Conv":
        return int(math.prod(args[1].shape[1:]) * results[0].size)
    if node.op_type == "ConvTranspose":
        return int(math.prod(args[1].shape[1:]) * args[0].size)
    if node.op_type in RECURRENT:
        rows = math.prod(args[0].shape[:2])
        return int(rows * (args[1].size + args[2].size))
    return 0


class Wide:
    """A model in float64."""

    def __init__(self, path: Path) -> None:
        model = load(str(path))
        normalize(model)
        widen(model.graph)
        self.graph = model.graph
        self.program = compile_graph(model.graph)
        self.weights_nbytes = 2 * path.stat().st_size

    def run(self, feeds: Feeds, context: RunContext) -> Feeds:
        args = [np.asarray(feeds[v.name]) if v.name in feeds else v.numpy() for v in self.graph.inputs]
        args = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in args]
        held = limits.hold(self.weights_nbytes)
        try:
            return dict(zip(self.graph.output_names, self.program.run(args, context), strict=True))
        finally:
            limits.release(held)


def compute(case: Case, folder: Path) -> Feeds:
    """Write the reference of a case; returns its costs. The flops of a case with steps are those of a mean step."""
    wide = Wide(case.onnx(folder))
    cost = Cost()
    context = RunContext(record=cost.record)
    feeds, told = stored(case.feeds(folder), "in"), stored(case.feeds(folder), "told")
    runs = 1
    if case.steps:
        ids, cache, logits = feeds["input_ids"], {n: v for n, v in feeds.items() if n.startswith("past")}, []
        runs = ids.shape[1]
        for step in range(runs):
            outputs = wide.run(step_feeds(ids, step, cache), context)
            cache = cache_of(outputs)
            logits.append(outputs["logits"])
        outputs = {"logits": np.concatenate(logits, axis=1)}
    else:
        outputs = wide.run(feeds, context)
    outputs = {name: outputs[name] for name in told}
    if narrow := [name for name, v in outputs.items() if v.dtype.kind == "f" and v.dtype != np.float64]:
        raise TypeError(f"{case.name}: computed in less than float64: {', '.join(narrow)}")
    apart = max(relative_error(told[name], outputs[name]) for name in told)
    near = NEAR_QUANTIZED if any(node.op_type in ROUNDING for node in wide.graph.all_nodes()) else NEAR
    if not (apart < near or all(np.abs(told[name] - outputs[name]).max() < NEARLY_NOTHING for name in told)):
        raise ValueError(f"{case.name}: the answer to compare with is {apart:.1e} from the float64 reference")
    costs = {"flops": cost.flops / runs, "weights": cost.weights / runs, "told": apart}
    arrays = {name: np.asarray(value) for name, value in costs.items()}
    store(case.reference(folder), out=outputs, cost=arrays)
    return arrays


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    for case in cases_in(folder):
        if case.name in (names or [case.name]) and case.feeds(folder).exists():
            costs = compute(case, folder)
            figures = f"{costs['flops'] / 1e9:.3g} GFLOP, {costs['weights'] / 1e6:.3g} M weights"
            print(f"{case.name}: {figures}; what was told is {costs['told']:.1e} away", flush=True)


if __name__ == "__main__":
    main()
