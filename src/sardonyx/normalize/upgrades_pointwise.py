"""Elementwise operators: numpy broadcasting instead of attributes, bounds as inputs."""

from __future__ import annotations

from typing import Any

from sardonyx.errors import InvalidGraph
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import like, put_input, rank_of, required_attribute, required_input
from sardonyx.normalize.registry import Result, upgrade


@upgrade(
    "Abs", "Add", "BatchNormalization", "Ceil", "Clip", "Div", "Dropout", "Elu", "Exp", "Floor", "HardSigmoid",
    "InstanceNormalization", "LeakyRelu", "Log", "Max", "Mean", "Min", "Mul", "Neg", "PRelu", "Reciprocal", "Relu",
    "Selu", "Sigmoid", "Sqrt", "Sub", "Sum", "Tanh", to=6,
)  # fmt: skip
def drop_consumed_inputs(op: Builder, node: Node) -> Result:
    node.attrs.pop("consumed_inputs", None)
    return None


@upgrade("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater", to=7)
def numpy_broadcast(op: Builder, node: Node) -> Result:
    """``axis`` said at which axis of A the dimensions of B begin; trailing ones in B's shape do the same."""
    axis, broadcast = node.attrs.pop("axis", None), node.attrs.pop("broadcast", 0)
    if broadcast and axis is not None:
        a, b = required_input(node, 0), required_input(node, 1)
        node.set_input(1, _with_trailing_ones(op, a, b, axis))
    return None


def _with_trailing_ones(op: Builder, a: Value, b: Value, axis: int) -> Any:
    if a.rank is not None and b.rank is not None:
        trailing = (0 if axis < 0 else a.rank) - axis - b.rank
        if trailing < 0:
            raise InvalidGraph(f"axis {axis} leaves no room for {b!r} in {a!r}", expected=f"at most {a.rank - b.rank}")
        return op.Unsqueeze(b, axes=[b.rank + i for i in range(trailing)]) if trailing else b
    after = op.const([-axis]) if axis < 0 else op.Sub(rank_of(op, a), [axis])
    ones = op.Expand([1], op.Sub(after, rank_of(op, b)))
    return op.Reshape(b, op.Concat(op.Shape(b), ones, axis=0))


@upgrade("PRelu", to=7)
def slope_per_channel(op: Builder, node: Node) -> Result:
    """A vector of slopes belonged to axis 1; now it broadcasts along the last axis."""
    x, slope = required_input(node, 0), required_input(node, 1)
    if slope.rank not in (None, 1) or slope.shape == (1,):
        return None
    if x.rank is None or slope.rank is None:
        trailing = op.Max(op.Sub(rank_of(op, x), [2]), [0])
        node.set_input(1, op.Reshape(slope, op.Concat([-1], op.Expand([1], trailing), axis=0)))
    elif x.rank > 2:
        node.set_input(1, op.Unsqueeze(slope, axes=list(range(1, x.rank - 1))))
    return None


@upgrade("Cast", to=6)
def cast_to_number(op: Builder, node: Node) -> Result:
    to = required_attribute(node, "to")
    if isinstance(to, str):
        from onnx import TensorProto

        types = dict(TensorProto.DataType.items())
        if to.upper() not in types:
            raise InvalidGraph(f"no element type is called {to!r}", where=node.label)
        node.attrs["to"] = types[to.upper()]
    return None


@upgrade("Selu", to=6)
def selu_coefficients(op: Builder, node: Node) -> Result:
    """The defaults were rounded to four digits."""
    node.attrs.setdefault("alpha", 1.6732)
    node.attrs.setdefault("gamma", 1.0507)
    return None


@upgrade("Clip", to=11)
def bounds_as_inputs(op: Builder, node: Node) -> Result:
    for i, name in enumerate(("min", "max"), 1):
        if name in node.attrs:
            put_input(node, i, like(op, node.attrs.pop(name), required_input(node, 0)))
    return None
