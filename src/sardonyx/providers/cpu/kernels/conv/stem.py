"""Stem convolutions: images of few channels, whose taps along a row count as channels.

For an NCHW image of known size, the rows that a block of outputs reads are transposed as they are needed
(``conv.stem_rows``); otherwise the whole image is copied (``layout.nhwc_edges``).
"""

from __future__ import annotations

import numpy as np

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import views
from sardonyx.lower.groups import Convolution, Storage, View
from sardonyx.providers.cpu.kernels.common.window import MIN_NHWC_LANES, is_nhwc
from sardonyx.providers.cpu.kernels.conv import dot_product, nhwc
from sardonyx.providers.cpu.kernels.conv.stem_rows import MAX_ROW_CHANNELS, StemRows
from sardonyx.providers.cpu.kernels.gemm.vector import MC
from sardonyx.providers.cpu.language.values import f32
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import Refusal

MAX_CHANNELS = 12
"""Channels up to which they are merged with the taps of a row."""


def has_few_channels(group: Convolution) -> bool:
    """Whether the channels are so few that the taps of a row are merged with them."""
    window, channels = group.window, group.w.shape[1]
    return (
        group.groups == 1
        and isinstance(channels, int)
        and channels <= MAX_CHANNELS
        and window.kernel[-1] > 1
        and window.dilations[-1] == 1
        and all(isinstance(p, int) and p >= 0 for p in window.pads)
        and padded_sizes(group) is not None
    )


def padded_sizes(group: Convolution) -> tuple[Known, ...] | None:
    """The spatial sizes of the image with the padding that windows read; None where they are not expressible."""
    window, found = group.window, list[Known]()
    for i, (n, out) in enumerate(zip(group.x.shape[2:], group.box[2:], strict=True)):
        reach = (window.kernel[i] - 1) * window.dilations[i] + 1
        seen = dims.add(dims.mul(dims.sub(out, 1), window.strides[i]), reach)
        whole = dims.known(dims.maximum(seen, dims.add(n, window.pads[i])))
        if whole is None:
            return None
        found.append(whole)
    is_expressible = dims.known(dims.product((*group.x.shape[:2], *found))) is not None
    return tuple(found) if is_expressible else None


def as_stem(group: Convolution, isa: Isa) -> StemRows | None:
    """A stem convolution of an NCHW image, whose rows are transposed as they are needed; None for others."""
    x = group.x
    is_nchw = (
        len(x.shape) == 4 and x.strides[3] == 1 and x.shape[1] in range(2, MAX_ROW_CHANNELS + 1) and x.dtype is f32
    )
    is_known = all(isinstance(n, int) and n > 0 for n in (*x.shape[2:], *group.box[2:]))
    if isa.lanes < MIN_NHWC_LANES or not (is_nchw and is_known and has_few_channels(group)):
        return None
    padded = padded_sizes(group)
    if padded is None or not (nhwc.suits(group) and all(map(is_nhwc, group.outputs))):
        return None
    if dot_product.has_few_filters(group, isa):  # these have their own kernel
        return None
    found = StemRows.of(group, taps_as_channels(group.w), int(padded[0]), MC)
    return found if found.nbytes <= isa.l1_nbytes // 2 else None


def supports(group: Convolution, analysis: Analysis) -> Refusal | None:
    return Refusal("not a first layer of an NCHW image") if as_stem(group, analysis.isa) is None else None


def steps(group: Convolution, analysis: Analysis) -> list[Step]:
    found = as_stem(group, analysis.isa)
    assert found is not None
    return nhwc.steps(found.group, analysis, found)


def taps_as_channels(w: View) -> View:
    """Weights (filters, channels, .., taps of a row) as (filters, (taps of a row, channels), .., 1). Equal weights keep
    one ``constants.identity``.
    """
    tensor, shape = w.storage.tensor, tuple(int(d) for d in w.shape)
    assert tensor is not None and isinstance(w.offset, int)
    content = np.ascontiguousarray(tensor.peek()).reshape(-1)[w.offset :][: int(np.prod(shape))].reshape(shape)
    moved = np.moveaxis(content, -1, 1)
    moved = np.ascontiguousarray(moved.reshape(shape[0], -1, *shape[2:-1], 1))
    made = Tensor.of(moved)
    made.origin = ("taps as channels", identity(tensor), w.offset, shape)
    return views.dense(Storage("constant", w.dtype, moved.size, w.storage.value, made), moved.shape)
