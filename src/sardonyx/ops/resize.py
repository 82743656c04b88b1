"""Resize: in every mode a short weighted sum along each axis in turn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.ops.limits import check_elements
from sardonyx.ops.precision import Array, narrow, require, saturate
from sardonyx.ops.registry import op
from sardonyx.ops.window import Ints, along
from sardonyx.records import Record

_F32 = np.float32


class _Axis(Record):
    """One resized axis."""

    index: int
    size: int
    output: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)

    @property
    def is_unchanged(self) -> bool:
        return self.output == self.size and abs(self.scale - 1) < 1e-6 and self.roi == (0.0, 1.0)

    def coordinates(self, mode: str, dtype: type[np.floating[Any]]) -> Array:
        """The input coordinate of each output position."""
        x, size, scale, half = np.arange(self.output, dtype=dtype), dtype(self.size), dtype(self.scale), dtype(0.5)
        width = scale * size
        if mode == "half_pixel" or (mode == "pytorch_half_pixel" and width != 1):
            return np.asarray((x + half) / scale - half)
        if mode == "pytorch_half_pixel":
            return np.full_like(x, -0.5)
        if mode == "asymmetric":
            return np.asarray(x / scale)
        if mode == "tf_half_pixel_for_nn":
            return np.asarray((x + half) / scale)
        if mode == "half_pixel_symmetric":
            return np.asarray(size / 2 * (1 - dtype(self.output) / width) + (x + half) / scale - half)
        if mode == "align_corners":
            return x * (size - 1) / (width - 1) if width != 1 else np.zeros_like(x)
        if mode == "tf_crop_and_resize":
            start, stop = dtype(self.roi[0]), dtype(self.roi[1])
            span = (stop - start) * (size - 1)
            steps = x * span / (width - 1) if width != 1 else np.full_like(x, span / 2)
            return np.asarray(start * (size - 1) + steps)
        raise errors.InvalidArgument("Resize: unknown coordinate_transformation_mode", got=mode)


def _nearest(x: Array, rule: str) -> Array:
    """Coordinates rounded by a rule; within 1e-6 of a half they count as a half, because of float32 division."""
    if rule in ("floor", "ceil"):
        return np.floor(x) if rule == "floor" else np.ceil(x)
    if rule not in ("round_prefer_floor", "round_prefer_ceil"):
        raise errors.InvalidArgument("Resize: unknown nearest_mode", got=rule)
    floor = np.floor(x)
    above = (x - floor) - 0.5
    return floor + (above > 1e-6 if rule == "round_prefer_floor" else above >= -1e-6)


def _linear_kernel(x: Array, _: float) -> Array:
    return np.asarray(np.clip(1 - np.abs(x), 0, 1))


def cubic_kernel(x: Array, a: float) -> Array:
    """Keys' cubic convolution kernel."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


class _Interpolation(Record):
    """How values between input positions are interpolated."""

    mode: str
    nearest_mode: str
    antialias: bool
    cubic_coeff_a: float
    exclude_outside: bool

    def along(self, y: Array, axis: _Axis, at: Array) -> Array:
        """``y`` read at these coordinates of an axis."""
        if self.mode == "nearest":
            indices = np.clip(_nearest(at, self.nearest_mode), 0, axis.size - 1).astype(np.int64)
            return np.take(y, indices, axis=axis.index)
        return _weighted(y, axis.index, *_taps(axis, np.clip(at, -4 * axis.size - 4, 4 * axis.size + 4), self))


def _taps(axis: _Axis, x: Array, how: _Interpolation) -> tuple[Array, Array]:
    """Input indices and weights, each (taps, output), of the sums along an axis."""
    shrink = min(axis.scale, 1.0) if how.antialias else 1.0
    kernel, radius = (_linear_kernel, 1) if how.mode == "linear" else (cubic_kernel, 2)
    start = math.floor(-radius / shrink) + 1
    taps = 2 - 2 * start
    check_elements(taps * axis.output, np.dtype(np.float64), "weights of a Resize")
    floor = np.floor(x)
    offsets = np.arange(start, start + taps, dtype=np.float64)[:, None]
    weights = kernel((offsets - (x - floor)) * shrink, how.cubic_coeff_a)
    if how.antialias:
        weights = weights / weights.sum(axis=0)
    indices = floor.astype(np.int64) + offsets.astype(np.int64)
    if how.exclude_outside:
        weights = np.where((indices >= 0) & (indices < axis.size), weights, 0.0)
        total = weights.sum(axis=0)
        weights = weights / np.where(total == 0, 1.0, total)
    return np.clip(indices, 0, axis.size - 1), weights


def _axes(
    x: Array, scales: Array | None, sizes: Array | None, axes: Ints | None, roi: Array | None, policy: str
) -> list[_Axis]:
    """The axes that change, with their output sizes and scales."""
    require(axes is None or all(-x.ndim <= a < x.ndim for a in axes), "Resize: axes are out of range", got=axes)
    chosen = list(range(x.ndim)) if axes is None else [a % x.ndim for a in axes]
    by_size = sizes is not None and sizes.size > 0
    given = sizes if by_size else scales
    if given is None or given.size == 0:
        raise errors.InvalidArgument("Resize: either scales or sizes must be given")
    require(given.shape == (len(chosen),), "Resize: one scale or size per axis", expected=len(chosen), got=given.shape)
    low = 0 if by_size else np.finfo(_F32).tiny
    fits = bool((given >= low).all() and np.isfinite(given).all())
    require(fits, "Resize: scales and sizes must be positive", got=given)
    lengths = [x.shape[a] for a in chosen]
    if by_size:
        outputs, ratios = _from_sizes([int(s) for s in given], lengths, policy)
    else:
        ratios = [float(s) for s in given]
        outputs = [int(np.floor(_F32(n) * _F32(s))) for n, s in zip(lengths, ratios, strict=True)]
    return [_Axis(*v) for v in zip(chosen, lengths, outputs, ratios, _regions(roi, len(chosen)), strict=True)]


def _regions(roi: Array | None, count: int) -> list[tuple[float, float]]:
    """Start and end of the region of interest along each axis."""
    if roi is None or not roi.size:
        return [(0.0, 1.0)] * count
    require(roi.size == 2 * count, "Resize: roi needs two values per axis", expected=2 * count, got=roi.size)
    return [(float(roi[i]), float(roi[i + count])) for i in range(count)]


def _from_sizes(sizes: list[int], lengths: list[int], policy: str) -> tuple[list[int], list[float]]:
    """Output sizes and scales; a policy that keeps the aspect ratio scales all axes alike."""
    if policy == "stretch":
        return sizes, [s / n if n else 1.0 for s, n in zip(sizes, lengths, strict=True)]
    require(policy in ("not_larger", "not_smaller"), "Resize: unknown keep_aspect_ratio_policy", got=policy)
    exact = [s / n for s, n in zip(sizes, lengths, strict=True) if n]
    require(bool(exact), "Resize: an empty input has no aspect ratio to keep", got=lengths)
    ratio = min(exact) if policy == "not_larger" else max(exact)
    return [int(ratio * n + 0.5) for n in lengths], [ratio] * len(lengths)


@op("Resize")
def resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    antialias: int = 0,
    axes: Ints | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Array:
    require(mode in ("nearest", "linear", "cubic"), "Resize: unknown mode", got=mode)
    require(not (antialias and mode == "nearest"), "Resize: antialias needs mode linear or cubic")
    cropping = coordinate_transformation_mode == "tf_crop_and_resize"
    plan = _axes(x, scales, sizes, axes, roi if cropping else None, keep_aspect_ratio_policy)
    shape = _output_shape(x, plan)
    if x.size == 0 or 0 in shape:
        require(0 in shape, "Resize: an empty input cannot grow", expected=x.shape, got=shape)
        return np.zeros(shape, x.dtype)
    how = _Interpolation(mode, nearest_mode, bool(antialias), cubic_coeff_a, bool(exclude_outside))
    # In nearest mode float32 rounds ties as other engines do.
    precision = _F32 if cropping or mode == "nearest" else np.float64
    y = x if mode == "nearest" else x.astype(np.float64 if x.dtype.itemsize > 4 or x.dtype.kind in "iu" else _F32)
    outside: list[tuple[int, Array]] = []
    for axis in sorted(plan, key=lambda a: a.output / a.size):
        if axis.is_unchanged:
            continue
        at = axis.coordinates(coordinate_transformation_mode, precision)
        y = how.along(y, axis, at)
        if cropping:
            outside.append((axis.index, (at < 0) | (at > axis.size - 1)))
    for index, mask in outside:
        if mask.any():
            y[along(index, mask)] = extrapolation_value
    if y.dtype == x.dtype:
        return y
    return saturate(y, x.dtype) if x.dtype.kind in "iu" else narrow(y, x.dtype)


def _output_shape(x: Array, plan: list[_Axis]) -> list[int]:
    shape = list(x.shape)
    for axis in plan:
        shape[axis.index] = axis.output
    check_elements(math.prod(shape), x.dtype, "output of a Resize")
    return shape


def _weighted(x: Array, axis: int, indices: Array, weights: Array) -> Array:
    """The sum over taps of weight times gathered slice."""
    across = (-1,) + (1,) * (x.ndim - axis - 1)
    total = None
    for index, weight in zip(indices, weights, strict=True):
        part = np.take(x, index, axis=axis)
        part *= weight.reshape(across).astype(x.dtype)
        total = part if total is None else np.add(total, part, out=total)
    assert total is not None
    return np.asarray(total)
