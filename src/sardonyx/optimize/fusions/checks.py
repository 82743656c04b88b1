"""Conditions on matched values that rewrites require."""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.types import is_float
from sardonyx.optimize.fusion import require
from sardonyx.optimize.pattern import Match


def root(m: Match) -> Node:
    """The node whose output the pattern matches."""
    return next(iter(m.nodes.values()))


def result(m: Match) -> Value:
    return root(m).outputs[0]


def require_float(x: Value, *, double: bool = True) -> None:
    """``double``: whether all readers of the fused operator support doubles."""
    require(is_float(x.type), "the elements are not known to be floats", x)
    require(double or x.dtype is not dtypes.f64, "the operator is seldom implemented for doubles", x)


def require_shape_of(m: Match, x: Value) -> None:
    """Refuse if the pattern's scalar constants give the result a higher rank than ``x``."""
    y = result(m)
    require(x.rank is not None and x.rank == y.rank, f"the rank is not that of {x.name}", y)


def fits_trailing(v: Value, x: Value, count: int = 1) -> bool:
    """Whether ``v`` has exactly the shape of the last ``count`` axes of ``x``."""
    if v.shape is None or x.shape is None or v.rank != count or count > len(x.shape):
        return False
    return all(isinstance(d, int) and d == e for d, e in zip(v.shape, x.shape[-count:], strict=True))


def same_shape(a: Value, b: Value) -> bool:
    """Whether two values are known to have equal shapes."""
    return a.shape is not None and a.shape == b.shape and None not in a.shape


def sizes(v: Value, first: int, last: int | None = None) -> tuple[int, ...] | None:
    """Some dimensions of a value, if all are known numbers."""
    if v.shape is None:
        return None
    dims = tuple(d for d in v.shape[first:last] if isinstance(d, int))
    return dims if len(dims) == len(v.shape[first:last]) else None


def number(v: Value, what: str) -> float:
    """A constant of one element."""
    require(v.is_scalar_const, f"{what} is not a scalar constant", v)
    return float(v.item())


def per_channel(v: Value, rank: int, channels: Any) -> bool:
    """Whether ``v`` broadcasts along axis 1, and no other, of a value with ``rank`` axes."""
    if v.shape is None or not isinstance(channels, int) or not rank - 1 <= len(v.shape) <= rank:
        return False
    full = (1,) * (rank - len(v.shape)) + v.shape
    return full == (1, channels, *[1] * (rank - 2))
