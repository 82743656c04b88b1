"""com.microsoft operators that are implemented directly, without a body over ai.onnx."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ir.sparse import SparseTensor
from sardonyx.ops import limits
from sardonyx.ops.registry import op

Array = np.ndarray[Any, Any]

MICROSOFT = "com.microsoft"


@op("Inverse", domain=MICROSOFT)
def inverse(x: Array) -> Any:
    """The inverse of each matrix in the last two axes."""
    wide = x.astype(np.float32) if x.dtype.itemsize < 4 else x
    try:
        return np.linalg.inv(wide).astype(x.dtype)
    except np.linalg.LinAlgError as error:
        raise InvalidArgument(f"Inverse: {error}") from error


@op("SparseToDenseMatMul", domain=MICROSOFT)
def sparse_to_dense_mat_mul(
    a: SparseTensor | Array, b: Array, *, alpha: float = 1.0, transA: int = 0, transB: int = 0
) -> Array:
    """alpha * a @ b for a sparse matrix; empty rows are skipped. A sparse constant may arrive as a dense tensor."""
    if not isinstance(a, SparseTensor):
        a = SparseTensor.from_dense(a)
    if len(a.shape) != 2 or b.ndim != 2:
        raise InvalidArgument("SparseToDenseMatMul takes two matrices", got=f"ranks {len(a.shape)} and {b.ndim}")
    rows, columns = np.unravel_index(a.linear(), a.shape)
    height, depth = a.shape
    if transA:
        rows, columns, height, depth = columns, rows, depth, height
    if transB:
        b = b.T
    if b.shape[0] != depth:
        raise InvalidArgument("the shapes of the matrices do not fit", expected=f"{depth} rows", got=b.shape[0])
    limits.check_elements(height * b.shape[1], b.dtype, "the product")
    y = np.zeros((height, b.shape[1]), b.dtype)
    order = np.argsort(rows, kind="stable")
    filled, starts = np.unique(rows[order], return_index=True)
    for row, at in zip(filled, np.split(order, starts[1:]), strict=True):
        y[row] = a.values[at] @ b[columns[at]]
    return y if alpha == 1.0 else (y * alpha).astype(y.dtype)


def _rotl(x: Array, bits: int) -> Any:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def _mixed(k: Array) -> Any:
    return _rotl(k * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _murmur3(rows: Array, seed: int) -> Any:
    """MurmurHash3_x86_32 of each row of bytes; all rows have the same length."""
    count, length = rows.shape
    h = np.full(count, seed, np.uint32)
    whole = length // 4
    words = np.ascontiguousarray(rows[:, : 4 * whole]).view("<u4")
    with np.errstate(over="ignore"):
        for i in range(whole):
            h = _rotl(h ^ _mixed(words[:, i]), 13) * np.uint32(5) + np.uint32(0xE6546B64)
        if length % 4:
            tail = np.zeros((count, 4), np.uint8)
            tail[:, : length % 4] = rows[:, 4 * whole :]
            h = h ^ _mixed(tail.view("<u4")[:, 0])
        h = h ^ np.uint32(length)
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return h ^ (h >> np.uint32(16))


@op("MurmurHash3", domain=MICROSOFT)
def murmur_hash3(x: Array, *, positive: int = 1, seed: int = 0) -> Any:
    """A 32-bit hash of each element's bytes, of a string's UTF-8 bytes."""
    if x.dtype == object:
        hashes = [_murmur3(np.frombuffer(str(s).encode(), np.uint8)[None], seed)[0] for s in x.ravel()]
        flat = np.array(hashes, np.uint32)
    else:
        rows = np.ascontiguousarray(x).reshape(-1, 1).view(np.uint8)
        flat = _murmur3(rows.reshape(x.size, x.dtype.itemsize), seed)
    return flat.reshape(x.shape).view(np.uint32 if positive else np.int32)


@op("CropAndResize", domain=MICROSOFT)
def crop_and_resize(
    x: Array,
    rois: Array,
    batch_indices: Array,
    crop_size: Array,
    *,
    mode: str = "bilinear",
    extrapolation_value: float = 0.0,
) -> Array:
    """Boxes (y1, x1, y2, x2, relative to the image) cropped and resized to one size with aligned corners."""
    if np.any((batch_indices < 0) | (batch_indices >= x.shape[0])):
        raise InvalidArgument("CropAndResize: batch index out of range", expected=f"[0, {x.shape[0] - 1}]")
    ys, xs = (
        _samples(rois[:, i], rois[:, i + 2], size, int(count))
        for i, size, count in zip((0, 1), x.shape[2:], crop_size, strict=True)
    )
    inside = ((ys >= 0) & (ys <= x.shape[2] - 1))[:, :, None] & ((xs >= 0) & (xs <= x.shape[3] - 1))[:, None, :]
    images = x[batch_indices]
    if mode == "nearest":
        crops = _gather_pixels(images, _round_half_up(ys), _round_half_up(xs))
    else:
        top, left = np.floor(ys), np.floor(xs)
        down, right = (ys - top)[:, None, :, None], (xs - left)[:, None, None, :]
        upper, lower = (
            _gather_pixels(images, rows, left) * (1 - right) + _gather_pixels(images, rows, np.ceil(xs)) * right
            for rows in (top, np.ceil(ys))
        )
        crops = upper * (1 - down) + lower * down
    return np.where(inside[:, None], crops, extrapolation_value).astype(x.dtype)


def _samples(start: Array, end: Array, size: int, count: int) -> Array:
    """Positions of the ``count`` samples of each box on an axis of ``size`` pixels."""
    span = size - 1
    if count == 1:
        return (0.5 * (start + end) * span)[:, None]
    step = (end - start) * span / (count - 1)
    return start[:, None] * span + np.arange(count, dtype=start.dtype) * step[:, None]


def _round_half_up(x: Array) -> Array:
    return np.floor(x + 0.5)


def _gather_pixels(images: Array, rows: Array, columns: Array) -> Array:
    """images[r, :, rows[r], columns[r]] for each box r, with coordinates clamped to the image."""
    ys = np.clip(rows, 0, images.shape[2] - 1).astype(np.int64)
    xs = np.clip(columns, 0, images.shape[3] - 1).astype(np.int64)
    boxes = np.arange(images.shape[0])[:, None, None]
    return np.moveaxis(images[boxes, :, ys[:, :, None], xs[:, None, :]], -1, 1)
