"""Gather, scatter and one-hot: operators whose indices are data, and are therefore checked."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ops.axes import Array, normal_axis, scalar
from sardonyx.ops.limits import check_elements
from sardonyx.ops.registry import op


def _refuse(name: str, indices: Array, size: int, axis: int) -> NoReturn:
    outside = indices[(indices < -size) | (indices >= size)]
    raise InvalidArgument(
        f"{name}: index out of range on axis {axis}", expected=f"[{-size}, {size - 1}]", got=int(outside.flat[0])
    )


def _checked(name: str, indices: Array, size: int, axis: int) -> Array:
    """``indices`` as non-negative numbers."""
    if indices.size and not -size <= indices.min() <= indices.max() < size:
        _refuse(name, indices, size, axis)
    return np.where(indices < 0, indices + size, indices)


@op("Gather")
def gather(x: Array, indices: Array, *, axis: int = 0) -> Array:
    axis = normal_axis(axis, x.ndim, "Gather")
    try:
        return np.asarray(np.take(x, indices, axis=axis))
    except IndexError:
        _refuse("Gather", indices, x.shape[axis], axis)


@op("GatherElements")
def gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    axis = normal_axis(axis, x.ndim, "GatherElements")
    x = _prefix(x, indices, axis, "GatherElements")
    try:
        return np.take_along_axis(x, indices, axis)
    except IndexError:
        _refuse("GatherElements", indices, x.shape[axis], axis)


def _prefix(x: Array, indices: Array, axis: int, name: str) -> Array:
    """The slice of ``x`` that indices of this shape can address."""
    if x.ndim != indices.ndim or any(indices.shape[a] > x.shape[a] for a in range(x.ndim) if a != axis):
        raise InvalidArgument(f"{name}: indices reach past the data", got=f"{list(indices.shape)} in {list(x.shape)}")
    return x[tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(indices.shape))]


@op("GatherND")
def gather_nd(x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    depth = indices.shape[-1] if indices.ndim else 0
    if depth < 1 or batch_dims < 0 or batch_dims + depth > x.ndim or x.shape[:batch_dims] != indices.shape[:batch_dims]:
        raise InvalidArgument(
            "GatherND: indices do not fit the data",
            got=f"{list(indices.shape)} into {list(x.shape)}, batch_dims {batch_dims}",
        )
    batch = x.shape[:batch_dims]
    rank = indices.ndim - 1
    lead = [np.arange(n).reshape([n if a == i else 1 for i in range(rank)]) for a, n in enumerate(batch)]
    try:
        where = (*lead, *(indices[..., i] for i in range(depth)))
        return np.asarray(x[where])
    except IndexError:
        for i in range(depth):
            _checked("GatherND", indices[..., i], x.shape[batch_dims + i], batch_dims + i)
        raise


_REDUCTIONS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _write(out: Array, where: tuple[Any, ...], updates: Array, reduction: str, name: str) -> None:
    if reduction == "none":
        out[where] = updates
    elif reduction in _REDUCTIONS:
        with np.errstate(all="ignore"):
            _REDUCTIONS[reduction].at(out, where, updates)
    else:
        raise InvalidArgument(f"{name}: no such reduction", expected="none, add, mul, max or min", got=reduction)


@op("ScatterElements")
def scatter_elements(x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none") -> Array:
    axis = normal_axis(axis, x.ndim, "ScatterElements")
    if updates.shape != indices.shape:
        raise InvalidArgument(
            "ScatterElements: updates and indices differ in shape", expected=indices.shape, got=updates.shape
        )
    out: Array = x.copy()
    part = _prefix(out, indices, axis, "ScatterElements")
    where: list[Array] = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    where[axis] = _checked("ScatterElements", indices, x.shape[axis], axis)
    _write(part, tuple(where), updates, reduction, "ScatterElements")
    return out


@op("ScatterND")
def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    depth = indices.shape[-1] if indices.ndim else 0
    if not 1 <= depth <= x.ndim or updates.shape != indices.shape[:-1] + x.shape[depth:]:
        raise InvalidArgument(
            "ScatterND: the shapes do not fit",
            got=f"updates {list(updates.shape)} at {list(indices.shape)} into {list(x.shape)}",
        )
    where = tuple(_checked("ScatterND", indices[..., i], x.shape[i], i) for i in range(depth))
    out: Array = x.copy()
    _write(out, where, updates, reduction, "ScatterND")
    return out


@op("OneHot")
def one_hot(indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    """values[1] where the position on the new axis equals the index, values[0] elsewhere, also for indices out of
    range.
    """
    size = int(scalar(depth, "OneHot: depth"))
    axis = normal_axis(axis, indices.ndim + 1, "OneHot")
    if size < 1 or values.shape != (2,):
        raise InvalidArgument("OneHot needs a depth of at least 1 and two values", got=f"{size}, {list(values.shape)}")
    check_elements(size * math.prod(indices.shape), values.dtype, "the result of OneHot")
    if indices.dtype == np.uint64 or indices.dtype.kind not in "iub":
        # No cast turns NaN, Inf or 2**64 - 1 into an index: they become the size, which is one too many.
        indices = np.where((indices > -size - 1) & (indices < size), indices, size)
    whole = indices.astype(np.int64)
    at = np.expand_dims(np.where(whole < 0, whole + size, whole), axis)
    positions = np.arange(size).reshape([-1 if a == axis else 1 for a in range(indices.ndim + 1)])
    hot: Array = np.where(at == positions, values[1], values[0])
    return hot.astype(values.dtype, copy=False)
