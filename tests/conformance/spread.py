"""How far may answers move when contractions are only so exact?

A contraction of A and B is *within e* if each of its elements is within e times that of (abs(A) times abs(B)). What an
error of that size becomes behind the contraction is found by trying it: the model is run by numpy with every element of
every contraction moved by exactly e times (abs(A) times abs(B)), all up, all down, or each at random, and compared with
the model run plainly. The largest of a few such differences, element by element, is the *spread*. Of a model that is
one contraction, it is that bound itself. Where several meet, a few tries may all miss what an element can do, so none
has less than the mean of its tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Kernel, program_of
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.model.load import load
from sardonyx.normalize.run import normalize

CONTRACTIONS = {"MatMul": 2, "Gemm": 2, "Conv": 2, "ConvTranspose": 2, "Einsum": None}
"""Operators, and how many of their inputs are multiplied; what is added to the products is exact. An Attention is to be
written out as its two contractions and what lies between."""
INNER = {"RNN": 3, "GRU": 3, "LSTM": 3, "DFT": 1, "STFT": 1, "FlexAttention": 3}
"""Operators with contractions inside, and how many of their inputs these multiply: each element of those is moved."""
SAMPLES = 8
Signs = Callable[[tuple[int, ...]], Any]


def has_contraction(model: onnx.ModelProto) -> bool:
    return any(map(_contractions, model.graph.node))


def _contractions(node: onnx.NodeProto) -> int:
    """How many there are in a node; those of a body, which may run more than once, count twice."""
    inner = sum(_contractions(n) for attr in node.attribute for n in attr.g.node)
    return int(node.op_type in CONTRACTIONS) + 2 * int(node.op_type in INNER) + 2 * inner


def spread(model: onnx.ModelProto, inputs: Sequence[Any], error: float) -> list[Any]:
    """For each output how far it may be from the right answer, with contractions within ``error``; 0 where none is."""
    graph = _graph(model)
    rest = [None if v.const is None else v.numpy() for v in graph.inputs[len(inputs) :]]
    args = [*inputs, *rest]
    plain = program_of(graph, bind).run(args, RunContext())
    widest: list[Any] = [0.0] * len(plain)
    for seed in range(SAMPLES):
        moved = program_of(graph, _moving(_signs(seed), error)).run(args, RunContext())
        widest = [_wider(w, m, p) for w, m, p in zip(widest, moved, plain, strict=True)]
    if sum(map(_contractions, model.graph.node)) == 1:
        return widest
    return [np.maximum(w, np.mean(w)) if np.size(w) else w for w in widest]


def _signs(seed: int) -> Signs:
    if seed < 2:
        return lambda shape: np.full(shape, 1.0 - 2 * seed)
    rng = np.random.default_rng(seed)
    return lambda shape: rng.choice([-1.0, 1.0], shape)


def _graph(model: onnx.ModelProto) -> Graph:
    loaded = load(model.SerializeToString())
    normalize(loaded)
    return loaded.graph


def _wider(widest: Any, moved: Any, plain: Any) -> Any:
    if not isinstance(plain, np.ndarray) or plain.dtype.kind not in "fV":
        return widest
    with np.errstate(invalid="ignore"):
        apart = np.abs(moved.astype(np.float64) - plain.astype(np.float64))
    return np.maximum(widest, np.where(np.isfinite(apart), apart, 0.0))


def _moving(signs: Signs, error: float) -> Callable[[Node], tuple[Kernel, Sequence[Value], bool]]:
    def moving(node: Node) -> tuple[Kernel, Sequence[Value], bool]:
        kernel, captured, takes_context = bind(node, lambda graph: program_of(graph, moving))
        if node.op_type in INNER:
            return _of_moved(kernel, INNER[node.op_type], signs, error), captured, takes_context
        if node.domain or node.op_type not in CONTRACTIONS:
            return kernel, captured, takes_context
        return _moved(kernel, CONTRACTIONS[node.op_type], signs, error), captured, takes_context

    return moving


def _of_moved(kernel: Kernel, count: int, signs: Signs, error: float) -> Kernel:
    def inner(*args: Any) -> Any:
        moved = [(a * (1 + error * signs(a.shape))).astype(a.dtype) for a in args[:count]]
        return kernel(*moved, *args[count:])

    return inner


def _moved(kernel: Kernel, count: int | None, signs: Signs, error: float) -> Kernel:
    factors = {name: abs(f) for name, f in getattr(kernel, "keywords", {}).items() if name == "alpha"}

    def contract(*args: Any) -> Any:
        right = kernel(*args)
        if right.dtype.kind not in "fV":
            return right
        sizes = kernel(*(None if a is None else np.abs(a) for a in args[:count]), **factors)
        moved = right.astype(np.float64) + error * signs(right.shape) * sizes.astype(np.float64)
        return moved.astype(right.dtype)

    return contract
