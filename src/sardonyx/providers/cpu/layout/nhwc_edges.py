"""Convolutions between NCHW and NHWC images: copies to and from NHWC, and first layers of few channels.

An image of few channels (a network's input) is copied with its padding: row by row inside the kernel (``conv.stem``),
or by a copy before it. The taps of a window row are then adjacent in memory. A view presents them as the channels of
one pixel; the pixels of that view are one stride apart and overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Convolution, Fill, Group, IntegerConvolution, Loop, Storage, View, Window
from sardonyx.providers.cpu.kernels.common.window import is_nhwc
from sardonyx.providers.cpu.kernels.conv import stem
from sardonyx.providers.cpu.kernels.quantized import conv_nhwc as quantized_conv_nhwc
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.records import replace


def with_edge_copies(group: Convolution, isa: Isa) -> list[Group]:
    """The convolution on NHWC views, and copies of those that are NCHW."""
    before, after, outputs = list[Group](), list[Group](), list[View]()
    for view in group.outputs:
        if is_nhwc(view):
            outputs.append(view)
        else:
            outputs.append(_temporary(view))
            after.append(Loop.copying(group.nodes, outputs[-1], view))
    group = replace(group, outputs=tuple(outputs))
    if isinstance(group, IntegerConvolution) and quantized_conv_nhwc.as_stem(group, isa) is not None:
        pass
    elif stem.has_few_channels(group) and not isinstance(group, IntegerConvolution):
        if stem.as_stem(group, isa) is None:
            before, group = _with_taps_as_channels(group)
    elif not is_nhwc(group.x):
        copy = _temporary(group.x)
        before, group = [Loop.copying(group.nodes, group.x, copy)], replace(group, x=copy)
    return [*before, group, *after]


def _temporary(view: View, spatial: Sequence[Known] | None = None) -> View:
    """A new NHWC temporary of a view's shape, or with other spatial sizes."""
    batch, channels, *sizes = view.shape
    shape = (batch, *(sizes if spatial is None else spatial), channels)
    elements = dims.known(dims.product(shape))
    assert elements is not None
    made = views.dense(Storage("temporary", view.dtype, elements, view.storage.value), shape)
    return views.permuted(made, (0, len(shape) - 1, *range(1, len(shape) - 1)))


def _with_taps_as_channels(group: Convolution) -> tuple[list[Group], Convolution]:
    """The convolution with the taps of a window row as channels, and the groups that pad its image before."""
    window, x, w = group.window, group.x, group.w
    sizes, result = x.shape[2:], group.box[2:]
    padded = stem.padded_sizes(group)
    assert padded is not None
    channels = int(w.shape[1])
    before: list[Group] = []
    is_padded = any(a != b for a, b in zip(padded, sizes, strict=True))
    if is_padded or x.strides[-1] != channels or (x.strides[1] != 1 and channels > 1):
        image = _temporary(x, padded)
        within = image
        for i, (n, pad) in enumerate(zip(sizes, window.pads, strict=True)):
            within = views.sliced(within, 2 + i, pad, n)
        before.append(Loop.copying(group.nodes, x, within))
        if is_padded:
            flat = View(image.storage, (image.storage.elements,), (1,), 0)
            before.insert(0, Fill(group.nodes, flat, start=0, step=0))
    else:
        image = x
    taps, stride = window.kernel[-1], window.strides[-1]
    step = dims.known(dims.mul(image.strides[-1], stride))
    assert step is not None
    with_taps = replace(
        image,
        shape=(image.shape[0], taps * channels, *image.shape[2:-1], result[-1]),
        strides=(image.strides[0], 1, *image.strides[2:-1], step),
    )
    kernel = (*window.kernel[:-1], 1)
    made = Window(kernel, (*window.strides[:-1], 1), (*window.dilations[:-1], 1), (0,) * len(kernel))
    return before, replace(group, x=with_taps, w=stem.taps_as_channels(w), window=made)
