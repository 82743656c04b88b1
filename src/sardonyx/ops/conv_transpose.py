"""Operators that scatter windows onto an image: ConvTranspose, Col2Im."""

from __future__ import annotations

import math

import numpy as np

from sardonyx import errors
from sardonyx.ops.conv import add_bias
from sardonyx.ops.limits import check_elements
from sardonyx.ops.precision import Array, exact_type, narrow, require, widen, wrap_int32
from sardonyx.ops.registry import op
from sardonyx.ops.window import Ints, Window, per_axis, same_pads, split_pads, trailing


def _canvas(window: Window, lead: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """Zeros for the image, its padding, and everything that the windows cover."""
    reach = [
        max(b + n, (o - 1) * s + d * (k - 1) + 1)
        for b, n, o, s, d, k in zip(
            window.begin, window.size, window.output, window.strides, window.dilations, window.kernel, strict=True
        )
    ]
    check_elements(math.prod(lead) * math.prod(reach), dtype, "padded output")
    return np.zeros((*lead, *reach), dtype)


def _crop(canvas: Array, window: Window) -> Array:
    return np.asarray(canvas[trailing(slice(b, b + n) for b, n in zip(window.begin, window.size, strict=True))])


@op("ConvTranspose")
def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Every input pixel adds a scaled copy of the kernel to the output; one matrix product per kernel tap."""
    what = "ConvTranspose"
    _check_conv_transpose(what, x, w, group, kernel_shape)
    window, before = _transposed_window(
        what, x.shape[2:], w.shape[2:], strides, dilations, output_padding, output_shape, pads, auto_pad
    )
    y = _spread(widen(x), widen(w), window, group)
    if any(before):
        y = np.pad(y, [(0, 0), (0, 0), *((zeros, 0) for zeros in before)])
    if b is not None:
        add_bias(what, y, b)
    return narrow(y, x.dtype)


@op("ConvTransposeInteger", domain="sardonyx")
def conv_transpose_integer(
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """ConvTranspose of bytes minus their zero points, in i32; the weights' is one value or one for each filter."""
    what = "ConvTransposeInteger"
    _check_conv_transpose(what, x, w, group, kernel_shape)
    window, before = _transposed_window(
        what, x.shape[2:], w.shape[2:], strides, dilations, output_padding, output_shape, pads, auto_pad
    )
    dtype = exact_type(x.shape[1] // group * window.taps)
    image, kernels = x.astype(dtype), w.astype(dtype)
    if x_zero_point is not None:
        require(x_zero_point.size == 1, f"{what}: the input's zero point must be one value", got=x_zero_point.shape)
        image -= x_zero_point.astype(dtype).reshape(())
    if w_zero_point is not None:
        sizes = (1, w.shape[1])
        require(w_zero_point.size in sizes, f"{what}: no zero point for each filter", got=w_zero_point.shape)
        kernels -= w_zero_point.astype(dtype).reshape(-1, *[1] * window.rank)
    y = _spread(image, kernels, window, group)
    return wrap_int32(np.pad(y, [(0, 0), (0, 0), *((zeros, 0) for zeros in before)]))


def _check_conv_transpose(what: str, x: Array, w: Array, group: int, kernel_shape: Ints | None) -> None:
    require(
        x.ndim >= 3 and w.ndim == x.ndim, f"{what}: input and weights differ in rank", expected=x.shape, got=w.shape
    )
    require(
        x.shape[1] == w.shape[0],
        f"{what}: input channels differ from the weights'",
        expected=w.shape[0],
        got=x.shape[1],
    )
    require(group >= 1 and x.shape[1] % group == 0, f"{what}: channels are no multiple of group", got=group)
    require(not kernel_shape or tuple(kernel_shape) == w.shape[2:], f"{what}: kernel_shape differs", got=kernel_shape)


def _transposed_window(
    what: str,
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: Ints | None,
    dilations: Ints | None,
    output_padding: Ints | None,
    output_shape: Ints | None,
    pads: Ints | None,
    auto_pad: str,
) -> tuple[Window, tuple[int, ...]]:
    """The window that slides over the output and whose positions are the input's elements, and how many zeros precede
    the image that it slides over.
    """
    rank = len(size)
    step = per_axis(what, "strides", strides, rank, 1, 1)
    dilation = per_axis(what, "dilations", dilations, rank, 1, 1)
    extra = per_axis(what, "output_padding", output_padding, rank, 0, 0)
    full = [
        (n - 1) * s + e + d * (k - 1) + 1 for n, s, e, d, k in zip(size, step, extra, dilation, kernel, strict=True)
    ]
    if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = per_axis(what, "output_shape", list(output_shape or [])[-rank:], rank, 0, 0)
        image = wanted if output_shape else tuple(n * s for n, s in zip(size, step, strict=True))
        surplus = [f - o for f, o in zip(full, image, strict=True)]
        # Where windows reach less far than a given size, zeros follow them; those of SAME lie on both sides.
        begin = tuple(same_pads(max(0, t) if output_shape else t, auto_pad)[0] for t in surplus)
    elif auto_pad in ("NOTSET", "VALID", ""):
        begin, end = split_pads(what, None if auto_pad == "VALID" else pads, rank)
        image = tuple(f - p - q for f, p, q in zip(full, begin, end, strict=True))
    else:
        raise errors.InvalidArgument(f"{what}: unknown auto_pad", got=auto_pad)
    require(all(o > 0 for o in image), f"{what}: the padding leaves no output", got=image)
    before = tuple(max(0, -b) for b in begin)
    inner = tuple(n - zeros for n, zeros in zip(image, before, strict=True))
    cut = tuple(max(0, b) for b in begin)
    return Window(inner, kernel, step, dilation, cut, cut, size), before


def _spread(x: Array, w: Array, window: Window, group: int) -> Array:
    """Each tap's product with the input, added where the tap lies in the output: (batch, channels, *image)."""
    batch, each = x.shape[0], w.shape[1]
    source = x.reshape(batch, group, x.shape[1] // group, window.positions)
    weights = np.moveaxis(w.reshape(group, x.shape[1] // group, each, *window.kernel), 1, 2)
    canvas = _canvas(window, (batch, group, each), x.dtype)
    for position in np.ndindex(window.kernel):
        product = np.matmul(weights[trailing(position)], source)
        window.tap(canvas, position)[...] += product.reshape(batch, group, each, *window.output)
    return _crop(canvas, window).reshape(batch, group * each, *window.size)


@op("Col2Im")
def col2im(
    x: Array,
    image_shape: Array,
    block_shape: Array,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Columns of blocks summed back into the image they came from."""
    what = "Col2Im"
    image, block = tuple(int(v) for v in image_shape), tuple(int(v) for v in block_shape)
    rank, taps = len(image), math.prod(block)
    require(x.ndim == 3, f"{what}: the input must be (batch, channels times block, blocks)", got=x.shape)
    require(len(block) == rank, f"{what}: image_shape and block_shape differ in length", expected=rank, got=block)
    require(all(v > 0 for v in image + block), f"{what}: sizes must be positive", got=image + block)
    require(x.shape[1] % taps == 0, f"{what}: channels are no multiple of the block", expected=taps, got=x.shape[1])
    begin, end = split_pads(what, pads, rank)
    step = per_axis(what, "strides", strides, rank, 1, 1)
    dilation = per_axis(what, "dilations", dilations, rank, 1, 1)
    blocks = tuple(
        (n + p + q - d * (k - 1) - 1) // s + 1
        for n, p, q, d, k, s in zip(image, begin, end, dilation, block, step, strict=True)
    )
    require(
        all(v > 0 for v in blocks) and math.prod(blocks) == x.shape[2],
        f"{what}: the number of blocks does not fit the image",
        expected=blocks,
        got=x.shape[2],
    )
    window = Window(image, block, step, dilation, begin, end, blocks)
    wide = x if x.dtype.kind in "biufc" and x.dtype != np.float16 else widen(x)
    columns = wide.reshape(x.shape[0], x.shape[1] // taps, *block, x.shape[2])
    columns = np.moveaxis(columns, -1, 2).reshape(*columns.shape[:2], *blocks, *block)
    canvas = _canvas(window, columns.shape[:2], wide.dtype)
    for position in np.ndindex(block):
        window.tap(canvas, position)[...] += columns[trailing(position)]
    return narrow(_crop(canvas, window), x.dtype)
