"""Scales and zero points, and numbers rounded to them: real = (integer - zero point) * scale.

All functions take arrays of ranges, so that the channels of a weight are computed at once. Ranges are held in the type
of the tensor; scales are computed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.quantization.kinds import QuantType
from sardonyx.quantization.misuse import Misuse

Array = np.ndarray[Any, Any]

_SLAB = 1 << 20
"""Elements that are rounded at once, so that intermediate arrays stay in the cache."""

_LIMITS = {
    QuantType.QInt8: (-128, 127),
    QuantType.QUInt8: (0, 255),
    QuantType.QInt16: (-32768, 32767),
    QuantType.QUInt16: (0, 65535),
    QuantType.QInt4: (-8, 7),
    QuantType.QUInt4: (0, 15),
}
_SYMMETRIC = {QuantType.QInt8: (-127, 127), QuantType.QInt16: (-32767, 32767)}
_REDUCED = {
    QuantType.QInt8: (-64, 64),
    QuantType.QUInt8: (0, 127),
    QuantType.QInt16: (-16384, 16384),
    QuantType.QUInt16: (0, 32767),
    QuantType.QInt4: (-4, 3),
    QuantType.QUInt4: (0, 7),
}
FLOAT8_MAX = 448.0
"""The largest number of float8e4m3fn."""


@dataclass(eq=False)
class Parameters:
    """How a tensor is quantized: per tensor (scalars), per channel of ``axis``, or in blocks along it."""

    type: QuantType
    scale: Array
    zero_point: Array
    axis: int | None = None
    block_size: int = 0

    @property
    def is_per_channel(self) -> bool:
        return self.axis is not None and not self.block_size


def limits(kind: QuantType, *, symmetric: bool = False, reduce_range: bool = False) -> tuple[int, int]:
    """The smallest and the largest integer to use. A reduced range has one bit less."""
    if kind.is_float8:
        raise Misuse("float8 has no range of integers")
    if reduce_range:
        return _REDUCED[kind]
    return _SYMMETRIC.get(kind, _LIMITS[kind]) if symmetric else _LIMITS[kind]


def scale_and_zero_point(
    low: Array,
    high: Array,
    kind: QuantType,
    *,
    symmetric: bool = False,
    reduce_range: bool = False,
    minimum_range: float | None = None,
) -> tuple[Array, Array]:
    """Scale and zero point that cover the ranges from ``low`` to ``high``, widened to contain 0.

    A range too small for a normal number has scale 1 and zero point 0: all its values are 0.
    """
    smallest, largest = limits(kind, symmetric=symmetric, reduce_range=reduce_range)
    low, high = np.minimum(low, low.dtype.type(0)), np.maximum(high, high.dtype.type(0))
    if minimum_range is not None:
        high = np.maximum(high, low + low.dtype.type(minimum_range))
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    exact = (high.astype(np.float64) - low.astype(np.float64)) / (float(largest) - smallest)
    is_empty = exact < np.finfo(high.dtype).tiny
    exact = np.where(is_empty, 1.0, exact)
    if symmetric:
        zero = np.full(exact.shape, np.round((smallest + largest) / 2))
    else:
        zero = np.round(smallest - low.astype(np.float64) / exact)
    zero = np.where(is_empty, 0.0, zero)
    return exact.astype(high.dtype), zero.astype(kind.dtype.numpy)


def restricted_scale_and_zero_point(
    low: float, high: float, *, minimum_range: float | None = None, ends: tuple[int, int] = (0, 255)
) -> tuple[Array, Array]:
    """For unsigned integers between the ends: the zero point is the first if no value is negative, else their middle,
    with a scale that clips nothing.
    """
    first, last = ends
    low, high = min(low, 0.0), max(high, 0.0)
    floor = max(minimum_range or 0.0, 0.0)
    high = max(high, low + floor)
    if high <= low:
        return np.array(1 / (last - first), np.float32), np.array(first, np.uint8)
    zero = (first + last + 1) // 2 if low < 0 else first
    scale = max(-low / (zero - first), high / (last - zero)) if low < 0 else high / (last - first)
    return np.array(max(scale, floor / (last - first)), np.float32), np.array(zero, np.uint8)


def float8_scale_and_zero_point(deviation: Array) -> tuple[Array, Array]:
    """The scale that gives values of this standard deviation the deviation of float8e4m3fn's own numbers."""
    own = np.std(float8_numbers())
    zero = np.zeros(np.shape(deviation), QuantType.QFLOAT8E4M3FN.dtype.numpy)
    return np.array(deviation / own, deviation.dtype), zero


def float8_numbers() -> Array:
    """All finite numbers of float8e4m3fn."""
    numbers = np.arange(256, dtype=np.uint8).view(QuantType.QFLOAT8E4M3FN.dtype.numpy).astype(np.float32)
    return numbers[np.isfinite(numbers)]


def parameters_of_data(
    data: Array,
    kind: QuantType,
    *,
    axis: int | None = None,
    symmetric: bool,
    reduce_range: bool = False,
    minimum_range: float | None = None,
    low: Any = None,
    high: Any = None,
) -> Parameters:
    """Parameters for a constant, per tensor or per channel of ``axis``; ``low`` and ``high`` replace its range."""
    if kind.is_float8:
        if reduce_range:
            raise Misuse("float8 has no reduced range", hint="leave reduce_range out")
        others = None if axis is None else tuple(i for i in range(data.ndim) if i != axis)
        scale, zero = float8_scale_and_zero_point(np.asarray(np.std(data, axis=others)))
        reach = np.asarray(np.max(np.abs(data), axis=others, initial=0)) / data.dtype.type(FLOAT8_MAX)
        scale = np.where(scale == 0, np.where(reach == 0, 1, reach), scale).astype(data.dtype)
        return Parameters(kind, scale, zero, axis)
    lowest, highest = extremes(data, axis)
    if low is not None:
        lowest = np.broadcast_to(np.asarray(low, data.dtype), lowest.shape)
    if high is not None:
        highest = np.broadcast_to(np.asarray(high, data.dtype), highest.shape)
    if not data.size:
        return Parameters(kind, np.ones_like(lowest), np.zeros(lowest.shape, kind.dtype.numpy), axis)
    scale, zero = scale_and_zero_point(
        lowest, highest, kind, symmetric=symmetric, reduce_range=reduce_range, minimum_range=minimum_range
    )
    return Parameters(kind, scale, zero, axis)


def extremes(data: Array, axis: int | None = None) -> tuple[Array, Array]:
    """The smallest and the largest number, of each channel of ``axis`` if it is given; 0 where there is none."""
    shape = () if axis is None else (data.shape[axis],)
    if not data.size:
        return np.zeros(shape, data.dtype), np.zeros(shape, data.dtype)
    others = None if axis is None else tuple(i for i in range(data.ndim) if i != axis)
    return np.asarray(data.min(axis=others)), np.asarray(data.max(axis=others))


def block_parameters(data: Array, kind: QuantType, axis: int, block_size: int, *, symmetric: bool) -> Parameters:
    """Parameters for blocks of ``block_size`` elements along ``axis``; the last block may be shorter."""
    smallest, largest = limits(kind, symmetric=symmetric)
    starts = np.arange(0, data.shape[axis], block_size)
    low = np.minimum(np.minimum.reduceat(data, starts, axis), data.dtype.type(0))
    high = np.maximum(np.maximum.reduceat(data, starts, axis), data.dtype.type(0))
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    exact = (high - low).astype(np.float64) / (float(largest) - smallest)
    scale = exact.astype(data.dtype)
    is_empty = scale < np.finfo(data.dtype).tiny
    scale = np.where(is_empty, data.dtype.type(1), scale)
    if symmetric:
        zero = np.full(scale.shape, np.round((smallest + largest) / 2))
    else:
        zero = np.clip(np.round(smallest - low.astype(np.float64) / scale.astype(np.float64)), smallest, largest)
        zero = np.where(is_empty, 0.0, zero)
    return Parameters(kind, scale, zero.astype(kind.dtype.numpy), axis, block_size)


def quantize_array(data: Array, parameters: Parameters) -> Array:
    """The numbers as integers (or as float8), rounded half to even and saturated."""
    kind = parameters.type
    made = np.empty(data.shape, kind.dtype.numpy)
    smallest, largest = (-FLOAT8_MAX, FLOAT8_MAX) if kind.is_float8 else limits(kind)
    zeros = np.asarray(parameters.zero_point.astype(np.float32))
    for part, scale, zero in _slabs(data, parameters, zeros):
        rounded = np.asarray(np.divide(data[part], scale, dtype=np.float32))
        if not kind.is_float8:
            np.rint(rounded, out=rounded)
            rounded += zero
        made[part] = np.clip(rounded, smallest, largest, out=rounded).astype(made.dtype)
    return made


def _spread(values: Array, data: Array, parameters: Parameters) -> Array:
    """Scales or zero points in a shape that broadcasts against the data."""
    axis = parameters.axis
    if axis is None:
        return np.asarray(values).reshape(())
    if parameters.block_size:
        return np.repeat(values, parameters.block_size, axis)[
            tuple(slice(n) if i == axis else slice(None) for i, n in enumerate(data.shape))
        ]
    return np.asarray(values).reshape([-1 if i == axis else 1 for i in range(data.ndim)])


def _slabs(data: Array, parameters: Parameters, zeros: Array) -> Iterator[tuple[Any, Array, Array]]:
    """Parts of the data along its first axis, with their scales and zero points."""
    scale, zero = _spread(parameters.scale, data, parameters), _spread(zeros, data, parameters)
    if data.size <= _SLAB or data.ndim == 0:
        yield ..., scale, zero
        return
    rows = max(1, _SLAB * len(data) // data.size)
    varies = scale.ndim > 0 and len(scale) > 1
    for start in range(0, len(data), rows):
        part = slice(start, start + rows)
        yield part, scale[part] if varies else scale, zero[part] if varies else zero


def bias_scale(input_scale: Array, weight_scale: Array, beta: float = 1.0, *, groups: int = 1) -> Array:
    """A bias is added to sums of products: its scale is the product of their scales, its zero point 0. All groups of a
    transposed convolution share the scales of its weight.
    """
    scale = np.asarray(input_scale * weight_scale * beta, weight_scale.dtype).reshape(-1)
    return np.tile(scale, groups) if scale.size > 1 else scale


def quantize_bias(bias: Array, scale: Array) -> tuple[Array, int]:
    """The bias as int32, with a number for each scale along its last axis, and how many of its numbers had to be
    clipped.
    """
    wide = bias if scale.size == 1 else np.broadcast_to(bias, np.broadcast_shapes(bias.shape, scale.shape))
    exact = np.round(wide.astype(np.float64) / scale.astype(np.float64))
    bounds = np.iinfo(np.int32)
    clipped = int(np.count_nonzero((exact < bounds.min) | (exact > bounds.max)))
    shape = scale.shape if 1 < scale.size == wide.size else wide.shape
    return np.clip(exact, bounds.min, bounds.max).astype(np.int32).reshape(shape), clipped


def scale_for_bias(input_scale: Array, weight_scale: Array, bias: Array) -> Array:
    """The weight's scale, enlarged where the bias, in any group, would not fit int32 at the product of the scales."""
    magnitude, channels = np.abs(bias.astype(np.float64)), weight_scale.size
    is_per_channel = bias.ndim > 0 and bias.shape[-1] % channels == 0
    largest = magnitude.reshape(-1, channels).max(axis=0, initial=0.0) if is_per_channel else magnitude.max(initial=0.0)
    smallest_scale = 1.0001 * 2.0 * np.broadcast_to(largest, channels).reshape(weight_scale.shape) / (2.0**32 - 2)
    candidate = np.float64(input_scale.reshape(-1)[0]) * weight_scale.astype(np.float64)
    is_too_small = (candidate < smallest_scale) & (candidate > 0)
    ratio = np.where(is_too_small, smallest_scale / np.where(candidate > 0, candidate, 1.0), 1.0)
    enlarged = (weight_scale.astype(np.float64) * ratio).astype(weight_scale.dtype)
    return np.where(is_too_small, enlarged, weight_scale)
