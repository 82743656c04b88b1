"""A pointwise convolution of an upsampled image is computed on the image before it is upsampled."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.ir.builder import Builder
from sardonyx.ir.dims import Dim
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType
from sardonyx.optimize.fusion import require
from sardonyx.optimize.fusions.affine import lazy
from sardonyx.optimize.fusions.rules import Found, each
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import attribute


@optimization("ConvolveBeforeResize")
def convolve_before_resize(graph: Graph, log: Log) -> None:
    """Conv(Concat(Resize(a), b), w)  ->  Conv(b, w_b) + Resize(Conv(a, w_a)), for Resize of mode "nearest".

    ``w_a`` and ``w_b`` are the input channels of ``w`` that belong to ``a`` and ``b``. In the feature pyramids of
    detectors, which upsample by two in both directions, the convolution of ``a`` then takes a quarter of the products,
    and no more channels are upsampled than there are filters.
    """
    each(graph, "Conv", _before_resize, log)


def _before_resize(op: Builder, conv: Node) -> Found | None:
    x, weight = conv.inputs[:2]
    concat = None if x is None else x.producer
    if concat is None or concat.op_type != "Concat" or concat.domain:
        return None
    images = [v for v in concat.inputs if v is not None]
    if not any(_is_resized(v) for v in images):
        return None
    w = _pointwise_weight(conv, weight)
    upsampled = _upsampled(images, w.shape[0])
    channels = _channels(concat, images, len(w.shape))
    require(None in upsampled, "every input of the Concat is upsampled")
    ends = [sum(channels[: i + 1]) for i in range(len(images))]
    ranges = [range(end - n, end) for n, end in zip(channels, ends, strict=True)]
    rest = [i for i, node in enumerate(upsampled) if node is None]
    others = images[rest[0]] if len(rest) == 1 else _concatenated(op, [images[i] for i in rest])
    others_w = _of_channels(w, [c for i in rest for c in ranges[i]])
    made = _typed_like(op.Conv(others, others_w, conv.input(2), **conv.attrs), conv.output)
    for node, of in zip(upsampled, ranges, strict=True):
        if node is not None:
            made = _typed_like(op.Add(made, _resized(op, node, _of_channels(w, of), conv)), conv.output)
    return [made], [concat, *(node for node in upsampled if node is not None)]


def _is_resized(value: Value) -> bool:
    return value.producer is not None and value.producer.op_type == "Resize" and not value.producer.domain


def _pointwise_weight(conv: Node, weight: Value | None) -> Tensor:
    """The weight of a convolution with a window of one pixel; refused for others."""
    require(weight is not None and weight.const is not None, "the weight is not constant", weight)
    assert weight is not None and weight.const is not None
    tensor = weight.const
    require(len(tensor.shape) >= 3 and set(tensor.shape[2:]) <= {1}, "the convolution's window is not 1", weight)
    require(int(attribute(conv, "group")) == 1, "the convolution is grouped")
    windows = conv.attrs.get("strides", ()), conv.attrs.get("dilations", ())
    require(all(set(given) <= {1} for given in windows), "the convolution has strides or dilations")
    require(not any(conv.attrs.get("pads", ())), "the convolution is padded")
    return tensor


def _channels(concat: Node, images: Sequence[Value], rank: int) -> list[int]:
    """The channels of each image, which are known to differ in nothing else; refused where they are not.

    A Concat refuses images of different sizes; the Add that replaces it would broadcast them.
    """
    require(_is_read_once(concat), "the Concat has other readers", concat.output)
    require(concat.attrs["axis"] in (1, 1 - rank), "the Concat is not along the channels", concat.output)
    sizes, channels = [], []
    for v in images:
        require(v.shape is not None and len(v.shape) == rank, f"an image is not known to have {rank} axes", v)
        assert v.shape is not None
        require(isinstance(v.shape[1], int), "the number of channels is not known", v)
        channels.append(int(v.shape[1] or 0))
        sizes.append((v.shape[0], *v.shape[2:]))
        require(None not in sizes[0] and sizes[-1] == sizes[0], "the images are not known to have one size", v)
    return channels


def _is_read_once(node: Node) -> bool:
    return len(node.output.consumers) == 1 and not node.output.is_output


def _upsampled(images: Sequence[Value], filters: int) -> list[Node | None]:
    """The Resize of each image that is better convolved before it, None for the others; refused where all are None."""
    found: list[Node | None] = [None] * len(images)
    reasons: list[tuple[str, Value]] = []
    for i, v in enumerate(images):
        if v.producer is None or not _is_resized(v):
            continue
        why_not = _why_not(v.producer, filters)
        if why_not is None:
            found[i] = v.producer
        else:
            reasons.append((why_not, v))
    for why, v in reasons:
        require(any(found), why, v)
    return found


def _why_not(resize: Node, filters: int) -> str | None:
    """Why a convolution cannot move before a Resize, or would cost more there."""
    if not _is_read_once(resize):
        return "the Resize has other readers"
    if attribute(resize, "mode") != "nearest":
        return "the Resize interpolates"
    if attribute(resize, "coordinate_transformation_mode") == "tf_crop_and_resize":
        return "the Resize writes an extrapolation value outside of the image"
    if attribute(resize, "keep_aspect_ratio_policy") != "stretch" or attribute(resize, "axes") is not None:
        return "the Resize has axes or keeps the aspect ratio"
    shape = None if resize.inputs[0] is None else resize.inputs[0].shape
    if shape is None or not all(v is None or v.is_const for v in resize.inputs[1:]):
        return "the scales of the Resize are not known"
    factors = _factors(resize, shape)
    if factors is None or not len(factors) == len(shape) >= 3:
        return "the scales of the Resize are not known"
    if set(factors[:2]) != {1} or min(factors[2:]) < 1 or max(factors[2:]) == 1:
        return "the Resize does not enlarge the image"
    if not isinstance(shape[1], int):
        return "the number of channels is not known"
    return None if shape[1] >= filters else f"the image has {shape[1]} channels, fewer than the {filters} filters"


def _factors(resize: Node, shape: Sequence[Dim]) -> list[float] | None:
    """The scale of each axis, if known."""
    scales, sizes = resize.input(2), resize.input(3)
    if scales is not None and scales.numpy().size:
        return [float(n) for n in scales.numpy()]
    if sizes is None:
        return None
    known = [(n, int(size)) for n, size in zip(shape, sizes.numpy(), strict=True) if isinstance(n, int) and n]
    return [size / n for n, size in known] if len(known) == len(shape) else None


def _of_channels(weight: Tensor, channels: Sequence[int]) -> Tensor:
    """A weight for some of its input channels."""
    shape = (weight.shape[0], len(channels), *weight.shape[2:])
    return lazy(weight.dtype, shape, lambda: weight.numpy()[:, channels], f"{weight.name}/{channels[0]}")


def _concatenated(op: Builder, images: list[Value]) -> Value:
    made: Value = op.Concat(*images, axis=1)
    return _with_channels(made, images[0], sum(int(v.shape[1] or 0) for v in images if v.shape is not None))


def _resized(op: Builder, resize: Node, w: Tensor, conv: Node) -> Value:
    """Resize(Conv(x, w)) for the input ``x`` of ``resize``."""
    small = resize.inputs[0]
    assert small is not None
    convolved = _with_channels(op.Conv(small, w, **conv.attrs), small, w.shape[0])
    roi, scales, sizes = (resize.input(i) for i in (1, 2, 3))
    numbers = None if sizes is None else sizes.numpy().copy()
    if numbers is not None:
        numbers[1] = w.shape[0]
    return _typed_like(op.Resize(convolved, roi, scales, numbers, **resize.attrs), conv.output)


def _with_channels(value: Value, like: Value, channels: int) -> Value:
    """Give a value the type of another, with ``channels`` channels."""
    if isinstance(like.type, TensorType) and like.type.shape is not None:
        value.type = TensorType(like.type.dtype, (like.type.shape[0], channels, *like.type.shape[2:]))
    return value


def _typed_like(value: Value, other: Value) -> Value:
    value.type = other.type
    return value
