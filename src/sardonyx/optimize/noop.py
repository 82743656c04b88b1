"""Removes nodes that return one of their inputs unchanged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.manager import Log, optimization

NOT_NEGATIVE = frozenset({"Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus"})
"""Operators on floats whose results are never negative."""

MAX_NEUTRAL = 4096
"""Largest constant that is inspected."""

TO_THE_END = 2**31 - 1
"""The end that exporters use for a slice of everything."""


COMPUTED = frozenset({"Add", "Sub", "Mul", "Div", "Pow"})
"""Operators that are kept if they produce a graph output, as in onnxruntime: the output keeps its name."""


@optimization("RemoveNoOps")
def remove_no_ops(graph: Graph, log: Log) -> None:
    """Make readers of a node that changes nothing read its input."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            remove_no_ops(sub, log)
        rule = RULES.get(node.op_type) if not node.domain else None
        if rule is None or any(not out.is_dead for out in node.outputs[1:]):
            continue
        same = rule(node)
        if same is None:
            continue
        out = node.outputs[0]
        if out.is_output and (node.onnx_op in COMPUTED or (graph.parent is not None and same.producer is None)):
            continue
        log.replace(graph, [node], [out], [same], [], f"removed: it gives back {same.name!r}")


def _identity(node: Node) -> Value | None:
    return node.inputs[0]


def _dropout(node: Node) -> Value | None:
    training = node.input(2)
    if training is None or (training.is_const and not training.numpy().any()):
        return node.inputs[0]
    return None


def _cast(node: Node) -> Value | None:
    """A cast of a half-precision value to its own type is kept: it marks where an f32 computation must round."""
    x = node.inputs[0]
    if x is None or x.dtype is None or x.dtype in (dtypes.f16, dtypes.bf16):
        return None
    return x if x.dtype.onnx == node.attrs.get("to") else None


def _cast_like(node: Node) -> Value | None:
    x, like = node.inputs[0], node.inputs[1]
    if x is None or like is None or x.dtype is not like.dtype or x.dtype in (None, dtypes.f16, dtypes.bf16):
        return None
    return x


def _same_shape(node: Node) -> Value | None:
    x, out = node.inputs[0], node.outputs[0]
    return x if x is not None and x.shape is not None and x.shape == out.shape and None not in x.shape else None


def _slice(node: Node) -> Value | None:
    """A Slice that covers every axis that it names, with step 1."""
    x, starts, ends = node.inputs[:3]
    steps = node.input(4)
    if starts is None or ends is None or not (steps is None or (steps.is_const and (steps.numpy() == 1).all())):
        return None
    if _same_shape(node) is not None:
        return x
    whole = starts.is_const and ends.is_const and not starts.numpy().any() and (ends.numpy() >= TO_THE_END).all()
    return x if whole else None


def _tile(node: Node) -> Value | None:
    x, repeats = node.inputs
    if x is None or repeats is None or not repeats.is_const or repeats.shape != (x.rank,):
        return None
    return x if (repeats.numpy() == 1).all() else None


def _expand(node: Node) -> Value | None:
    """An Expand that neither adds nor lengthens an axis."""
    x, target = _same_shape(node), node.inputs[1]
    if x is None or x.shape is None or target is None or not target.is_const:
        return x
    wanted = target.numpy().tolist()
    fits = len(wanted) <= len(x.shape) and all(w in (1, d) for w, d in zip(wanted[::-1], x.shape[::-1], strict=False))
    return x if fits else None


def _clip(node: Node) -> Value | None:
    return node.inputs[0] if node.input(1) is None and node.input(2) is None else None


def _split(node: Node) -> Value | None:
    return node.inputs[0] if len(node.outputs) == 1 and node.input(1) is None else None


def _twice(node: Node) -> Value | None:
    """A self-inverse operator applied twice."""
    x = node.inputs[0]
    made = x.producer if x is not None else None
    return made.inputs[0] if made is not None and made.op_type == node.op_type and not made.domain else None


def _relu(node: Node) -> Value | None:
    x = node.inputs[0]
    made = x.producer if x is not None else None
    return x if made is not None and not made.domain and made.op_type in NOT_NEGATIVE else None


def _transpose(node: Node) -> Value | None:
    x, perm = node.inputs[0], node.attrs.get("perm")
    return x if x is not None and x.rank is not None and perm == list(range(x.rank)) else None


def _single(node: Node) -> Value | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _pad(node: Node) -> Value | None:
    pads = node.input(1)
    return node.inputs[0] if pads is not None and pads.is_const and not pads.numpy().any() else None


def _neutral(number: int, *, either: bool, exact_on_floats: bool = True) -> Callable[[Node], Value | None]:
    """x op number, if the constant does not broadcast x to a larger shape."""

    def rule(node: Node) -> Value | None:
        a, b = node.inputs
        if a is None or b is None:
            return None
        pairs = ((a, b), (b, a)) if either else ((a, b),)
        for x, c in pairs:
            if not c.is_const or c.const is None or c.const.size > MAX_NEUTRAL or x.dtype is None:
                continue
            if x.dtype.is_float and not exact_on_floats:
                continue
            if _stays(x, c) and np.all(c.numpy() == number):
                return x
        return None

    return rule


def _stays(x: Value, c: Value) -> bool:
    """Whether ``x`` keeps its shape when broadcast with a constant ``c``."""
    if c.shape is None or x.rank is None or x.rank < len(c.shape):
        return False
    dims = x.shape[x.rank - len(c.shape) :] if x.shape is not None else ()
    return all(d in (1, e) for d, e in zip(c.shape, dims, strict=True))


RULES: dict[str, Callable[[Node], Value | None]] = {
    "Identity": _identity,
    "Dropout": _dropout,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Reshape": _same_shape,
    "Expand": _expand,
    "Flatten": _same_shape,
    "Squeeze": _same_shape,
    "Unsqueeze": _same_shape,
    "Slice": _slice,
    "Tile": _tile,
    "Split": _split,
    "Clip": _clip,
    "Relu": _relu,
    "Neg": _twice,
    "Not": _twice,
    "Transpose": _transpose,
    "Concat": _single,
    "Sum": _single,
    "Mean": _single,
    "Max": _single,
    "Min": _single,
    "Pad": _pad,
    "Add": _neutral(0, either=True, exact_on_floats=False),
    "Sub": _neutral(0, either=False),
    "Mul": _neutral(1, either=True),
    "Div": _neutral(1, either=False),
    "Pow": _neutral(1, either=False),
    "And": _neutral(1, either=True),
    "Or": _neutral(0, either=True),
}
"""From operator to a function that returns the input which the node passes on unchanged, or None.

Adding 0 to a float is kept: it turns -0 into 0.
"""
