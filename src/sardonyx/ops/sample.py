"""Sampling images at arbitrary positions: GridSample, AffineGrid, RoiAlign, DeformConv."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

from sardonyx import errors
from sardonyx.ops.conv import add_bias, check_conv
from sardonyx.ops.limits import check_elements
from sardonyx.ops.precision import Array, narrow, require, require_below, widen
from sardonyx.ops.registry import op
from sardonyx.ops.resize import cubic_kernel
from sardonyx.ops.window import Ints, Window, make_window

_COLUMNS_NBYTES = 16 << 20


def _gather(x: Array, indices: Sequence[Array], zeros_outside: bool) -> Array:
    """Pixels of ``x`` (C, *spatial) at integer positions; positions outside give the border or, with ``zeros_outside``,
    zero.
    """
    flat = np.zeros(indices[0].shape, np.int64)
    inside = np.ones(indices[0].shape, bool)
    for index, size in zip(indices, x.shape[1:], strict=True):
        inside &= (index >= 0) & (index < size)
        flat = flat * size + np.clip(index, 0, size - 1)
    values = x.reshape(x.shape[0], math.prod(x.shape[1:]))[:, flat]
    if zeros_outside and not inside.all():
        values[:, ~inside] = 0
    return values


def _reflect(x: Array, low: float, high: float) -> Array:
    """Coordinates reflected at both borders until they lie between them."""
    span = high - low
    if span <= 0:
        return np.full_like(x, low)
    far = np.abs(x - low)
    turns = np.floor(far / span)
    rest = far - turns * span
    return np.where(turns % 2 == 0, low + rest, high - rest)


def _grid_mode(mode: str) -> tuple[Array, str]:
    """The taps of a mode relative to the floor of a coordinate, and its name."""
    name = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    spread = {"nearest": [0], "linear": [0, 1], "cubic": [-1, 0, 1, 2]}.get(name)
    if spread is None:
        raise errors.InvalidArgument("GridSample: unknown mode", got=mode)
    return np.array(spread), name


@op("GridSample")
def grid_sample(
    x: Array, grid: Array, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Array:
    """Pixels of ``x`` interpolated at the coordinates in ``grid``, in [-1, 1], last axis first."""
    what, rank = "GridSample", x.ndim - 2
    require(
        rank >= 1 and grid.ndim == x.ndim, f"{what}: input and grid differ in rank", expected=x.shape, got=grid.shape
    )
    fits = grid.shape[0] == x.shape[0] and grid.shape[-1] == rank
    require(fits, f"{what}: the grid does not fit the input", expected=(x.shape[0], "...", rank), got=grid.shape)
    require(padding_mode in ("zeros", "border", "reflection"), f"{what}: unknown padding_mode", got=padding_mode)
    offsets, name = _grid_mode(mode)
    shape = x.shape[:2] + grid.shape[1:-1]
    check_elements(math.prod(shape), x.dtype, f"output of {what}")
    if math.prod(shape) == 0:
        return np.zeros(shape, x.dtype)
    require(x.size > 0, f"{what}: an empty image cannot be sampled", got=x.shape)
    exact = name == "nearest"
    wide = x if exact else x.astype(np.float64 if x.dtype.itemsize > 4 or x.dtype.kind in "iu" else np.float32)
    y = np.empty((*shape[:2], math.prod(shape[2:])), wide.dtype)
    for i in range(x.shape[0]):
        places = widen(grid[i].reshape(-1, rank)).T[::-1]
        taps = [
            _grid_taps(place, size, bool(align_corners), name, offsets, padding_mode)
            for place, size in zip(places, x.shape[2:], strict=True)
        ]
        y[i] = _interpolate(wide[i], taps, exact, padding_mode == "zeros")
    return narrow(y.reshape(shape), x.dtype)


def _grid_taps(
    place: Array, size: int, align_corners: bool, name: str, offsets: Array, padding: str
) -> tuple[Array, Array]:
    """Indices and weights, each (taps, points), along an axis at places between -1 and 1."""
    low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
    at = (place + 1) / 2 * (size - 1) if align_corners else ((place + 1) * size - 1) / 2
    at = np.nan_to_num(np.rint(at) if name == "nearest" else at, nan=-1.0)
    if padding == "border" and name != "cubic":
        at = np.where((at < low) | (at > high), np.clip(at, 0, size - 1), at)
    elif padding == "reflection":
        at = np.where((at < low) | (at > high), _reflect(at, low, high), at)
    at = np.clip(at, -4.0, size + 4.0)
    floor = at if name == "nearest" else np.floor(at)
    indices = floor.astype(np.int64) + offsets[:, None]
    if padding == "reflection":
        indices = _reflect(indices.astype(np.float64), low, high).astype(np.int64)
    return indices, _grid_weights(name, at - floor, offsets)


def _grid_weights(name: str, fraction: Array, offsets: Array) -> Array:
    if name == "cubic":
        return cubic_kernel(fraction - offsets[:, None], -0.75)
    return np.asarray(1 - np.abs(fraction - offsets[:, None]))


def _interpolate(x: Array, taps: Sequence[tuple[Array, Array]], exact: bool, zeros_outside: bool) -> Array:
    """The sum over all combinations of one tap per axis."""
    total: Array | None = None
    for choice in itertools.product(*(range(len(t[0])) for t in taps)):
        values = _gather(x, [t[0][c] for t, c in zip(taps, choice, strict=True)], zeros_outside)
        if exact:
            return values
        weight = math.prod((t[1][c] for t, c in zip(taps, choice, strict=True)), start=np.float64(1))
        values *= np.asarray(weight).astype(x.dtype)
        total = values if total is None else np.add(total, values, out=total)
    assert total is not None
    return total


@op("AffineGrid")
def affine_grid(theta: Array, size: Array, *, align_corners: int = 0) -> Array:
    """The GridSample grid of an affine map of the output's pixel centres."""
    what, dims = "AffineGrid", [int(v) for v in size]
    rank = len(dims) - 2
    require(rank in (2, 3), f"{what}: size must have four or five entries", got=dims)
    require(all(v >= 0 for v in dims), f"{what}: sizes must not be negative", got=dims)
    expected = (dims[0], rank, rank + 1)
    require(theta.shape == expected, f"{what}: theta has the wrong shape", expected=expected, got=theta.shape)
    check_elements(dims[0] * math.prod(dims[2:]) * rank, theta.dtype, f"output of {what}")
    wide = widen(theta)
    y = np.empty((dims[0], *dims[2:], rank), wide.dtype)
    y[...] = wide[:, :, -1].reshape((dims[0],) + (1,) * rank + (rank,))
    for axis, n in enumerate(dims[2:]):
        if align_corners:
            centres = np.linspace(-1, 1, n) if n > 1 else np.zeros(n)
        else:
            centres = (2 * np.arange(n) + 1) / max(n, 1) - 1
        along = centres.astype(wide.dtype).reshape((n,) + (1,) * (rank - axis))
        y += along * wide[:, :, rank - 1 - axis].reshape((dims[0],) + (1,) * rank + (rank,))
    return narrow(y, theta.dtype)


@op("RoiAlign")
def roi_align(
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    _check_roi_align(x, rois, batch_indices, mode, output_height, output_width, coordinate_transformation_mode)
    wide = widen(x)
    legacy = coordinate_transformation_mode == "output_half_pixel"
    regions = widen(rois) * wide.dtype.type(spatial_scale) - wide.dtype.type(0.0 if legacy else 0.5)
    y = np.empty((len(rois), x.shape[1], output_height, output_width), wide.dtype)
    for i, (x1, y1, x2, y2) in enumerate(regions):
        rows = _roi_taps(y1, y2, output_height, sampling_ratio, x.shape[2], legacy)
        columns = _roi_taps(x1, x2, output_width, sampling_ratio, x.shape[3], legacy)
        y[i] = _pooled_region(wide[batch_indices[i]], rows, columns, y.shape[2:], mode)
    return narrow(y, x.dtype)


def _check_roi_align(
    x: Array, rois: Array, batch_indices: Array, mode: str, height: int, width: int, coordinates: str
) -> None:
    what = "RoiAlign"
    require(x.ndim == 4, f"{what}: the input must be (batch, channels, height, width)", got=x.shape)
    require(rois.ndim == 2 and rois.shape[1] == 4, f"{what}: rois must have four columns", got=rois.shape)
    fits = batch_indices.shape == (len(rois),)
    require(fits, f"{what}: one batch index per roi", expected=len(rois), got=batch_indices.shape)
    require(mode in ("avg", "max"), f"{what}: unknown mode", got=mode)
    require(height > 0 and width > 0, f"{what}: the output must not be empty", got=(height, width))
    known = coordinates in ("half_pixel", "output_half_pixel")
    require(known, f"{what}: unknown coordinate_transformation_mode", got=coordinates)
    require_below(x.shape[0], batch_indices, f"{what}: a batch index is out of range")
    require(bool(np.isfinite(widen(rois)).all()), f"{what}: rois must be finite")


def _pooled_region(
    image: Array, rows: tuple[Array, Array], columns: tuple[Array, Array], cells: Ints, mode: str
) -> Array | float:
    """The mean or maximum of the samples of every cell: (channels, *cells), or 0 where there are none."""
    channels, (height, width) = image.shape[0], cells
    samples = rows[0].shape[1] * columns[0].shape[1]
    check_elements(channels * samples, image.dtype, "samples of RoiAlign")
    if not samples or not channels:
        return 0.0
    # The maximum is taken over weighted neighbours, not over interpolated samples: the operator is defined so.
    parts = (
        image[:, r[:, None], c] * (u[:, None] * v)
        for r, u in zip(*rows, strict=True)
        for c, v in zip(*columns, strict=True)
    )
    total = reduce(np.add if mode == "avg" else np.maximum, parts)
    by_cell = total.reshape(channels, height, -1, width, columns[0].shape[1] // width)
    return np.asarray(by_cell.mean(axis=(2, 4)) if mode == "avg" else by_cell.max(axis=(2, 4)))


def _roi_taps(start: float, stop: float, cells: int, ratio: int, size: int, legacy: bool) -> tuple[Array, Array]:
    """Both neighbours of every sample along one side of a region, and their weights: (2, samples) each."""
    extent = max(stop - start, type(stop)(1)) if legacy else stop - start
    step = extent / cells
    per_cell = 0 if size == 0 else ratio if ratio > 0 else max(int(np.ceil(step)), 0)
    check_elements(cells * per_cell, np.dtype(np.float32), "samples of RoiAlign")
    cell, sample = np.divmod(np.arange(cells * per_cell), max(per_cell, 1))
    at = (
        start + cell.astype(type(stop)) * step + (sample.astype(type(stop)) + type(stop)(0.5)) * step / max(per_cell, 1)
    )
    inside = (at >= -1) & (at <= size)
    at = np.clip(at, 0, size - 1)
    low = np.minimum(np.floor(at).astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    weight = at - low
    return np.stack([low, high]), np.stack([(1 - weight) * inside, weight * inside])


@op("DeformConv")
def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
    *,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    offset_group: int = 1,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """A convolution in which each tap has its own offset and mask weight."""
    what = "DeformConv"
    check_conv(what, x, w, group, kernel_shape)
    window = make_window(what, x.shape[2:], w.shape[2:], strides, dilations, pads, "NOTSET")
    _check_deformation(what, x, offset, mask, window, offset_group)
    check_elements(x.shape[0] * w.shape[0] * window.positions, x.dtype, f"output of {what}")
    split = (x.shape[0], offset_group, window.taps)
    moves = widen(offset).reshape(*split, window.rank, window.positions)
    scales = None if mask is None else widen(mask).reshape(*split, window.positions)
    y = _deformed_product(widen(x), widen(w), moves, scales, window, group)
    if b is not None:
        add_bias(what, y, b)
    return narrow(y, x.dtype)


def _check_deformation(
    what: str, x: Array, offset: Array, mask: Array | None, window: Window, offset_group: int
) -> None:
    fits = offset_group >= 1 and x.shape[1] % offset_group == 0
    require(fits, f"{what}: channels are no multiple of offset_group", expected=offset_group, got=x.shape[1])
    shape = (x.shape[0], offset_group * window.taps * window.rank, *window.output)
    require(offset.shape == shape, f"{what}: offset has the wrong shape", expected=shape, got=offset.shape)
    shape = (x.shape[0], offset_group * window.taps, *window.output)
    require(mask is None or mask.shape == shape, f"{what}: mask has the wrong shape", expected=shape)


def _deformed_product(x: Array, w: Array, moves: Array, scales: Array | None, window: Window, group: int) -> Array:
    """The weights times the pixels that the moved taps sample, a block of positions at a time."""
    (n, m), depth = (x.shape[0], w.shape[0]), math.prod(w.shape[1:])
    weights = w.reshape(group, m // group, depth)
    places = _tap_coordinates(window).astype(x.dtype)
    y = np.empty((n, group, m // group, window.positions), x.dtype)
    block = max(1, _COLUMNS_NBYTES // max(1, x.shape[1] * window.taps * x.itemsize))
    for i, p in itertools.product(range(n), range(0, window.positions, block)):
        part = slice(p, p + block)
        columns = []
        for g, source in enumerate(np.split(x[i], moves.shape[1])):
            sampled = _bilinear(source, places[:, :, part] + np.moveaxis(moves[i, g][:, :, part], 1, 0))
            columns.append(sampled if scales is None else sampled * scales[i, g][:, part])
        out = y[i][..., part]
        np.matmul(weights, np.concatenate(columns).reshape(group, depth, out.shape[2]), out=out)
    return y.reshape(n, m, *window.output)


def _tap_coordinates(window: Window) -> Array:
    """Where the taps of a window lie on the input before they are moved: (rank, taps, positions)."""
    starts = np.indices(window.output).reshape(window.rank, -1) * np.array(window.strides)[:, None]
    corner = np.indices(window.kernel).reshape(window.rank, -1) * np.array(window.dilations)[:, None]
    return np.asarray(starts[:, None] + corner[:, :, None] - np.array(window.begin)[:, None, None])


def _bilinear(x: Array, at: Array) -> Array:
    """``x`` (C, *spatial) interpolated at coordinates (rank, *points), zero outside."""
    taps = []
    for axis, size in enumerate(x.shape[1:]):
        place = np.clip(np.nan_to_num(at[axis], nan=-4.0), -4.0, size + 4.0)
        floor = np.floor(place)
        low = floor.astype(np.int64)
        weight = place - floor
        taps.append((np.stack([low, low + 1]), np.stack([1 - weight, weight])))
    return _interpolate(x, taps, exact=False, zeros_outside=True)
