"""Rotary position embedding; positions may be a single offset, and the number of heads may follow from the cache."""

from __future__ import annotations

from typing import Any

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_input
from sardonyx.normalize.microsoft.body import (
    END,
    MICROSOFT,
    count,
    dim,
    rank_of,
    refuse,
    shape,
    slice_axis,
)
from sardonyx.normalize.registry import expand


def split_heads(op: Builder, x: Value, heads: int | Value, size: int | Value = -1) -> Any:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    return op.Transpose(op.Reshape(x, shape(op, 0, 0, heads, size)), perm=[0, 2, 1, 3])


def join_heads(op: Builder, x: Value) -> Any:
    """(batch, heads, length, size) as (batch, length, heads * size)."""
    return op.Reshape(op.Transpose(x, perm=[0, 2, 1, 3]), op.const([0, 0, -1]))


def rotate(op: Builder, x: Value, positions: Value, cos: Value, sin: Value, interleaved: int) -> Any:
    """Rotate x of rank 4. If the cache is narrower than half a head, the rest of the head is unchanged."""
    width = None if cos.shape is None else cos.shape[-1]
    if isinstance(width, int):
        return op.RotaryEmbedding(x, cos, sin, positions, interleaved=interleaved, rotary_embedding_dim=2 * width)
    rotated_size = op.Mul(dim(op, cos, -1), op.const([2]))
    rotated = op.RotaryEmbedding(slice_axis(op, x, 0, rotated_size, 3), cos, sin, positions, interleaved=interleaved)
    return op.Concat(rotated, slice_axis(op, x, rotated_size, END, 3), axis=3)


@expand("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(op: Builder, node: Node) -> Any:
    x, positions, cos, sin = (required_input(node, i) for i in range(4))
    heads, rotary = node.attrs.get("num_heads", 0), node.attrs.get("rotary_embedding_dim", 0)
    interleaved = node.attrs.get("interleaved", 0)
    flat = rank_of(node, 0) == 3
    if rotary and not heads and flat:
        raise refuse(node, "rotary_embedding_dim without num_heads")
    wide = x
    if flat:
        wide = split_heads(op, x, heads) if heads else split_heads(op, x, -1, op.Mul(dim(op, cos, 1), op.const([2])))
    if rank_of(node, 1) == 1:
        ids = op.Add(positions, count(op, dim(op, x, 1 if flat else 2)))
        positions = op.Expand(op.Unsqueeze(ids, op.const([0])), shape(op, dim(op, x, 0), 1))
    y = rotate(op, wide, positions, cos, sin, interleaved)
    return join_heads(op, y) if flat else y
