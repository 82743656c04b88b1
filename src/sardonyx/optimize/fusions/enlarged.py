"""Pointwise convolutions of images of which a part was enlarged: that part is convolved while it is small."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.ir.builder import Builder
from sardonyx.ir.dims import Dim
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType
from sardonyx.optimize.fusions.affine import lazy
from sardonyx.optimize.fusions.rules import Found, each
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import attribute


@optimization("ConvolveBeforeResize")
def convolve_before_resize(graph: Graph, log: Log) -> None:
    """Conv(Concat(Resize(a), b), w and v)  ->  Conv(b, v) + Resize(Conv(a, w)), where pixels are repeated.

    A pyramid of features, as detectors have it, then makes a quarter of the products of what it enlarges, and enlarges
    no more channels than there are filters.
    """
    each(graph, "Conv", _before_resize, log)


def _before_resize(op: Builder, conv: Node) -> Found | None:
    x, weight = conv.inputs[:2]
    concat = None if x is None else x.producer
    if weight is None or weight.const is None or concat is None or not _is_pointwise(conv, weight.const):
        return None
    is_joined = concat.op_type == "Concat" and not concat.domain and _is_read_once(concat)
    if not is_joined or concat.attrs["axis"] not in (1, 1 - len(weight.const.shape)):
        return None
    parts = [v for v in concat.inputs if v is not None]
    enlarged = [_enlarged(v, weight.const.shape[0]) for v in parts]
    if any(v.rank != len(weight.const.shape) for v in parts):
        return None
    channels = [v.shape[1] for v in parts if v.shape is not None and isinstance(v.shape[1], int)]
    if not any(enlarged) or all(enlarged) or len(channels) < len(parts) or not _are_as_large(parts):
        return None
    ends = [sum(channels[: i + 1]) for i in range(len(parts))]
    ranges = [range(end - n, end) for n, end in zip(channels, ends, strict=True)]
    kept = [i for i, node in enumerate(enlarged) if node is None]
    whole = parts[kept[0]] if len(kept) == 1 else _joined(op, [parts[i] for i in kept])
    w = _of_channels(weight.const, [c for i in kept for c in ranges[i]])
    made = _like(op.Conv(whole, w, conv.input(2), **conv.attrs), conv.output)
    for node, of in zip(enlarged, ranges, strict=True):
        if node is not None:
            made = _like(op.Add(made, _resized(op, node, _of_channels(weight.const, of), conv)), conv.output)
    return [made], [concat, *(node for node in enlarged if node is not None)]


def _is_pointwise(conv: Node, weight: Tensor) -> bool:
    windows = (weight.shape[2:], conv.attrs.get("strides", ()), conv.attrs.get("dilations", ()))
    is_plain = len(weight.shape) >= 3 and int(attribute(conv, "group")) == 1 and not any(conv.attrs.get("pads", ()))
    return is_plain and all(set(given) <= {1} for given in windows)


def _are_as_large(images: Sequence[Value]) -> bool:
    """Whether they are known to differ in channels only: a sum stretches what a join refuses."""
    beside = {(v.shape[0], *v.shape[2:]) if v.shape is not None else None for v in images}
    size = beside.pop()
    return not beside and size is not None and None not in size


def _is_read_once(node: Node) -> bool:
    return len(node.output.consumers) == 1 and not node.output.is_output


def _enlarged(value: Value, filters: int) -> Node | None:
    """The Resize that makes a value, if it repeats the pixels of an image of no fewer channels than filters."""
    node = value.producer
    if node is None or node.op_type != "Resize" or node.domain or not _is_read_once(node):
        return None
    is_plain = attribute(node, "mode") == "nearest" and attribute(node, "axes") is None
    is_plain &= attribute(node, "coordinate_transformation_mode") != "tf_crop_and_resize"  # it makes pixels, too
    is_plain &= attribute(node, "keep_aspect_ratio_policy") == "stretch"  # others enlarge channels as well
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    if not is_plain or shape is None or not all(v is None or v.is_const for v in node.inputs[1:]):
        return None
    channels, factors = shape[1], _factors(node, shape)
    grows = factors is not None and set(factors[:2]) == {1} and min(factors[2:]) >= 1 and max(factors[2:]) > 1
    return node if grows and isinstance(channels, int) and channels >= filters else None


def _factors(resize: Node, shape: Sequence[Dim]) -> list[float] | None:
    """How many times as long each axis becomes, if that is known."""
    scales, sizes = resize.input(2), resize.input(3)
    if scales is not None and scales.numpy().size:
        return [float(n) for n in scales.numpy()]
    if sizes is None:
        return None
    known = [(n, int(size)) for n, size in zip(shape, sizes.numpy(), strict=True) if isinstance(n, int) and n]
    return [size / n for n, size in known] if len(known) == len(shape) else None


def _of_channels(weight: Tensor, channels: Sequence[int]) -> Tensor:
    """What a weight has for some channels of its image."""
    shape = (weight.shape[0], len(channels), *weight.shape[2:])
    return lazy(weight.dtype, shape, lambda: weight.numpy()[:, channels], f"{weight.name}/{channels[0]}")


def _joined(op: Builder, parts: list[Value]) -> Value:
    joined: Value = op.Concat(*parts, axis=1)
    return _shaped(joined, parts[0], sum(int(v.shape[1] or 0) for v in parts if v.shape is not None))


def _resized(op: Builder, resize: Node, w: Tensor, conv: Node) -> Value:
    """The convolution of a small image, enlarged."""
    small = resize.inputs[0]
    assert small is not None
    found = _shaped(op.Conv(small, w, **conv.attrs), small, w.shape[0])
    roi, scales, sizes = (resize.input(i) for i in (1, 2, 3))
    numbers = None if sizes is None else sizes.numpy().copy()
    if numbers is not None:
        numbers[1] = w.shape[0]
    return _like(op.Resize(found, roi, scales, numbers, **resize.attrs), conv.output)


def _shaped(value: Value, like: Value, channels: int) -> Value:
    """A value of the type of another, but for its channels."""
    if isinstance(like.type, TensorType) and like.type.shape is not None:
        value.type = TensorType(like.type.dtype, (like.type.shape[0], channels, *like.type.shape[2:]))
    return value


def _like(value: Value, other: Value) -> Value:
    value.type = other.type
    return value
