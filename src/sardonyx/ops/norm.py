"""Normalizations. Statistics are computed in float32 or wider, whatever the tensor's type."""

from __future__ import annotations

import numpy as np

from sardonyx import dtypes, errors
from sardonyx.ops.precision import Array, compute_type, narrow, per_channel, require, widen
from sardonyx.ops.registry import op
from sardonyx.ops.window import Ints


def _standardize(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """(x - mean) / sqrt(var + epsilon) over ``axes``, the mean, and 1 / sqrt(var + epsilon)."""
    mean = x.mean(axis=axes, keepdims=True)
    centered = x - mean
    variance = np.square(centered).mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + x.dtype.type(epsilon))
    centered *= inverse
    return centered, mean, inverse


def _trailing(what: str, x: Array, axis: int) -> tuple[int, ...]:
    require(-x.ndim <= axis < max(x.ndim, 1), f"{what}: axis is out of range for rank {x.ndim}", got=axis)
    return tuple(range(axis % x.ndim, x.ndim)) if x.ndim else ()


def _check_channels(what: str, x: Array, *vectors: Array) -> None:
    require(x.ndim >= 2, f"{what}: the input needs a batch and a channel axis", got=x.shape)
    for v in vectors:
        require(v.shape == (x.shape[1],), f"{what}: one value per channel", expected=(x.shape[1],), got=v.shape)


def _check_broadcast(what: str, x: Array, *others: Array) -> None:
    for v in others:
        fits = v.ndim <= x.ndim and all(n in (1, m) for n, m in zip(v.shape[::-1], x.shape[::-1], strict=False))
        require(fits, f"{what}: scale or bias does not broadcast to the input", expected=x.shape, got=v.shape)


@op("BatchNormalization")
def batch_normalization(
    x: Array,
    scale: Array,
    b: Array,
    input_mean: Array,
    input_var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Array | tuple[Array, Array, Array]:
    _check_channels("BatchNormalization", x if x.ndim > 1 else x[:, None], scale, b, input_mean, input_var)
    dtype = compute_type(x, scale, b, input_mean, input_var)
    wide, mean, var = x.astype(dtype, copy=False), input_mean.astype(dtype), input_var.astype(dtype)
    if training_mode:
        axes = (0, *range(2, x.ndim))
        mean, var = wide.mean(axis=axes), wide.var(axis=axes)
    factor = scale.astype(dtype) / np.sqrt(var + dtype.type(epsilon))
    y = wide - per_channel(mean, x.ndim)
    y *= per_channel(factor, x.ndim)
    y += per_channel(b.astype(dtype), x.ndim)
    if not training_mode:
        return narrow(y, x.dtype)
    keep = dtype.type(momentum)
    running_mean = input_mean.astype(dtype) * keep + mean * (1 - keep)
    running_var = input_var.astype(dtype) * keep + var * (1 - keep)
    return narrow(y, x.dtype), narrow(running_mean, input_mean.dtype), narrow(running_var, input_var.dtype)


@op("InstanceNormalization")
def instance_normalization(x: Array, scale: Array, b: Array, *, epsilon: float = 1e-5) -> Array:
    _check_channels("InstanceNormalization", x, scale, b)
    y, _, _ = _standardize(widen(x), tuple(range(2, x.ndim)), epsilon)
    y *= per_channel(widen(scale), x.ndim)
    y += per_channel(widen(b), x.ndim)
    return narrow(y, x.dtype)


@op("GroupNormalization")
def group_normalization(
    x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    what = "GroupNormalization"
    _check_channels(what, x, scale, bias)
    fits = num_groups > 0 and x.shape[1] % num_groups == 0
    require(fits, f"{what}: channels are no multiple of num_groups", expected=num_groups, got=x.shape[1])
    groups = widen(x).reshape(x.shape[0], num_groups, -1) if x.size else widen(x)
    y = _standardize(groups, (2,), epsilon)[0].reshape(x.shape) if x.size else groups
    return narrow(y * per_channel(widen(scale), x.ndim) + per_channel(widen(bias), x.ndim), x.dtype)


@op("LayerNormalization")
def layer_normalization(
    x: Array, scale: Array, b: Array | None = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Array, Array, Array]:
    what = "LayerNormalization"
    _check_broadcast(what, x, *(v for v in (scale, b) if v is not None))
    y, mean, inverse = _standardize(widen(x), _trailing(what, x, axis), epsilon)
    y *= widen(scale)
    if b is not None:
        y += widen(b)
    stash = dtypes.of_onnx(stash_type).numpy
    return narrow(y, x.dtype), narrow(mean, stash), narrow(inverse, stash)


@op("RMSNormalization")
def rms_normalization(x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Array:
    what = "RMSNormalization"
    _check_broadcast(what, x, scale)
    wide = widen(x)
    square = np.square(wide).mean(axis=_trailing(what, x, axis), keepdims=True)
    y = wide / np.sqrt(square + wide.dtype.type(epsilon))
    return narrow(y * widen(scale), scale.dtype)


@op("LpNormalization")
def lp_normalization(x: Array, *, axis: int = -1, p: int = 2) -> Array:
    """x divided by its p-norm along an axis; 0 if the norm is 0."""
    if p not in (1, 2):
        raise errors.InvalidArgument("LpNormalization: p must be 1 or 2", got=p)
    require(-x.ndim <= axis < x.ndim, f"LpNormalization: axis is out of range for rank {x.ndim}", got=axis)
    wide = widen(x)
    norm = np.linalg.norm(wide, ord=p, axis=axis, keepdims=True)
    return narrow(np.divide(wide, norm, out=np.zeros_like(wide), where=norm != 0), x.dtype)


@op("MeanVarianceNormalization")
def mean_variance_normalization(x: Array, *, axes: Ints = (0, 2, 3)) -> Array:
    """Normalizes over all axes if ``axes`` is empty, as ONNX's function body does."""
    require(all(-x.ndim <= a < x.ndim for a in axes), f"axes are out of range for rank {x.ndim}", got=list(axes))
    wide, over = widen(x), tuple(axes) or None
    centered = wide - wide.mean(axis=over, keepdims=True)
    deviation = np.sqrt(np.square(centered).mean(axis=over, keepdims=True))
    return narrow(centered / (deviation + wide.dtype.type(1e-9)), x.dtype)


@op("LRN")
def lrn(x: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Array:
    """x divided by a power of the mean square of the ``size`` adjacent channels."""
    require(x.ndim >= 2 and size >= 1, "LRN: a channel axis and a positive size are needed", got=(x.shape, size))
    wide = widen(x)
    before, channels = (size - 1) // 2, x.shape[1]
    sums = np.zeros((x.shape[0], channels + 1, *x.shape[2:]), np.float64)
    np.cumsum(np.square(wide, dtype=np.float64), axis=1, out=sums[:, 1:])
    first = np.clip(np.arange(channels) - before, 0, channels)
    last = np.clip(np.arange(channels) - before + size, 0, channels)
    mean = (sums[:, last] - sums[:, first]) * (alpha / size)
    return narrow(wide / (bias + mean) ** beta, x.dtype)
