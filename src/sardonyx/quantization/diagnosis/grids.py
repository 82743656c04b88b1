"""Scales and zero points as a model states them, and those that would have been right."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import constant
from sardonyx.ops.precision import integer_range
from sardonyx.ops.quantize import dequantize_linear, quantize_linear
from sardonyx.records import Record

Array = np.ndarray[Any, Any]
SHRINKS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""Shares of a tensor's range that are tried for the best one."""


class Grid(Record, eq=False):
    """real = (q - zero) * scale, per tensor, along an axis, or in blocks of one."""

    scale: Array
    zero: Array
    """Of the shape of ``scale`` and the type of the codes, or reals."""
    dtype: DType
    """The type of the codes."""
    axis: int = 1
    block: int = 0

    @property
    def is_per_tensor(self) -> bool:
        return bool(self.scale.size == 1)

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest code; floats have no grid of even steps and count as their extremes."""
        if self.dtype.is_float:
            info = np.finfo(np.float32) if self.dtype.bits > 8 else _narrow_info(self.dtype)
            return float(info.min), float(info.max)
        low, high = integer_range(self.dtype.numpy)
        return float(low), float(high)

    @property
    def range(self) -> tuple[float, float]:
        """The reals at the lowest and the highest code, of a tensor with one scale."""
        scale, zero = float(self.scale.reshape(-1)[0]), float(self.zero.reshape(-1)[0])
        low, high = ((code - zero) * scale for code in self.limits)
        return min(low, high), max(low, high)

    @property
    def is_symmetric(self) -> bool:
        low, high = self.limits
        zero = self.zero.astype(np.float64)
        return bool(np.all(zero == np.rint((low + high) / 2 + (0.5 if low == 0 else 0))) or np.all(zero == 0))

    def codes(self, x: Array) -> Array:
        return np.asarray(quantize_linear(x, self.scale, self.zero, axis=self.axis, block_size=self.block))

    def reals(self, codes: Array) -> Array:
        if self.zero.dtype.kind == "f":
            return np.asarray((codes.astype(np.float32) - self.zero) * self.scale)
        return np.asarray(dequantize_linear(codes, self.scale, self.zero, axis=self.axis, block_size=self.block))

    def differs_from(self, other: Grid) -> bool:
        same = self.scale.shape == other.scale.shape and np.allclose(self.scale, other.scale, rtol=1e-3)
        return not (same and np.array_equal(self.zero.astype(np.float64), other.zero.astype(np.float64)))


def grid_of(node: Node, scale: int, zero: int, codes: Value | None = None, *, axis: int = 1) -> Grid | None:
    """The grid at these inputs of a node; None if it is not constant. ``codes`` tells the type without a zero point."""
    steps = constant(node.input(scale))
    if steps is None:
        return None
    points = constant(node.input(zero))
    if points is None and node.input(zero) is not None:
        return None
    dtype = _type_of(node, points, codes)
    if dtype is None:
        return None
    if points is None:
        points = np.zeros(steps.shape, dtype.numpy)
    if points.size != steps.size:
        points = np.broadcast_to(points, steps.shape)
    return Grid(steps, points.reshape(steps.shape), dtype, axis, int(node.attrs.get("block_size", 0)))


def _type_of(node: Node, points: Array | None, codes: Value | None) -> DType | None:
    if points is not None:
        return dtypes.of_numpy(points.dtype)
    if codes is not None and codes.dtype is not None:
        return codes.dtype
    stated = node.attrs.get("output_dtype", 0) if node.op_type == "QuantizeLinear" else 0
    return dtypes.of_onnx(stated) if stated else dtypes.u8 if node.op_type == "QuantizeLinear" else None


def fitted(x: Array, like: Grid, *, share: float = 1.0) -> Grid:
    """A per-tensor grid, of the type and symmetry of ``like``, over a share of the range of ``x``."""
    low, high = min(float(x.min(initial=0)), 0.0) * share, max(float(x.max(initial=0)), 0.0) * share
    return over_range(low, high, like)


def over_range(low: float, high: float, like: Grid) -> Grid:
    least, most = like.limits
    if like.is_symmetric:
        reach = max(-low, high)
        scale, zero = 2 * reach / (most - least), float(np.rint((least + most) / 2 + (0.5 if least == 0 else 0)))
        if least < 0:
            zero = 0.0
    else:
        scale = (high - low) / (most - least)
        zero = float(np.clip(np.rint(least - low / scale), least, most)) if scale > 0 else 0.0
    scale = scale if scale > 0 else 1.0
    return Grid(np.array(scale, np.float32), np.array(zero).astype(like.dtype.numpy), like.dtype)


def best(x: Array, like: Grid) -> Grid:
    """The grid of the least error among those over shares of the range of ``x``."""
    tried = [fitted(x, like, share=share) for share in SHRINKS]
    return min(tried, key=lambda grid: float(np.square(grid.reals(grid.codes(x)) - x, dtype=np.float64).sum()))


def _narrow_info(dtype: DType) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
