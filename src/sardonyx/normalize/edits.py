"""Helpers of rewrites: reading constants, moving attributes to inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value

Array = np.ndarray[Any, Any]


def constant(value: Value | None) -> Array | None:
    """The elements of a value that is known at load time: an initializer or a Constant node's output."""
    if value is None:
        return None
    if value.is_const:
        return np.asarray(value.numpy())
    node = value.producer
    if node is None or node.op_type != "Constant" or node.domain:
        return None
    for key, attr in node.attrs.items():
        if key == "value":
            return np.asarray(attr.numpy())
        if key in ("value_int", "value_ints"):
            return np.array(attr, np.int64)
        if key in ("value_float", "value_floats"):
            return np.array(attr, np.float32)
    return None


def required_input(node: Node, i: int) -> Value:
    """Input ``i``; InvalidGraph if it is missing."""
    value = node.input(i)
    if value is None:
        raise InvalidGraph(f"input {i} of {node.op_type} is missing", where=node.label)
    return value


def required_attribute(node: Node, name: str) -> Any:
    """A required attribute; InvalidGraph if it is missing."""
    if name not in node.attrs:
        raise InvalidGraph(f"attribute {name!r} of {node.op_type} is missing", where=node.label)
    return node.attrs[name]


def like(op: Builder, number: float, x: Value) -> Any:
    """A scalar of the element type of ``x``."""
    if x.dtype is None:
        return op.CastLike(number, x)
    with np.errstate(over="ignore"):
        return op.const(np.asarray(number).astype(x.dtype.numpy))


def rank_of(op: Builder, x: Value) -> Any:
    """The rank of ``x`` as an i64 vector of one element."""
    return op.Shape(op.Shape(x))


def put_input(node: Node, i: int, value: Value | None) -> None:
    """Set input ``i``; optional inputs between the last one and it are left out."""
    while len(node.inputs) <= i:
        node.add_input(None)
    node.set_input(i, value)


def ints_to_input(op: Builder, node: Node, name: str, i: int, *, optional: bool = False) -> None:
    """Turn an attribute of ints into input ``i``, unless the node has that input."""
    if name in node.attrs:
        put_input(node, i, op.const(np.atleast_1d(np.array(node.attrs.pop(name), np.int64))))
    elif not optional and node.input(i) is None:
        required_attribute(node, name)
