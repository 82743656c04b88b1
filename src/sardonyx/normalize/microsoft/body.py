"""What the bodies share: constants in a value's type, sizes and shapes as values, layout changes, attributes."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.errors import InvalidGraph, NotImplemented
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value

MICROSOFT = "com.microsoft"
END = 2**62
"""A slice bound past the end of any axis."""


def given(node: Node, i: int) -> Value:
    """Input ``i``, which the operator requires."""
    value = node.input(i)
    if value is None:
        raise InvalidGraph(f"input {i} is missing", where=node.label)
    return value


def required(node: Node, name: str) -> Any:
    """An attribute that the operator requires."""
    if name not in node.attrs:
        raise InvalidGraph(f"attribute {name!r} is missing", where=node.label)
    return node.attrs[name]


def refuse(node: Node, what: str) -> NotImplemented:
    return NotImplemented(f"{what} is not supported", where=node.label)


def rank_of(node: Node, i: int) -> int:
    """The rank of input ``i``, for the few bodies whose form depends on it."""
    rank = given(node, i).rank
    if rank is None:
        raise NotImplemented(
            f"the rank of input {i} must be known", where=node.label, hint="give the model's inputs their shapes"
        )
    return rank


def kept(node: Node, *names: str) -> dict[str, Any]:
    """The attributes that the body's main operator takes over as they are."""
    return {name: node.attrs[name] for name in names if name in node.attrs}


def wanted(node: Node, i: int) -> bool:
    """Does anybody read output ``i``?"""
    return i < len(node.outputs) and bool(node.outputs[i].name)


def like(op: Builder, x: Any, value: Value) -> Any:
    """The constant ``x`` in the element type of ``value``."""
    if value.dtype is not None:
        return op.const(np.asarray(x, np.float64).astype(value.dtype.numpy))
    return op.CastLike(op.const(np.asarray(x, np.float32)), value)


def dim(op: Builder, x: Value, axis: int) -> Any:
    """The size of one axis as a vector of one i64: a constant where the type tells it."""
    if x.shape is not None:
        size = x.shape[axis]
        if isinstance(size, int):
            return op.const([size])
    return op.Shape(x, start=axis, end=axis + 1 if axis != -1 else None)


def shape(op: Builder, *sizes: Value | int) -> Any:
    """A shape vector from sizes: constants, and vectors of one."""
    parts = [op.const([s]) if isinstance(s, int) else s for s in sizes]
    if all(p.is_const for p in parts):
        return op.const(np.concatenate([p.numpy() for p in parts]))
    return op.Concat(*parts, axis=0)


def scalar(op: Builder, x: Value) -> Any:
    """A scalar, or the one element of a vector, as a scalar."""
    if x.rank == 0:
        return x
    return op.Reshape(x, op.const(np.zeros(0, np.int64)))


def count(op: Builder, n: Value) -> Any:
    """0, 1, ... n-1 for a vector ``n`` of one i64."""
    return op.Range(op.const(0), scalar(op, n), op.const(1))


def permute(op: Builder, x: Value, equation: str, perm: list[int] | None) -> Any:
    """Transpose by ``perm``; by the equation where the rank, and so the permutation, is unknown."""
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


def pick(op: Builder, x: Value, i: int, axis: int = 0) -> Any:
    """Slice ``i`` of an axis, the axis dropped."""
    return op.Gather(x, op.const(i), axis=axis)


def cut(op: Builder, x: Value, start: Value | int, end: Value | int, axis: int) -> Any:
    """``x[start:end]`` along an axis; bounds are numbers or vectors of one i64."""
    bounds = [op.const([b]) if isinstance(b, int) else b for b in (start, end)]
    return op.Slice(x, *bounds, op.const([axis]))


def total(op: Builder, *terms: Value | None) -> Any:
    """The sum of the terms that are there."""
    present = [t for t in terms if t is not None]
    out = present[0]
    for t in present[1:]:
        out = op.Add(out, t)
    return out


def several(op: Builder, op_type: str, *inputs: Any, outputs: int, **attrs: Any) -> tuple[Any, ...]:
    """A node's outputs as a tuple, be it of one."""
    made = op.call("", op_type, *inputs, outputs=outputs, **attrs)
    return made if isinstance(made, tuple) else (made,)
