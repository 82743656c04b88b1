"""Quantization: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from __future__ import annotations

import numpy as np

from sardonyx import dtypes
from sardonyx.ops import precision as casts
from sardonyx.ops.precision import Array, integer_range, narrow, require, widen
from sardonyx.ops.registry import op
from sardonyx.ops.window import along


def _broadcastable(what: str, v: Array, x: Array, axis: int, block_size: int) -> Array:
    """A scale or zero point (a scalar, a vector along ``axis``, or one per block) broadcastable to ``x``."""
    if v.size == 1 and v.ndim <= 1:
        return v.reshape(())
    require(-x.ndim <= axis < x.ndim, f"{what}: axis is out of range for rank {x.ndim}", got=axis)
    axis %= x.ndim
    if not block_size:
        size = x.shape[axis]
        require(v.shape == (size,), f"{what}: one scale per entry of axis {axis}", expected=(size,), got=v.shape)
        return v.reshape((-1,) + (1,) * (x.ndim - axis - 1))
    require(block_size > 0, f"{what}: block_size must be positive", got=block_size)
    blocks = -(-x.shape[axis] // block_size)
    shape = (*x.shape[:axis], blocks, *x.shape[axis + 1 :])
    require(v.shape == shape, f"{what}: one scale per block", expected=shape, got=v.shape)
    return np.asarray(np.repeat(v, block_size, axis=axis)[along(axis, slice(0, x.shape[axis]))])


def _division_type(scale: Array, precision: int) -> np.dtype[np.generic]:
    """The type in which a quantization divides: ``precision``, or else the scale's if that is a plain float."""
    if precision:
        return dtypes.of_onnx(precision).numpy
    kind = dtypes.of_numpy(scale.dtype)
    return scale.dtype if kind.is_float and kind.bits >= 16 else np.dtype(np.float32 if kind.is_float else np.float64)


@op("QuantizeLinear")
def quantize_linear(
    x: Array,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Array:
    """saturate(round(x / scale) + zero point), rounding half to even."""
    what = "QuantizeLinear"
    target = dtypes.of_onnx(output_dtype or 2).numpy
    if y_zero_point is not None:
        fits = not output_dtype or y_zero_point.dtype == target
        require(fits, f"{what}: output_dtype and zero point differ", expected=target, got=y_zero_point.dtype)
        fits = y_zero_point.shape == y_scale.shape or y_zero_point.size == y_scale.size == 1
        require(fits, f"{what}: scale and zero point differ in shape", expected=y_scale.shape, got=y_zero_point.shape)
        target = y_zero_point.dtype
    work = _division_type(y_scale, precision)
    ratio = widen(x.astype(work, copy=False) / _broadcastable(what, y_scale, x, axis, block_size).astype(work))
    zero = None if y_zero_point is None else _broadcastable(what, y_zero_point, x, axis, block_size)
    return _to_quantized(ratio, zero, target, bool(saturate))


def _to_quantized(ratio: Array, zero: Array | None, target: np.dtype[np.generic], clamp: bool) -> Array:
    if dtypes.of_numpy(target).is_integer:
        ratio = np.rint(ratio)
    if zero is not None:
        ratio = ratio + zero.astype(ratio.dtype)
    can_overflow = dtypes.of_numpy(target).bits == 8 and dtypes.of_numpy(target).is_float
    return ratio.astype(target) if can_overflow and not clamp else casts.saturate(np.asarray(ratio), target)


@op("DequantizeLinear")
def dequantize_linear(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Array:
    """(x - zero point) * scale."""
    what = "DequantizeLinear"
    y = x.astype(np.float64 if x.dtype == np.int32 else np.float32)
    if x_zero_point is not None:
        fits = x_zero_point.shape == x_scale.shape or x_zero_point.size == x_scale.size == 1
        require(fits, f"{what}: scale and zero point differ in shape", expected=x_scale.shape, got=x_zero_point.shape)
        y -= _broadcastable(what, x_zero_point, x, axis, block_size).astype(y.dtype)
    y *= _broadcastable(what, x_scale, x, axis, block_size).astype(y.dtype)
    return narrow(y, dtypes.of_onnx(output_dtype).numpy if output_dtype else x_scale.dtype)


@op("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Array) -> tuple[Array, Array, Array]:
    """uint8 values, with the scale and zero point that map the data's range, extended to 0, to 0 to 255."""
    low, high = integer_range(np.dtype(np.uint8))
    least = np.minimum(x.min(initial=0), np.float32(0))
    most = np.maximum(x.max(initial=0), np.float32(0))
    scale = np.float32(most - least) / np.float32(high - low) if most != least else np.float32(1)
    zero = np.asarray(np.rint(np.clip(low - least / scale, low, high))).astype(np.uint8)
    y = np.clip(np.rint(x / scale) + np.float32(zero), low, high).astype(np.uint8)
    return y, np.asarray(scale, np.float32), zero
