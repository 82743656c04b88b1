"""Reductions along axes, running sums, softmax.

Floats narrower than 32 bits are accumulated in f32 and rounded once. Integers wrap. An empty maximum is the least value
of its type, an empty minimum the greatest; NaN propagates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ops.axes import Array, ints, normal_axis, scalar, widen_floats
from sardonyx.ops.registry import op

Axes: TypeAlias = "tuple[int, ...]"
Reduction: TypeAlias = Callable[[Array, Axes, bool], Any]


def reduction(name: str) -> Callable[[Reduction], Reduction]:
    """Declare a Reduce operator by ``fn(x, axes, keepdims)`` over numbers of at least 32 bits, or integers.

    An axis that is named twice (1 and -1 of two) is reduced once. A scalar is reduced along 0 or -1 as a vector of one
    element is.
    """

    def register(fn: Reduction) -> Reduction:
        def meaning(x: Array, axes: Array | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
            if axes is not None and axes.size:
                along = tuple(dict.fromkeys([normal_axis(a, x.ndim or 1, name) for a in ints(axes)]))[: x.ndim]
            else:
                along = () if noop_with_empty_axes else tuple(range(x.ndim))
            with np.errstate(all="ignore"):
                return np.asarray(fn(widen_floats(x), along, bool(keepdims))).astype(x.dtype, copy=False)

        op(name)(meaning)
        return fn

    return register


@reduction("ReduceSum")
def reduce_sum(x: Array, axes: Axes, keepdims: bool) -> Any:
    return x.sum(axis=axes, keepdims=keepdims, dtype=x.dtype)


@reduction("ReduceProd")
def reduce_prod(x: Array, axes: Axes, keepdims: bool) -> Any:
    return x.prod(axis=axes, keepdims=keepdims, dtype=x.dtype)


@reduction("ReduceMean")
def reduce_mean(x: Array, axes: Axes, keepdims: bool) -> Any:
    count = math.prod([x.shape[a] for a in axes])
    if x.dtype.kind == "f":
        return reduce_sum(x, axes, keepdims) / x.dtype.type(count)
    wide = np.uint64 if x.dtype.kind == "u" else np.int64
    total = x.sum(axis=axes, keepdims=keepdims, dtype=wide)
    return np.sign(total) * (np.abs(total) // wide(max(count, 1)))


@reduction("ReduceMax")
def reduce_max(x: Array, axes: Axes, keepdims: bool) -> Any:
    return x.max(axis=axes, keepdims=keepdims, initial=_extreme(x.dtype, lowest=True))


@reduction("ReduceMin")
def reduce_min(x: Array, axes: Axes, keepdims: bool) -> Any:
    return x.min(axis=axes, keepdims=keepdims, initial=_extreme(x.dtype, lowest=False))


@reduction("ReduceL1")
def reduce_l1(x: Array, axes: Axes, keepdims: bool) -> Any:
    return reduce_sum(np.abs(x), axes, keepdims)


@reduction("ReduceL2")
def reduce_l2(x: Array, axes: Axes, keepdims: bool) -> Any:
    x = x if x.dtype.kind == "f" else x.astype(np.float64)
    return np.sqrt(reduce_sum_square(x, axes, keepdims))


@reduction("ReduceSumSquare")
def reduce_sum_square(x: Array, axes: Axes, keepdims: bool) -> Any:
    return reduce_sum(x * x, axes, keepdims)


@reduction("ReduceLogSum")
def reduce_log_sum(x: Array, axes: Axes, keepdims: bool) -> Any:
    return np.log(reduce_sum(x, axes, keepdims))


@reduction("ReduceLogSumExp")
def reduce_log_sum_exp(x: Array, axes: Axes, keepdims: bool) -> Any:
    """log(sum(exp(x))), shifted by the maximum so that nothing overflows."""
    top = np.asarray(reduce_max(x, axes, True))
    shift = np.where(np.isfinite(top), top, x.dtype.type(0))
    total = np.log(reduce_sum(np.exp(x - shift), axes, True)) + shift
    return total if keepdims else np.squeeze(total, axis=axes)


def _extreme(dtype: np.dtype[Any], *, lowest: bool) -> Any:
    if dtype.kind == "f":
        return -np.inf if lowest else np.inf
    if dtype.kind == "b":
        return not lowest
    limits = np.iinfo(dtype)
    return limits.min if lowest else limits.max


def _arg(name: str, find: Callable[..., Any]) -> None:
    def meaning(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
        axis = normal_axis(axis, x.ndim or 1, name)
        if x.ndim == 0:
            return np.zeros((), np.int64)
        if x.shape[axis] == 0:
            shape = [1 if a == axis else n for a, n in enumerate(x.shape) if keepdims or a != axis]
            if 0 not in shape:
                raise InvalidArgument(f"{name}: the axis is empty", got=f"shape {list(x.shape)}, axis {axis}")
            return np.empty(shape, np.int64)
        x = widen_floats(x)
        if select_last_index:
            found = x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis, keepdims=bool(keepdims))
        else:
            found = find(x, axis=axis, keepdims=bool(keepdims))
        return np.asarray(found, np.int64)

    op(name)(meaning)


_arg("ArgMax", np.argmax)
_arg("ArgMin", np.argmin)


def _cumulative(name: str, accumulate: Callable[..., Array], unit: int) -> None:
    def meaning(x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
        along = normal_axis(scalar(axis, f"{name}: axis"), x.ndim, name)
        wide = widen_floats(np.flip(x, along) if reverse else x)
        with np.errstate(all="ignore"):
            if exclusive:
                out = np.full_like(wide, unit)
                later = [slice(None)] * x.ndim
                earlier = [slice(None)] * x.ndim
                later[along], earlier[along] = slice(1, None), slice(None, -1)
                accumulate(wide[tuple(earlier)], axis=along, dtype=wide.dtype, out=out[tuple(later)])
            else:
                out = accumulate(wide, axis=along, dtype=wide.dtype)
            return (np.flip(out, along) if reverse else out).astype(x.dtype, copy=False)

    op(name)(meaning)


_cumulative("CumSum", np.add.accumulate, 0)
_cumulative("CumProd", np.multiply.accumulate, 1)


def softmax_parts(x: Array, axis: int) -> tuple[Array, Array]:
    """``x`` minus its maximum along the axis, and the exponentials of that."""
    shifted = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
    return shifted, np.exp(shifted)


@op("Softmax")
def softmax(x: Array, *, axis: int = -1) -> Array:
    """In narrow types every step of ONNX's function body rounds: the exponentials, their sum, the quotient."""
    axis = normal_axis(axis, x.ndim, "Softmax")
    with np.errstate(all="ignore"):
        wide = widen_floats(x)
        _, exps = softmax_parts(wide, axis)
        if wide.dtype != x.dtype:
            exps = exps.astype(x.dtype).astype(wide.dtype)
        total = exps.sum(axis=axis, keepdims=True)
        quotient: Array = exps / total.astype(x.dtype).astype(wide.dtype)
        return quotient.astype(x.dtype, copy=False)


@op("LogSoftmax")
def log_softmax(x: Array, *, axis: int = -1) -> Array:
    axis = normal_axis(axis, x.ndim, "LogSoftmax")
    with np.errstate(all="ignore"):
        shifted, exps = softmax_parts(widen_floats(x), axis)
        shifted -= np.log(exps.sum(axis=axis, keepdims=True))
        return shifted.astype(x.dtype, copy=False)


@op("Hardmax")
def hardmax(x: Array, *, axis: int = -1) -> Array:
    """One at the first maximum along the axis, zero elsewhere."""
    axis = normal_axis(axis, x.ndim, "Hardmax")
    out = np.zeros(x.shape, x.dtype)
    if x.size:
        np.put_along_axis(out, np.expand_dims(np.argmax(widen_floats(x), axis), axis), x.dtype.type(1), axis)
    return out
