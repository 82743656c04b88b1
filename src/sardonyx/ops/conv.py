"""Convolutions: dense ones as matrix products over windows, depthwise ones as a sum over kernel taps."""

from __future__ import annotations

import numpy as np

from sardonyx.ops.limits import check_elements
from sardonyx.ops.precision import (
    Array,
    exact_type,
    narrow,
    per_channel,
    requantize,
    require,
    sigmoid,
    widen,
    wrap_int32,
)
from sardonyx.ops.registry import op
from sardonyx.ops.window import Ints, Window, along, make_window, trailing

_COLUMNS_NBYTES = 4 << 20
"""Block size of unfolded windows, so that they stay in cache until they are multiplied."""
_ACCUMULATOR_NBYTES = 1 << 19
_DEPTHWISE_TAPS = 256


def convolve(x: Array, w: Array, window: Window, group: int) -> Array:
    """The convolution of two tensors of one float type, padding with zeros."""
    check_elements(x.shape[0] * w.shape[0] * window.positions, x.dtype, "output of a convolution")
    if w.shape[1] == 1 and group > 1 and window.taps <= _DEPTHWISE_TAPS:
        return _depthwise(window.pad(x), w, window)
    return _dense(window.pad(x), w, window, group)


def _dense(x: Array, w: Array, window: Window, group: int) -> Array:
    n, m = x.shape[0], w.shape[0]
    depth = w.shape[1] * window.taps
    weights = w.reshape(group, m // group, depth)
    y = np.empty((n, group, m // group, window.positions), x.dtype)
    if window.is_pointwise:
        np.matmul(weights, window.tap(x, (0,) * window.rank).reshape(n, group, depth, window.positions), out=y)
        return y.reshape(n, m, *window.output)
    patches = window.view(x)
    row = window.positions // max(window.output[0], 1)
    row_nbytes = max(1, group * depth * row * x.itemsize)
    images = _COLUMNS_NBYTES // max(1, row_nbytes * window.output[0])
    if images:
        for i in range(0, n, images):
            block = patches[i : i + images]
            np.matmul(weights, block.reshape(len(block), group, depth, window.positions), out=y[i : i + images])
        return y.reshape(n, m, *window.output)
    step = max(1, _COLUMNS_NBYTES // row_nbytes)
    for i in range(n):
        for r in range(0, window.output[0], step):
            block = patches[i][along(1 + window.rank, slice(r, r + step))]
            out = y[i, :, :, r * row : (r + step) * row]
            np.matmul(weights, block.reshape(group, depth, out.shape[2]), out=out)
    return y.reshape(n, m, *window.output)


def _depthwise(x: Array, w: Array, window: Window) -> Array:
    n, group = x.shape[:2]
    each = w.shape[0] // group
    weights = w.reshape((group, each) + (1,) * window.rank + window.kernel)
    y = np.empty((n, group, each, *window.output), x.dtype)
    channel_nbytes = max(1, each * window.positions * x.itemsize)
    channels = min(group, max(1, _ACCUMULATOR_NBYTES // channel_nbytes))
    images = max(1, _ACCUMULATOR_NBYTES // (channel_nbytes * group))
    for i in range(0, n, images):
        for c in range(0, group, channels):
            acc = y[i : i + images, c : c + channels]
            source, taps = x[i : i + images, c : c + channels, None], weights[c : c + channels]
            product = np.empty_like(acc)
            acc[...] = 0
            for position in np.ndindex(window.kernel):
                np.multiply(window.tap(source, position), taps[trailing(position)], out=product)
                acc += product
    return y.reshape(n, group * each, *window.output)


def check_conv(what: str, x: Array, w: Array, group: int, kernel_shape: Ints | None) -> None:
    """Check that the shapes of a convolution's input and weights fit each other."""
    require(x.ndim >= 3, f"{what}: the input needs a batch, a channel and spatial axes", got=x.shape)
    require(w.ndim == x.ndim, f"{what}: weights and input differ in rank", expected=x.ndim, got=w.shape)
    require(group >= 1, f"{what}: group must be positive", got=group)
    require(
        x.shape[1] == w.shape[1] * group,
        f"{what}: input channels differ from weight channels times group",
        expected=w.shape[1] * group,
        got=x.shape[1],
    )
    require(
        w.shape[0] % group == 0, f"{what}: output channels are no multiple of group", expected=group, got=w.shape[0]
    )
    require(
        not kernel_shape or tuple(kernel_shape) == w.shape[2:],
        f"{what}: kernel_shape differs from the weights",
        expected=w.shape[2:],
        got=kernel_shape,
    )


def check_bias(what: str, b: Array, channels: int) -> None:
    require(b.shape == (channels,), f"{what}: bias needs one value per output channel", expected=channels, got=b.shape)


def add_bias(what: str, y: Array, b: Array) -> None:
    """Add one value of ``b`` to each channel of ``y``, in place."""
    check_bias(what, b, y.shape[1])
    y += per_channel(widen(b), y.ndim)


@op("Conv")
def conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    check_conv("Conv", x, w, group, kernel_shape)
    window = make_window("Conv", x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    y = convolve(widen(x), widen(w), window, group)
    if b is not None:
        add_bias("Conv", y, b)
    return narrow(y, x.dtype)


def _centered(what: str, x: Array, zero_point: Array | None, dtype: np.dtype[np.floating]) -> Array:
    """``x`` minus its zero point, which is a scalar or has one value per entry of axis 0."""
    y = x.astype(dtype)
    if zero_point is not None:
        require(
            zero_point.size in (1, x.shape[0]),
            f"{what}: a zero point is one value or one per output channel",
            expected=(1, x.shape[0]),
            got=zero_point.shape,
        )
        y -= zero_point.astype(dtype).reshape((-1,) + (1,) * (x.ndim - 1))
    return y


def _accumulate(
    what: str,
    x: Array,
    w: Array,
    x_zero_point: Array | None,
    w_zero_point: Array | None,
    window: Window,
    group: int,
) -> Array:
    """Exact sums of products of 8-bit integers minus their zero points, as floats with integer values."""
    dtype = exact_type(w.shape[1] * window.taps)
    if x_zero_point is not None:
        require(x_zero_point.size == 1, f"{what}: the input's zero point must be one value", got=x_zero_point.shape)
    return convolve(_centered(what, x, x_zero_point, dtype), _centered(what, w, w_zero_point, dtype), window, group)


@op("ConvInteger")
def conv_integer(
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    check_conv("ConvInteger", x, w, group, kernel_shape)
    window = make_window("ConvInteger", x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    return wrap_int32(_accumulate("ConvInteger", x, w, x_zero_point, w_zero_point, window, group))


@op("QLinearConv")
def qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    what = "QLinearConv"
    check_conv(what, x, w, group, kernel_shape)
    require(
        w_scale.size in (1, w.shape[0]),
        f"{what}: w_scale is one value or one per output channel",
        expected=(1, w.shape[0]),
        got=w_scale.shape,
    )
    window = make_window(what, x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    acc = _accumulate(what, x, w, x_zero_point, w_zero_point, window, group)
    if b is not None:
        check_bias(what, b, w.shape[0])
        acc = acc.astype(np.float64) + per_channel(b, x.ndim)
    scale = x_scale.reshape(()) * w_scale.reshape(-1) / y_scale.reshape(())
    return requantize(acc, per_channel(scale, x.ndim), y_zero_point.reshape(()))


@op("CausalConvWithState")
def causal_conv_with_state(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    *,
    activation: str = "none",
) -> tuple[Array, Array]:
    """A causal depthwise convolution over time; its state is the last inputs."""
    what = "CausalConvWithState"
    check_conv(what, x, weight, x.shape[1] if x.ndim > 1 else 1, None)
    require(x.ndim == 3, f"{what}: the input must be (batch, channels, length)", got=x.shape)
    require(activation in ("none", "silu", "swish"), f"{what}: unknown activation", got=activation)
    carried = (x.shape[0], x.shape[1], weight.shape[2] - 1)
    past = np.zeros(carried, x.dtype) if past_state is None else past_state
    require(past.shape == carried, f"{what}: past_state has the wrong shape", expected=carried, got=past.shape)
    padded = np.concatenate([past, x], axis=2)
    window = make_window(what, padded.shape[2:], weight.shape[2:], None, None, None, "VALID")
    y = _depthwise(widen(padded), widen(weight), window)
    if bias is not None:
        add_bias(what, y, bias)
    if activation != "none":
        y *= sigmoid(y)
    return narrow(y, x.dtype), padded[:, :, padded.shape[2] - carried[2] :]
