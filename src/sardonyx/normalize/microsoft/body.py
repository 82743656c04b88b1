"""Helpers of operator bodies: typed constants, sizes and shapes as values, layout changes, attributes."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.errors import NotImplemented
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_input

MICROSOFT = "com.microsoft"
END = 2**62
"""A slice bound beyond the end of any axis."""


def refuse(node: Node, what: str) -> NotImplemented:
    return NotImplemented(f"{what} is not supported", where=node.label)


def rank_of(node: Node, i: int) -> int:
    """The rank of input ``i``, for bodies that depend on it."""
    rank = required_input(node, i).rank
    if rank is None:
        raise NotImplemented(
            f"the rank of input {i} must be known", where=node.label, hint="give the model's inputs their shapes"
        )
    return rank


def shared_attributes(node: Node, *names: str) -> dict[str, Any]:
    """The attributes that the body's main operator has too."""
    return {name: node.attrs[name] for name in names if name in node.attrs}


def is_used(node: Node, i: int) -> bool:
    """Whether output ``i`` is read."""
    return i < len(node.outputs) and bool(node.outputs[i].name)


def like(op: Builder, x: Any, value: Value) -> Any:
    """The constant ``x`` in the element type of ``value``."""
    if value.dtype is not None:
        return op.const(np.asarray(x, np.float64).astype(value.dtype.numpy))
    return op.CastLike(op.const(np.asarray(x, np.float32)), value)


def dim(op: Builder, x: Value, axis: int) -> Any:
    """The size of an axis as an i64 vector of one element; a constant if the type knows it."""
    if x.shape is not None:
        size = x.shape[axis]
        if isinstance(size, int):
            return op.const([size])
    return op.Shape(x, start=axis, end=axis + 1 if axis != -1 else None)


def shape(op: Builder, *sizes: Value | int) -> Any:
    """A shape vector from constants and vectors of one element."""
    parts = [op.const([s]) if isinstance(s, int) else s for s in sizes]
    if all(p.is_const for p in parts):
        return op.const(np.concatenate([p.numpy() for p in parts]))
    return op.Concat(*parts, axis=0)


def scalar(op: Builder, x: Value) -> Any:
    """A scalar, or a vector's only element as a scalar."""
    if x.rank == 0:
        return x
    return op.Reshape(x, op.const(np.zeros(0, np.int64)))


def count(op: Builder, n: Value) -> Any:
    """0, 1, ... n-1 for a vector ``n`` of one i64."""
    return op.Range(op.const(0), scalar(op, n), op.const(1))


def permute(op: Builder, x: Value, equation: str, perm: list[int] | None) -> Any:
    """Transpose by ``perm``; by an Einsum ``equation`` if the rank is unknown."""
    return op.Einsum(x, equation=equation) if perm is None else op.Transpose(x, perm=perm)


def swap_last(op: Builder, x: Value) -> Any:
    """The last two axes exchanged."""
    r = x.rank
    return permute(op, x, "...ij->...ji", None if r is None else [*range(r - 2), r - 1, r - 2])


def channels_first(op: Builder, x: Value, rank: int | None) -> Any:
    """NHWC to NCHW."""
    return permute(op, x, "n...c->nc...", None if rank is None else [0, rank - 1, *range(1, rank - 1)])


def channels_last(op: Builder, x: Value, rank: int | None) -> Any:
    """NCHW to NHWC."""
    return permute(op, x, "nc...->n...c", None if rank is None else [0, *range(2, rank), 1])


def index_axis(op: Builder, x: Value, i: int, axis: int = 0) -> Any:
    """Slice ``i`` of an axis, without that axis."""
    return op.Gather(x, op.const(i), axis=axis)


def slice_axis(op: Builder, x: Value, start: Value | int, end: Value | int, axis: int) -> Any:
    """``x[start:end]`` along an axis; bounds are numbers or i64 vectors of one element."""
    bounds = [op.const([b]) if isinstance(b, int) else b for b in (start, end)]
    return op.Slice(x, *bounds, op.const([axis]))


def sum_given(op: Builder, *terms: Value | None) -> Any:
    """The sum of the terms that are not None."""
    present = [t for t in terms if t is not None]
    out = present[0]
    for t in present[1:]:
        out = op.Add(out, t)
    return out


def call_tuple(op: Builder, op_type: str, *inputs: Any, outputs: int, **attrs: Any) -> tuple[Any, ...]:
    """A node's outputs, always as a tuple."""
    made = op.call("", op_type, *inputs, outputs=outputs, **attrs)
    return made if isinstance(made, tuple) else (made,)
