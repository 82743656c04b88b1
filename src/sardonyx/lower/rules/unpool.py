"""MaxUnpool."""

from __future__ import annotations

from sardonyx.ir.graph import Node
from sardonyx.lower.groups import Scatter, View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.pad import surround
from sardonyx.lower.rules.window import pads_of, per_axis
from sardonyx.lower.sizes import Refused, add, mul, product, sub


@rule("MaxUnpool")
def max_unpool(low: Lowering, node: Node) -> None:
    """A scatter of the values into zeros, padded with zeros if ``output_shape`` is larger."""
    x, indices, rank = low.view(low.input(0)), low.view(low.input(1)), len(low.shape(low.input(0))) - 2
    kernel, strides = per_axis(node, "kernel_shape", rank), per_axis(node, "strides", rank)
    before, after = pads_of(node, rank)
    if len(indices.shape) != len(x.shape):
        raise Refused("MaxUnpool: indices and values differ in rank")
    for size, wanted in zip(indices.shape, x.shape, strict=True):
        low.require("MaxUnpool: indices and values differ in shape", size, wanted)
    axes = zip(x.shape[2:], kernel, strides, before, after, strict=True)
    shape = (*x.shape[:2], *(add(mul(sub(n, 1), s), k - b - e) for n, k, s, b, e in axes))
    final = shape if node.input(2) is None else tuple(low.sizes(low.input(2)))
    if len(final) != len(shape):
        raise Refused("MaxUnpool: output_shape has another rank than the image")
    more = [sub(whole, size) for whole, size in zip(final, shape, strict=True)]
    for size in more:
        low.require_least("MaxUnpool: output_shape is smaller than what the pooling covers", size, 0)
    out, count = low.make(node.output), product(shape)
    image = low.temporary(x.dtype, shape) if any(more) else out
    flat, every = low.reshaped(image, (count,)), (product(x.shape),)
    zero = low.scalar(0, x.dtype)
    low.groups.append(
        Scatter(
            (node,),
            low.fit(zero, flat.shape),
            flat,
            low.reshaped(indices, every),
            low.reshaped(x, every),
            View(flat.storage, every, (0,), flat.offset),
            count,
            1,
            "none",
        )
    )
    if any(more):
        surround(low, image, out, (0,) * len(shape), more, zero)
