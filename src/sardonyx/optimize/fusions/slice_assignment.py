"""Assignments to slices whose bounds are data, ``x[:, a:b] = y``, as Paddle's exporter writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.pattern import Match, attribute


@fusion
class FuseSliceAssignment(Fusion):
    """ScatterElements(x, all of [start, end) along an axis, y), y alike along it  ->  Where(start <= i < end, y, x).

    No shape depends on the bounds any more. Indices from the end count as ScatterElements counts them.
    """

    shares = True

    def pattern(self, op: Any, x: Any, start: Any, end: Any, form: Any, sizes: Any, y: Any, shape: Any) -> Any:
        numbers = op.Range(start, end, 1)
        column = op.either(op.Reshape(numbers, form, name="column"), op.Unsqueeze(numbers, form, name="column"))
        indices = op.either(op.Tile(column, sizes, name="indices"), op.Expand(column, sizes, name="indices"))
        return op.ScatterElements(x, indices, op.Expand(y, shape), name="scatter")

    def rewrite(self, op: Builder, m: Match) -> Any:
        scatter, x, y = m.node("scatter"), m.x, m.y
        require(attribute(scatter, "reduction") == "none", "elements are reduced, not replaced")
        require(x.rank, "the rank is not known", x)
        axis = int(attribute(scatter, "axis")) % x.rank
        column, indices = m.node("column").output, m.node("indices").output
        require(_is_alike(column, x.rank, but=axis), "the indices are not alike along the other axes", column)
        require(_covers(indices, column, x, axis), "not all of the other axes is replaced", indices)
        require(_broadcasts(y, x, axis), "what is written differs along the axis, or has another shape", y)
        of_bounds = m.start.dtype
        length = _length(op, x, axis, of_bounds)
        at: Value = op.Range(op.const(np.zeros((), of_bounds.numpy)), length, op.const(np.ones((), of_bounds.numpy)))
        if others := list(range(1, x.rank - axis)):
            at = op.Unsqueeze(at, others)
        here, from_end = (_between(op, i, m.start, m.end) for i in (at, op.Sub(at, length)))
        return op.Where(op.Or(here, from_end), y, x)


def _length(op: Builder, x: Value, axis: int, dtype: DType) -> Value:
    size = x.shape[axis] if x.shape else None
    if isinstance(size, int):
        return op.const(np.array(size, dtype.numpy))
    found: Value = op.Cast(op.Squeeze(op.Shape(x, start=axis, end=axis + 1)), to=dtype.onnx)
    return found


def _between(op: Builder, i: Value, start: Value, end: Value) -> Value:
    found: Value = op.And(op.GreaterOrEqual(i, start), op.Less(i, end))
    return found


def _is_alike(column: Value, rank: int, but: int) -> bool:
    """Whether all axes but one have one element."""
    return column.rank == rank and all(size == 1 for i, size in enumerate(column.shape or ()) if i != but)


def _covers(indices: Value, column: Value, x: Value, axis: int) -> bool:
    """Whether indices that were repeated have the sizes of ``x``, and still those of the column along the axis."""
    if indices.shape is None or column.shape is None or x.shape is None or indices.rank != x.rank:
        return False
    wanted = [column.shape[i] if i == axis else size for i, size in enumerate(x.shape)]
    return None not in wanted and list(indices.shape) == wanted


def _broadcasts(y: Value, x: Value, axis: int) -> bool:
    """Whether ``y`` has one element along the axis of ``x``, and one or as many as ``x`` along each other."""
    if y.shape is None or x.shape is None or len(y.shape) > len(x.shape):
        return False
    missing = len(x.shape) - len(y.shape)
    sizes = list(enumerate(y.shape, missing))
    return all(size == 1 or (i != axis and size is not None and size == x.shape[i]) for i, size in sizes)
