"""Pooling over sliding windows, axis by axis if the reduction allows it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx.ops.limits import check_elements
from sardonyx.ops.precision import Array, integer_range, narrow, require, require_below, widen
from sardonyx.ops.registry import op
from sardonyx.ops.window import Ints, Window, along, make_window, per_axis, split_pads


def _window(
    what: str,
    x: Array,
    kernel_shape: Ints,
    strides: Ints | None,
    dilations: Ints | None,
    pads: Ints | None,
    auto_pad: str,
    ceil_mode: int,
) -> Window:
    require(x.ndim >= 3, f"{what}: the input needs a batch, a channel and spatial axes", got=x.shape)
    window = make_window(what, x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, bool(ceil_mode))
    check_elements(x.shape[0] * x.shape[1] * window.positions, x.dtype, f"output of {what}")
    return window


def _fold(x: Array, window: Window, combine: Callable[..., Array], neutral: Any = 0) -> Array:
    """Reduce every window with an associative function, one spatial axis after the other."""
    window = window.clipped()
    padded = window.pad(x, neutral)
    for axis in range(window.rank):
        y = padded[along(2 + axis, window.tap_slice(axis, 0))]
        if window.kernel[axis] > 1 and y.size:
            y = y.copy()
            for tap in range(1, window.kernel[axis]):
                combine(y, padded[along(2 + axis, window.tap_slice(axis, tap))], out=y)
        padded = y
    return padded


def _spatial(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@op("AveragePool")
def average_pool(
    x: Array,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Means. Padding counts if ``count_include_pad`` is set; what ceil_mode adds beyond the padding never does."""
    window = _window("AveragePool", x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    total = _fold(widen(x), window, np.add)
    count = averaged_taps(window, count_include_pad=bool(count_include_pad))
    return narrow(total / count.astype(total.dtype), x.dtype)


def averaged_taps(window: Window, *, count_include_pad: bool) -> Array:
    """How many elements the mean of each output counts."""
    if not count_include_pad:
        return window.taps_in((0,) * window.rank, window.size)
    ends = [n + e for n, e in zip(window.size, window.end, strict=True)]
    return window.taps_in([-b for b in window.begin], ends)


@op("LpPool")
def lp_pool(
    x: Array,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    p: int = 2,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    require(p >= 1, "LpPool: p must be at least 1", got=p)
    window = _window("LpPool", x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    powers = np.abs(widen(x)) ** p
    return narrow(_fold(powers, window, np.add) ** (1 / p), x.dtype)


@op("MaxPool")
def max_pool(
    x: Array,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    storage_order: int = 0,
    strides: Ints | None = None,
    outputs: int = 1,
) -> Array | tuple[Array, Array]:
    window = _window("MaxPool", x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    wide = x if x.dtype.kind in "iu" else widen(x)
    lowest = integer_range(x.dtype)[0] if x.dtype.kind in "iu" else -np.inf
    if outputs < 2:
        return narrow(_fold(wide, window, np.maximum, lowest), x.dtype)
    y, where = _maximum_and_place(wide, window.clipped(), lowest, storage_order)
    planes = np.arange(x.shape[0] * x.shape[1], dtype=np.int64) * math.prod(window.size)
    return narrow(y, x.dtype), where + planes.reshape(x.shape[:2] + (1,) * window.rank)


def _maximum_and_place(x: Array, window: Window, lowest: Any, storage_order: int) -> tuple[Array, Array]:
    """Maxima, and the index of each first maximum in its channel: row-major, or column-major for storage order 1."""
    order = "F" if storage_order else "C"
    plane = np.arange(math.prod(window.size), dtype=np.int64).reshape((1, 1, *window.size), order=order)  # type: ignore[call-overload]
    padded, places = window.pad(x, lowest), window.pad(plane, -1)
    y = where = None
    for position in np.ndindex(window.kernel):
        value, place = window.tap(padded, position), window.tap(places, position)
        if y is None or where is None:
            y, where = value.copy(), np.broadcast_to(place, value.shape).copy()
            continue
        better = ((value > y) | (where < 0) | ((value != value) & (y == y))) & (place >= 0)
        np.copyto(y, value, where=better)
        np.copyto(where, place, where=better)
    assert y is not None and where is not None
    return y, where


@op("GlobalAveragePool")
def global_average_pool(x: Array) -> Array:
    return narrow(widen(x).mean(axis=_spatial(x), keepdims=True), x.dtype)


@op("GlobalMaxPool")
def global_max_pool(x: Array) -> Array:
    return narrow(widen(x).max(axis=_spatial(x), keepdims=True), x.dtype)


@op("GlobalLpPool")
def global_lp_pool(x: Array, *, p: int = 2) -> Array:
    require(p >= 1, "GlobalLpPool: p must be at least 1", got=p)
    return narrow((np.abs(widen(x)) ** p).sum(axis=_spatial(x), keepdims=True) ** (1 / p), x.dtype)


@op("MaxUnpool")
def max_unpool(
    x: Array,
    indices: Array,
    output_shape: Array | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Values at the indices from MaxPool, zeros elsewhere."""
    what, fits = "MaxUnpool", indices.shape == x.shape
    require(fits, f"{what}: indices and values differ in shape", expected=x.shape, got=indices.shape)
    shape = _unpooled_shape(what, x, kernel_shape, strides, pads)
    final = shape if output_shape is None else tuple(int(v) for v in output_shape)
    require(
        len(final) == len(shape) and all(f >= n for f, n in zip(final, shape, strict=True)),
        f"{what}: output_shape is smaller than what the pooling covers",
        expected=shape,
        got=final,
    )
    check_elements(max(math.prod(shape), math.prod(final)), x.dtype, f"output of {what}")
    require_below(math.prod(shape), indices, f"{what}: an index lies outside the output")
    flat = np.zeros(math.prod(shape), x.dtype)
    flat[indices.reshape(-1)] = x.reshape(-1)
    if final == shape:
        return flat.reshape(shape)
    y = np.zeros(final, x.dtype)
    y[tuple(slice(0, n) for n in shape)] = flat.reshape(shape)
    return y


def _unpooled_shape(
    what: str, x: Array, kernel_shape: Ints, strides: Ints | None, pads: Ints | None
) -> tuple[int, ...]:
    """The shape of the tensor that the windows of a MaxPool covered."""
    rank = x.ndim - 2
    require(rank >= 1, f"{what}: the input needs a batch, a channel and spatial axes", got=x.shape)
    kernel = per_axis(what, "kernel_shape", kernel_shape, rank, 1, 1)
    step = per_axis(what, "strides", strides, rank, 1, 1)
    begin, end = split_pads(what, pads, rank)
    spatial = ((n - 1) * s - b - e + k for n, s, b, e, k in zip(x.shape[2:], step, begin, end, kernel, strict=True))
    shape = x.shape[:2] + tuple(spatial)
    require(all(n >= 0 for n in shape), f"{what}: the padding leaves no output", got=shape)
    return shape


@op("MaxRoiPool")
def max_roi_pool(x: Array, rois: Array, *, pooled_shape: Ints, spatial_scale: float = 1.0) -> Array:
    """The maximum of each cell of a grid over each region of interest; empty cells are 0."""
    what = "MaxRoiPool"
    require(x.ndim == 4, f"{what}: the input must be (batch, channels, height, width)", got=x.shape)
    require(rois.ndim == 2 and rois.shape[1] == 5, f"{what}: rois must have five columns", got=rois.shape)
    require(bool(np.isfinite(widen(rois)).all()), f"{what}: rois must be finite")
    grid = per_axis(what, "pooled_shape", pooled_shape, 2, 1, 1)
    batches = widen(rois)[:, 0].astype(np.int64)
    require_below(x.shape[0], batches, f"{what}: a batch index is out of range")
    check_elements(len(rois) * x.shape[1] * math.prod(grid), x.dtype, f"output of {what}")
    scaled = widen(rois)[:, 1:].astype(np.float64) * spatial_scale
    corners = np.where(scaled < 0, np.ceil(scaled - 0.5), np.floor(scaled + 0.5)).astype(np.int64)
    wide = widen(x)
    y = np.zeros((len(rois), x.shape[1], *grid), wide.dtype)
    for i, (x1, y1, x2, y2) in enumerate(corners.tolist()):
        rows = _roi_cells(y1, y2, grid[0], x.shape[2])
        columns = _roi_cells(x1, x2, grid[1], x.shape[3])
        for r, (top, bottom) in enumerate(rows):
            if bottom <= top:
                continue
            strip = wide[batches[i], :, top:bottom].max(axis=1)
            for c, (left, right) in enumerate(columns):
                if right > left:
                    y[i, :, r, c] = strip[:, left:right].max(axis=1)
    return narrow(y, x.dtype)


def _roi_cells(start: int, stop: int, cells: int, size: int) -> list[tuple[int, int]]:
    """The ranges of pixels, clipped to the image, of the cells along one side of a region."""
    extent = np.float32(max(stop - start + 1, 1)) / np.float32(cells)
    low = np.floor(np.arange(cells, dtype=np.float32) * extent).astype(np.int64) + start
    high = np.ceil(np.arange(1, cells + 1, dtype=np.float32) * extent).astype(np.int64) + start
    return list(zip(np.clip(low, 0, size).tolist(), np.clip(high, 0, size).tolist(), strict=True))
