"""The windows of convolution and pooling nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.lower.groups import Window
from sardonyx.lower.lowering import Lowering
from sardonyx.lower.sizes import Refused, add, expressible, maximum, mul, sub
from sardonyx.ops.window import touching_taps

MAX_AXES = 3
MAX_TAPS = 1 << 14
"""The largest window of a convolution: kernels have an entry for each of its elements."""
MAX_PLANES = 128
"""Elements of such a window of three axes along the first: kernels unroll them."""
MAX_REACH = 1 << 16
"""The longest stride, and the longest way from the first tap to the last: scratch memory and tables grow with them."""


def window_of(
    low: Lowering, node: Node, sizes: Sequence[Known], out: Sequence[Known], kernel: Sequence[int]
) -> tuple[Window, tuple[Known, ...]]:
    """The window of a node over an image of these sizes, and the pads after the image.

    It is as large as stated: ``require_few_taps`` and ``require_near`` are the limits of kernels.
    """
    what, rank = node.op_type, len(sizes)
    if rank > MAX_AXES or len(kernel) != rank:
        raise Refused(f"{what} of {len(kernel)} taps over {rank} axes is not compiled")
    if min(kernel) < 1:
        raise Refused(f"{what}: the window has no elements")
    # A single output has no next one, and a single tap neither: their distances say nothing.
    stated = per_axis(node, "strides", rank)
    strides = tuple(1 if n == 1 else s for n, s in zip(out, stated, strict=True))
    dilations = tuple(1 if k == 1 else d for k, d in zip(kernel, per_axis(node, "dilations", rank), strict=True))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto = node.attrs.get("auto_pad", "NOTSET")
    before: tuple[Known, ...]
    after: tuple[Known, ...]
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        spans = [add(mul(sub(n, 1), s), r) for n, s, r in zip(out, strides, reach, strict=True)]
        whole = [maximum(sub(span, size), 0) for span, size in zip(spans, sizes, strict=True)]
        small = tuple(expressible(dims.floordiv(pad, 2)) for pad in whole)
        large = tuple(sub(pad, half) for pad, half in zip(whole, small, strict=True))
        before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
    elif auto not in ("NOTSET", "VALID"):
        raise Refused(f"{what}: auto_pad {auto!r} is not known")
    else:
        before, after = pads_of(node, rank)
        is_ceil = bool(node.attrs.get("ceil_mode", 0))
        for size, b, a, r, s in zip(sizes, before, after, reach, stated, strict=True):
            room, least = sub(add(size, add(b, a)), r), 1 - s if is_ceil else 0
            low.require_least(f"{what}: the window is larger than the padded image", room, least)
    return Window(tuple(kernel), strides, dilations, before), after


def require_few_taps(what: str, window: Window) -> None:
    """Refuse a window that is too large for a convolution."""
    if math.prod(window.kernel) > MAX_TAPS:
        raise Refused(f"{what}: the window has more than {MAX_TAPS} elements")
    if len(window.kernel) == MAX_AXES and window.kernel[0] > MAX_PLANES:
        raise Refused(f"{what}: the window has more than {MAX_PLANES} elements along its first axis")


def require_near(what: str, window: Window) -> None:
    """Refuse a window that moves or reaches too far."""
    axes = zip(window.kernel, window.strides, window.dilations, strict=True)
    if any(max(s, (k - 1) * d) > MAX_REACH for k, s, d in axes):
        raise Refused(f"{what}: the window reaches or moves farther than {MAX_REACH} elements")


def clipped(window: Window, sizes: Sequence[Known], out: Sequence[Known]) -> Window:
    """The window without taps that read padding alone, along axes whose sizes are known."""
    kernel, pads = list(window.kernel), list(window.pads)
    for i, (size, count, pad) in enumerate(zip(sizes, out, window.pads, strict=True)):
        if isinstance(size, int) and isinstance(count, int) and isinstance(pad, int):
            dilation = window.dilations[i]
            first, kernel[i] = touching_taps(size, kernel[i], window.strides[i], dilation, pad, count)
            pads[i] = pad - first * dilation
    dilations = (1 if k == 1 else d for k, d in zip(kernel, window.dilations, strict=True))
    return Window(tuple(kernel), window.strides, tuple(dilations), tuple(pads))


def pads_of(node: Node, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The pads before and after the image from the attribute ``pads``."""
    pads = (node.attrs.get("pads") if node.attrs.get("auto_pad", "NOTSET") != "VALID" else None) or [0] * (2 * rank)
    if len(pads) != 2 * rank or min(pads) < 0:
        raise Refused(f"{node.op_type}: the pads are not two numbers of at least 0 for each axis")
    return tuple(pads[:rank]), tuple(pads[rank:])


def per_axis(node: Node, name: str, rank: int) -> tuple[int, ...]:
    given = tuple(node.attrs.get(name) or (1,) * rank)
    if len(given) != rank or min(given) < 1:
        raise Refused(f"{node.op_type}: {name} is not one positive number for each axis")
    return given
