"""Inference for convolution, pooling and resizing."""

from __future__ import annotations

import numpy as np

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.ir.dims import Dim
from sardonyx.ir.graph import Node
from sardonyx.ir.shape import Shape
from sardonyx.ir.types import TensorType
from sardonyx.ops.rules import Content, Result, Undecided, axis_of, elements, like, rule, shaped, tensor


@rule("Conv")
def _conv(node: Node, content: Content) -> Result:
    return [like(tensor(node), _convolved(node, shaped(node, 1)))]


@rule("ConvInteger")
def _conv_integer(node: Node, content: Content) -> Result:
    return [TensorType(dtypes.i32, _convolved(node, shaped(node, 1)))]


@rule("QLinearConv")
def _qlinear_conv(node: Node, content: Content) -> Result:
    return [like(tensor(node, 7), _convolved(node, shaped(node, 3)))]


def _convolved(node: Node, w: Shape) -> Shape:
    """The shape of an image that weights of a shape are slid over."""
    x = shaped(node)
    return (x[0], w[0], *_windows(node, x[2:], node.attrs.get("kernel_shape") or w[2:]))


@rule("MaxPool", "AveragePool", "LpPool")
def _pool(node: Node, content: Content) -> Result:
    x = shaped(node)
    t = like(tensor(node), (*x[:2], *_windows(node, x[2:], node.attrs["kernel_shape"])))
    return [t, TensorType(dtypes.i64, t.shape)]


def _windows(node: Node, sizes: tuple[Dim, ...], kernel: tuple[Dim, ...]) -> list[Dim]:
    """The number of window positions along each axis."""
    rank, attrs = len(sizes), node.attrs
    if len(kernel) != rank:
        raise Undecided
    strides, dilations = attrs.get("strides") or [1] * rank, attrs.get("dilations") or [1] * rank
    auto = attrs.get("auto_pad", "NOTSET")
    pads = (attrs.get("pads") if auto != "VALID" else None) or [0] * (2 * rank)
    out: list[Dim] = []
    for i, size in enumerate(sizes):
        reach = dims.add(dims.mul(dims.sub(kernel[i], 1), dilations[i]), 1)
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            out.append(dims.ceildiv(size, strides[i]))
            continue
        around = pads[i] + pads[i + rank]
        span = dims.sub(dims.add(size, around), reach)
        if attrs.get("ceil_mode"):
            out.append(_rounded_up(size, span, reach, strides[i], pads[i], around))
        else:
            out.append(dims.add(dims.floordiv(span, strides[i]), 1))
    return out


def _rounded_up(size: Dim, span: Dim, reach: Dim, stride: int, before: int, around: int) -> Dim:
    """The number of positions in ceil mode; a last window that would start in the end padding is left out."""
    count = dims.add(dims.ceildiv(span, stride), 1)
    if isinstance(count, int) and isinstance(size, int):
        return count - 1 if (count - 1) * stride >= size + before else count
    return count if dims.at_least(reach, around - before + stride) else None


@rule("ConvTranspose")
def _conv_transpose(node: Node, content: Content) -> Result:
    return [like(tensor(node), _transposed(node))]


@rule("ConvTransposeInteger", domain="sardonyx")
def _conv_transpose_integer(node: Node, content: Content) -> Result:
    return [TensorType(dtypes.i32, _transposed(node))]


def _transposed(node: Node) -> Shape:
    """The shape of the image that a transposed convolution makes."""
    x, w, attrs = shaped(node), shaped(node, 1), node.attrs
    rank = len(x) - 2
    auto, given = attrs.get("auto_pad", "NOTSET"), attrs.get("output_shape")
    kernel, pads = attrs.get("kernel_shape") or w[2:], attrs.get("pads") or [0] * (2 * rank)
    strides, dilations, more = (attrs.get(key) or [default] * rank for key, default in _STEPS)
    out: list[Dim] = [x[0], dims.mul(w[1], attrs.get("group", 1))]
    if given or auto.startswith("SAME"):
        sizes = given[-rank:] if given else [dims.mul(size, s) for size, s in zip(x[2:], strides, strict=True)]
        return (*out, *sizes)
    if auto == "VALID":
        pads = [0] * (2 * rank)
    for i, size in enumerate(x[2:]):
        reach = dims.mul(dims.sub(kernel[i], 1), dilations[i])
        whole = dims.total((dims.mul(dims.sub(size, 1), strides[i]), reach, 1 + more[i]))
        out.append(dims.sub(whole, pads[i] + pads[i + rank]))
    return tuple(out)


_STEPS = (("strides", 1), ("dilations", 1), ("output_padding", 0))


@rule("Resize")
def _resize(node: Node, content: Content) -> Result:
    x, attrs = shaped(node), node.attrs
    axes = [axis_of(a, len(x)) for a in attrs.get("axes") or range(len(x))]
    shape = list(x)
    sizes, scales = elements(node, 3, content), node.input(2)
    if node.input(3) is not None and sizes != []:
        if attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise Undecided
        for i, a in enumerate(axes):
            shape[a] = sizes[i] if sizes is not None else None
    elif scales is not None and scales.is_const and attrs.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        for a, factor in zip(axes, scales.numpy().tolist(), strict=True):
            d = shape[a]
            if isinstance(d, int):
                shape[a] = int(np.floor(np.float32(d) * np.float32(factor)))
            else:
                shape[a] = _times(d, float(factor))
    else:
        for a in axes:
            shape[a] = None
    return [like(tensor(node), tuple(shape))]


_SHORT = 1 << 10


def _times(d: Dim, factor: float) -> Dim:
    """floor(d * factor), if f32 computes the product exactly."""
    top, bottom = factor.as_integer_ratio()
    return dims.floordiv(dims.mul(d, top), bottom) if bottom <= _SHORT and top < _SHORT * bottom else None
