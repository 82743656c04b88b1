"""Fuses written-out rotary embeddings: x * cos + rotate_half(x) * sin."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.attention_parts import same
from sardonyx.optimize.fusions.masks import typed
from sardonyx.optimize.pattern import Match

POINTWISE = ("Cos", "Sin", "Cast", "Mul")
"""Operators between the angles, repeated for both halves of a head, and their use."""


@fusion
class FuseRotaryEmbedding(Fusion):
    """x * cos + Concat(-x[..., half:], x[..., :half]) * sin  ->  RotaryEmbedding(x, cos, sin).

    Both halves of cos, and of sin, are equal; the operator takes one half.
    """

    def pattern(self, op: Any, x: Any, cos: Any, sin: Any) -> Any:
        low = op.call("", "Slice", x, starts=[0], axes=[-1], name="low")
        high = op.call("", "Slice", x, axes=[-1], name="high")
        halves = op.Concat(op.Neg(high), low, axis=lambda a: a in (-1, 3))
        return x * cos + halves * sin

    def rewrite(self, op: Builder, m: Match) -> Any:
        shape = m.x.shape
        require(shape is not None and len(shape) == 4 and isinstance(shape[3], int), "heads have no known size", m.x)
        _require_halves(m, shape[3])
        cos, sin = (_angles(op, x, m.x) for x in (m.cos, m.sin))
        return op.RotaryEmbedding(m.x, cos, sin)


def _require_halves(m: Match, size: int) -> None:
    low, high = m.node("low"), m.node("high")
    half = size // 2
    for node in (low, high):
        y, steps = node.outputs[0], node.input(4)
        whole = y.shape is not None and y.shape[-1] == half and 2 * half == size
        require(whole and (steps is None or (steps.is_const and bool((steps.numpy() == 1).all()))), "not a half", y)
    start = high.inputs[1]
    require(start is not None and start.is_const and start.numpy().tolist() in ([half], [-half]), "not a half", start)


def _angles(op: Builder, x: Value, rotated: Value) -> Value:
    """(batch, 1, length, size), whose halves are equal, as (batch, length, size / 2)."""
    half = _half(op, _for_all_heads(op, x))
    assert half.shape is not None and rotated.shape is not None
    batch = rotated.shape[0]
    if same(half.shape[0], batch):
        return half
    require(half.shape[0] == 1, "the angles' batch is not that of the rotated value", x)
    if isinstance(batch, int):
        return typed(op.Expand(half, op.const([batch, 1, 1])))
    rows = _dim(op, op.graph, batch)
    require(rows is not None, "no input of the graph has the batch of the rotated value", rotated)
    return typed(op.Expand(half, op.Concat(rows, op.const([1, 1]), axis=0)))


def _for_all_heads(op: Builder, x: Value) -> Value:
    """(batch, 1, length, size) without its second axis."""
    if x.is_const:
        require(x.rank == 4 and x.shape is not None and x.shape[1] == 1, "the angles vary by head", x)
        return op.const(x.numpy()[:, 0])
    node = x.producer
    require(
        node is not None and node.onnx_op == "Unsqueeze", "the angles are not known to be the same for all heads", x
    )
    assert node is not None and node.inputs[0] is not None and node.inputs[1] is not None
    flat, axes = node.inputs
    assert flat is not None and axes is not None
    whole = axes.is_const and axes.numpy().tolist() in ([1], [-3]) and flat.rank == 3
    require(whole, "the angles are not known to be the same for all heads", x)
    return flat


def _half(op: Builder, x: Value, depth: int = 8) -> Value:
    """Half of the last axis of a value whose halves are equal."""
    require(depth > 0, "the angles come from too long a chain of operators", x)
    if x.is_const:
        low, high = np.split(x.numpy(), 2, axis=-1)
        require(np.array_equal(low, high), "the halves of the angles differ", x)
        return op.const(low)
    node = x.producer
    if node is not None and node.onnx_op == "Concat" and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]:
        whole = node.inputs[0]
        assert whole is not None and whole.rank is not None
        require(node.attrs["axis"] % whole.rank == whole.rank - 1, "the halves of the angles differ", x)
        return whole
    if node is not None and node.onnx_op == "Gather" and node.attrs.get("axis", 0) == 0:
        table, rows = node.inputs
        assert table is not None
        require(table.rank == 2, "the halves of the angles are not known to be equal", x)
        return typed(op.Gather(_half(op, table, depth - 1), rows))
    if node is not None and node.onnx_op in POINTWISE:
        return typed(op.call("", node.op_type, *(_half_or_number(op, v, depth - 1) for v in node.inputs), **node.attrs))
    require(False, "the halves of the angles are not known to be equal", x)
    raise AssertionError


def _half_or_number(op: Builder, x: Value | None, depth: int) -> Value:
    assert x is not None
    return x if x.is_scalar_const else _half(op, x, depth)


def _dim(op: Builder, graph: Graph, name: Any) -> Any:
    """A size by its name, from the first graph input that has it: always the same node."""
    for value in graph.inputs:
        if value.shape is not None and name is not None and name in value.shape:
            i = value.shape.index(name)
            return op.Shape(value, start=i, end=i + 1)
    return None
