"""Operators that order or count elements: TopK, Unique, NonZero."""

from __future__ import annotations

import math

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ops.axes import Array, normal_axis, scalar, widen_floats
from sardonyx.ops.registry import op


@op("TopK")
def top_k(x: Array, k: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Array, Array]:
    """The k largest or smallest along an axis, in order; ties by index. NaN counts as largest."""
    axis = normal_axis(axis, x.ndim, "TopK")
    count = scalar(k, "TopK: k")
    if not 0 <= count <= x.shape[axis]:
        raise InvalidArgument("TopK: k out of range", expected=f"[0, {x.shape[axis]}]", got=count)
    rows = np.moveaxis(x, axis, -1)
    chosen = np.moveaxis(_first(_order_keys(rows, descending=bool(largest)), count), -1, axis)
    return np.take_along_axis(x, chosen, axis), chosen


def _order_keys(x: Array, *, descending: bool) -> Array:
    """Integers with the same order as ``x``: the bits of floats, inverted for negative ones."""
    x = widen_floats(x)
    if x.dtype.kind == "b":
        x = x.astype(np.int8)
    elif x.dtype.kind == "u":
        half = x.dtype.type(1 << (8 * x.dtype.itemsize - 1))
        x = (x ^ half).view(f"i{x.dtype.itemsize}")
    elif x.dtype.kind == "f":
        signed = np.int32 if x.dtype.itemsize == 4 else np.int64
        x = np.where(np.isnan(x), x.dtype.type(np.nan), x + x.dtype.type(0))
        bits = x.view(signed)
        x = bits ^ ((bits >> signed(8 * x.dtype.itemsize - 1)) & np.iinfo(signed).max)
    return np.invert(x) if descending else x


def _first(keys: Array, count: int) -> Array:
    """Indices of the ``count`` smallest keys along the last axis, in order, ties by index."""
    n = keys.shape[-1]
    if keys.dtype.itemsize > 4 or n >= 1 << 31:
        return np.argsort(keys, axis=-1, kind="stable")[..., :count].astype(np.int64, copy=False)
    # Key and index in one word are all distinct, so an unstable partition is enough.
    words = (keys.astype(np.int64) << 32) | np.arange(n, dtype=np.int64)
    if 0 < count < n:
        words = np.partition(words, count - 1, axis=-1)
    words = np.sort(words[..., :count], axis=-1)
    return words & 0xFFFFFFFF


@op("Unique")
def unique(x: Array, *, axis: int | None = None, sorted: int = 1) -> tuple[Array, Array, Array, Array]:
    """Distinct elements, or distinct slices along an axis; the index of each first occurrence; inverse indices;
    counts.
    """
    wide = widen_floats(x)
    if axis is None:
        _, first, inverse, counts = np.unique(wide.reshape(-1), True, True, True)
    else:
        axis = normal_axis(axis, x.ndim, "Unique")
        rows = np.moveaxis(wide, axis, 0)
        _, codes = np.unique(rows.reshape(-1), return_inverse=True)
        codes = codes.reshape(rows.shape[0], math.prod(rows.shape[1:]))
        _, first, inverse, counts = np.unique(codes, True, True, True, axis=0)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        first, inverse, counts = first[order], rank[inverse], counts[order]
    values = np.take(x.reshape(-1), first) if axis is None else np.take(x, first, axis)
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@op("NonZero")
def non_zero(x: Array) -> Array:
    """Coordinates of the elements that are not zero (False, empty), one column each, in row-major order."""
    if x.ndim == 0:
        return np.zeros((0, int(bool(x))), np.int64)
    return np.array(np.nonzero(x), np.int64)
