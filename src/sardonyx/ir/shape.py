"""Dimensions and shapes: an int, a name shared by equal dimensions, or None where nothing is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Dim: TypeAlias = "int | str | None"
Shape: TypeAlias = "tuple[Dim, ...]"


def is_static(shape: Shape | None) -> bool:
    return shape is not None and all(isinstance(d, int) for d in shape)


def count(shape: Sequence[int]) -> int:
    """Elements of a concrete shape, as an exact Python int."""
    n = 1
    for d in shape:
        n *= d
    return n


def merge_dim(a: Dim, b: Dim) -> Dim:
    """The more precise of two statements about a dimension; if they contradict each other, the first."""
    if isinstance(a, int) or b is None:
        return a
    if isinstance(b, int) or a is None:
        return b
    return a


def merge(a: Shape | None, b: Shape | None) -> Shape | None:
    """The more precise of two statements about a shape; if they contradict each other, the first."""
    if a is None or b is None:
        return b if a is None else a
    if len(a) != len(b):
        return a
    return tuple(merge_dim(x, y) for x, y in zip(a, b, strict=True))


def differ(a: Shape | None, b: Shape | None) -> bool:
    """Whether two statements about one shape contradict each other in rank or in a number."""
    if a is None or b is None:
        return False
    return len(a) != len(b) or any(
        isinstance(x, int) and isinstance(y, int) and x != y for x, y in zip(a, b, strict=True)
    )


def fits(actual: Sequence[int], declared: Shape | None) -> bool:
    """Whether a concrete shape agrees with the known dimensions of a declared one."""
    if declared is None:
        return True
    return len(actual) == len(declared) and all(
        not isinstance(d, int) or d < 0 or d == a for a, d in zip(actual, declared, strict=True)
    )


def text(shape: Shape | None) -> str:
    if shape is None:
        return "[...]"
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"
