"""Convolutions lose the taps that read nothing but padding: small images under large windows have many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.dims import Dim
from sardonyx.ir.graph import Graph, Node
from sardonyx.ir.tensor import Tensor
from sardonyx.ops.window import make_window, touching_taps
from sardonyx.optimize.fusion import require
from sardonyx.optimize.fusions.affine import lazy
from sardonyx.optimize.fusions.rules import Found, each
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import attribute


@optimization("ClipConvWindows")
def clip_conv_windows(graph: Graph, log: Log) -> None:
    """Conv(x, w)  ->  Conv(x, w without its outer taps), along axes of a known size.

    A window of 3 x 3 over an image of one pixel reads that pixel by its middle tap: eight ninths of the weights are
    multiplied by padding.
    """
    for op_type in ("Conv", "ConvInteger"):
        each(graph, op_type, _clipped, log)


def _clipped(op: Builder, conv: Node) -> Found | None:
    x, weight = conv.inputs[:2]
    if x is None or weight is None or x.shape is None or weight.shape is None or len(weight.shape) < 3:
        return None
    rank, sizes, kernel = len(weight.shape) - 2, x.shape[2:], [k for k in weight.shape[2:] if isinstance(k, int)]
    strides, dilations = (conv.attrs.get(name) or (1,) * rank for name in ("strides", "dilations"))
    pads = _pads(conv, sizes, kernel, strides, dilations) if len(sizes) == len(kernel) == rank else ()
    if len(pads) != 2 * rank:
        return None
    axes = zip(sizes, kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
    taps = [_taps(n, *axis) if isinstance(n, int) else (range(axis[0]), *axis[-2:]) for n, *axis in axes]
    if all(used == range(k) for (used, _, _), k in zip(taps, kernel, strict=True)):
        return None
    require(weight.is_const, "the weights of taps that read padding alone are not constant", weight)
    assert weight.const is not None
    attrs = {
        **conv.attrs,
        "kernel_shape": [len(used) for used, _, _ in taps],
        "auto_pad": "NOTSET",
        "pads": [begin for _, begin, _ in taps] + [end for _, _, end in taps],
    }
    held = op.const(_cropped(weight.const, [used for used, _, _ in taps]))
    made = op.call("", conv.op_type, x, held, *conv.inputs[2:], **attrs)
    return [made], []


def _pads(
    conv: Node, sizes: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Sequence[int]:
    """All begins, then all ends; nothing where only a run tells them, or where there is no padding."""
    automatic = attribute(conv, "auto_pad")
    if automatic in ("NOTSET", "VALID"):
        pads = conv.attrs.get("pads", ()) if automatic == "NOTSET" else ()
        return pads if any(pads) else ()
    known = [n for n in sizes if isinstance(n, int)]
    if len(known) < len(sizes):
        return ()
    window = make_window("Conv", known, kernel, strides, dilations, None, automatic)
    return [*window.begin, *window.end]


def _taps(size: int, kernel: int, stride: int, dilation: int, begin: int, end: int) -> tuple[range, int, int]:
    """The taps along an axis that read an element of the image for some output, and the padding that they need; all
    taps and the padding that there was, where fewer would give another number of outputs.
    """
    output = _outputs(size, kernel, stride, dilation, begin, end)
    first, count = touching_taps(size, kernel, stride, dilation, begin, output)
    before = begin - first * dilation
    after = max(end - (kernel - first - count) * dilation, 0)
    if output < 1 or before < 0 or _outputs(size, count, stride, dilation, before, after) != output:
        return range(kernel), begin, end
    return range(first, first + count), before, after


def _outputs(size: int, kernel: int, stride: int, dilation: int, begin: int, end: int) -> int:
    return (size + begin + end - dilation * (kernel - 1) - 1) // stride + 1


def _cropped(weight: Tensor, taps: Sequence[range]) -> Tensor:
    index = (slice(None), slice(None), *(slice(used.start, used.stop) for used in taps))
    shape = (*weight.shape[:2], *map(len, taps))
    return lazy(weight.dtype, shape, lambda: np.asarray(weight.numpy()[index]), f"{weight.name}/clipped")
