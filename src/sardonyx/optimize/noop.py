"""Nodes that give back one of their inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.shape import is_static
from sardonyx.optimize.manager import Log, optimization


@optimization("RemoveNoOps")
def remove_no_ops(graph: Graph, log: Log) -> None:
    """Let readers of a node that changes nothing read its input."""
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
        if out.is_output and graph.parent is not None and same.producer is None:
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
    """A cast of a half-precision value to its own type stays: it says where a chain computed in f32 must round."""
    x = node.inputs[0]
    if x is None or x.dtype is None or x.dtype in (dtypes.f16, dtypes.bf16):
        return None
    return x if x.dtype.onnx == node.attrs.get("to") else None


def _same_shape(node: Node) -> Value | None:
    x, out = node.inputs[0], node.outputs[0]
    return x if x is not None and is_static(x.shape) and x.shape == out.shape else None


def _transpose(node: Node) -> Value | None:
    x, perm = node.inputs[0], node.attrs.get("perm")
    return x if x is not None and x.rank is not None and perm == list(range(x.rank)) else None


def _single(node: Node) -> Value | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _pad(node: Node) -> Value | None:
    pads = node.input(1)
    return node.inputs[0] if pads is not None and pads.is_const and not pads.numpy().any() else None


def _neutral(number: int, *, either: bool, exact_on_floats: bool = True) -> Callable[[Node], Value | None]:
    """x op number, where the constant does not broadcast x to a larger shape."""

    def rule(node: Node) -> Value | None:
        a, b = node.inputs
        if a is None or b is None:
            return None
        pairs = ((a, b), (b, a)) if either else ((a, b),)
        for x, c in pairs:
            if not c.is_const or c.const is None or c.const.size != 1 or x.dtype is None:
                continue
            if x.dtype.is_float and not exact_on_floats:
                continue
            if c.rank is not None and x.rank is not None and c.rank <= x.rank and np.all(c.numpy() == number):
                return x
        return None

    return rule


RULES: dict[str, Callable[[Node], Value | None]] = {
    "Identity": _identity,
    "Dropout": _dropout,
    "Cast": _cast,
    "Reshape": _same_shape,
    "Expand": _same_shape,
    "Flatten": _same_shape,
    "Squeeze": _same_shape,
    "Unsqueeze": _same_shape,
    "Tile": _same_shape,
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
}
"""Operator to the input that it gives back unchanged, or None where it does something. Adding 0 to a float is left: it
turns -0 into 0."""
