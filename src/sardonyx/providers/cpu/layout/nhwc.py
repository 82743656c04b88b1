"""Converts intermediate images from NCHW to NHWC, once for all groups of a part.

Wide vectors want channels along the lanes: 7 x 7 pixels do not fill vectors of 16 lanes, their channels do, and a
window at the image's edge costs no more than one in its middle. So the storage of an intermediate image that
convolutions read or write becomes NHWC if all groups that access it can: that depends on their views alone. An image
that the caller owns, or that some group needs as NCHW, stays so, and a copy is inserted next to the convolution
(``layout.nhwc_edges``). Convolutions on tiles, and those that are matrix products, take both layouts.

    storage    (N, C, P), P pixels, becomes (N, P, C)
    view       an axis along channels gets stride 1, one along pixels gets its stride times C
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import (
    CentredConvolution,
    Contraction,
    Convolution,
    GridSample,
    Group,
    IntegerConvolution,
    Loop,
    Pool,
    Reduce,
    Resample,
    RoiAlign,
    Storage,
    View,
)
from sardonyx.providers.cpu.kernels.common.window import MIN_NHWC_LANES
from sardonyx.providers.cpu.kernels.conv import dot_product, im2col, nhwc, on_tiles, stem, strided_windows
from sardonyx.providers.cpu.kernels.image.resize import MIN_ROW
from sardonyx.providers.cpu.kernels.quantized import conv_nhwc as quantized_conv_nhwc
from sardonyx.providers.cpu.layout import merge_convs, nhwc_edges
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.records import Record, replace

MIN_FILTERS = 4
"""Filters and channels of each group of a grouped convolution, at least: with fewer, too many lanes are empty."""


def to_nhwc(groups: Sequence[Group], analysis: Analysis) -> list[Group]:
    """The groups with NHWC images, merged convolutions and the copies that they need."""
    if analysis.isa.lanes < MIN_NHWC_LANES:
        return list(groups)
    wanted = {id(g) for g in groups if isinstance(g, Convolution) and _prefers_nhwc(g, analysis)}
    if not wanted:
        return list(groups)
    kept = _kept(groups, analysis) if any(isinstance(g, IntegerConvolution) for g in groups) else set()
    images = _candidates(groups, wanted, kept)
    groups = [_with_split_axes(g, images) if isinstance(g, Loop) else g for g in groups]
    images = _convertible(groups, wanted, images, analysis.shared)
    made: list[Group] = []
    for group in merge_convs.merged([_with_nhwc_views(g, images) for g in groups]):
        if isinstance(group, Convolution) and _prefers_nhwc(group, analysis) and not _takes_both(group, analysis):
            made += nhwc_edges.with_edge_copies(group, analysis.isa)
        else:
            made.append(group)
    return made


class Image(Record):
    """The shape of a storage that holds NCHW images: C channels and P pixels."""

    channels: Known
    pixels: Known

    def as_nhwc(self, view: View) -> View | None:
        """The view of the same elements once the storage is NHWC; None if it has no constant strides there."""
        each = dims.known(dims.mul(self.channels, self.pixels))
        if each is None:
            return None
        image, channel, pixel = self._split(view.offset, each)
        strides: list[Known] = []
        last_channel: dims.Dim = channel
        last_pixel: dims.Dim = pixel
        for d, s in zip(view.shape, view.strides, strict=True):
            if s == 0 or d == 1:
                strides.append(0)
            elif dims.exact_div(s, each) is not None:
                strides.append(s)
            elif (step := _exact_quotient(s, self.pixels)) is not None:
                strides.append(step)
                last_channel = dims.add(last_channel, dims.mul(step, dims.sub(d, 1)))
            else:
                stride = dims.known(dims.mul(s, self.channels))
                if stride is None:
                    return None
                strides.append(stride)
                last_pixel = dims.add(last_pixel, dims.mul(s, dims.sub(d, 1)))
        if not (_is_below(last_channel, self.channels) and _is_below(last_pixel, self.pixels)):
            return None
        offset = dims.known(dims.total((dims.mul(image, each), dims.mul(pixel, self.channels), channel)))
        return None if offset is None else View(view.storage, view.shape, tuple(strides), offset)

    def _split(self, offset: Known, each: Known) -> tuple[Known, Known, Known]:
        """Image, channel and pixel of an element; the caller checks that they are in range."""
        if offset == 0:
            return 0, 0, 0
        if isinstance(offset, int) and isinstance(each, int) and isinstance(self.pixels, int):
            return offset // each, offset % each // self.pixels, offset % self.pixels
        channel = _exact_quotient(offset, self.pixels)
        return (0, 0, offset) if channel is None else (0, channel, 0)


def _exact_quotient(a: Known, b: Known) -> int | None:
    """a / b, if it is an integer that is known at compile time."""
    found = dims.exact_div(a, b)
    return found if isinstance(found, int) else None


def _is_below(a: dims.Dim, b: Known) -> bool:
    return dims.at_least(dims.sub(dims.sub(b, 1), a), 0)


def _prefers_nhwc(group: Convolution, analysis: Analysis) -> bool:
    """Whether a convolution is faster on NHWC images."""
    filters, channels = group.w.shape[0], group.w.shape[1]
    if group.x.shape[1] == 0 or im2col.has_few_outputs(group, analysis) is True:
        return False
    if on_tiles.takes(group, analysis):
        return True
    if isinstance(group, IntegerConvolution):
        is_allowed = analysis.target.policy.allows("quantized.conv_nhwc")
        return is_allowed and quantized_conv_nhwc.suits(group, analysis)
    by_row = group.x.shape[1] != 1 and stem.has_few_channels(group)
    if not nhwc.suits(group, by_row=by_row) or not analysis.target.policy.allows(*_nhwc_variants(group, analysis)):
        return False
    if group.groups == 1:
        return stem.has_few_channels(group) or dot_product.has_full_vectors(group, analysis.isa)
    each = int(filters) // group.groups
    return each == channels == 1 or (each >= MIN_FILTERS and int(channels) >= MIN_FILTERS)


def _takes_both(group: Convolution, analysis: Analysis) -> bool:
    """Whether the kernel of a convolution reads and writes NCHW images as well as NHWC ones."""
    return on_tiles.takes(group, analysis) or strided_windows.takes(group, analysis)


def _nhwc_variants(group: Convolution, analysis: Analysis) -> list[str]:
    """The kernel variants on vectors that could read the image as NHWC."""
    if nhwc.is_depthwise(group):
        return ["quantized.depthwise_nhwc" if isinstance(group, CentredConvolution) else "conv.depthwise_nhwc"]
    few = ["conv.dot_product"] if dot_product.has_few_filters(group, analysis.isa) else []
    return [*few, *(["conv.stem"] if stem.has_few_channels(group) else []), "conv.winograd_nhwc", "conv.nhwc"]


# -- which storages become NHWC


def _kept(groups: Sequence[Group], analysis: Analysis) -> set[Storage]:
    """Images that stay NCHW because integer convolutions transpose rows of them, which take no others."""
    return {
        group.x.storage
        for group in groups
        if isinstance(group, IntegerConvolution)
        and not on_tiles.takes(group, analysis)
        and quantized_conv_nhwc.takes_rows(group, analysis)
    }


def _candidates(groups: Sequence[Group], wanted: set[int], kept: set[Storage]) -> dict[Storage, Image]:
    """The images that wanted convolutions and pooling read and write, those that resampling computes these from, and
    those that loops compute from these or compute these from; without those that are kept.
    """
    found: dict[Storage, Image] = {}
    for group in groups:
        if isinstance(group, Pool) or id(group) in wanted:
            assert isinstance(group, (Convolution, Pool))
            for view in (group.x, *group.extra, *group.outputs):
                if view.storage not in kept and view.storage not in found and (image := _image_of(view)) is not None:
                    found[view.storage] = image
    loops, count = [g for g in groups if isinstance(g, Loop)], -1
    resampled = [g for g in groups if isinstance(g, Resample)]
    while count != len(found):
        count = len(found)
        for group in resampled:
            is_read = any(view.storage in found for view in group.outputs)
            is_new = group.x.storage not in found and group.x.storage not in kept
            if is_read and is_new and (image := _image_of(group.x)) is not None:
                found[group.x.storage] = image
        for loop in loops:
            seen = [v for v in (*loop.inputs, *loop.outputs) if v.storage in found]
            for view in (*loop.inputs, *loop.outputs):
                like = next((v for v in seen if _has_same_layout(v, view)), None)
                if like is not None and view.storage not in found and view.storage not in kept:
                    found[view.storage] = found[like.storage]
    return found


def _has_same_layout(a: View, b: View) -> bool:
    """Whether two views cover their storages from the start in the same order."""
    return a.strides == b.strides and a.offset == b.offset == 0 and a.storage.elements == b.storage.elements


def _convertible(
    groups: Sequence[Group], wanted: set[int], images: dict[Storage, Image], shared: Collection[Storage]
) -> dict[Storage, Image]:
    """The temporaries that every group can access as NHWC, and that groups elsewhere do not access."""
    excluded = {s for s in images if s.kind != "temporary" or s in shared}
    for group in groups:
        takes_nhwc = isinstance(group, (Loop, Pool, Resample, Contraction)) or id(group) in wanted
        for view in (*group.reads, *group.writes):
            if (image := images.get(view.storage)) is None:
                continue
            is_sampled = isinstance(group, (GridSample, RoiAlign)) and view is group.operands[0]
            found = image.as_nhwc(view) if takes_nhwc or is_sampled else None
            if found is None or (isinstance(group, Contraction) and found.strides[-1] != 1):
                excluded.add(view.storage)
    resampled, count = [g for g in groups if isinstance(g, Resample)], -1
    while count != len(
        excluded
    ):  # an image is resampled along the lanes of both layouts, but not from one to the other
        count = len(excluded)
        excluded |= {v.storage for g in resampled if g.x.storage in excluded for v in g.outputs if _is_wide(v, images)}
    return {storage: image for storage, image in images.items() if storage not in excluded}


def _is_wide(view: View, images: dict[Storage, Image]) -> bool:
    """Whether channels of an image are what vectors lie along once it is NHWC."""
    image = images.get(view.storage)
    return image is not None and not (isinstance(image.channels, int) and image.channels < MIN_ROW)


def _with_split_axes(loop: Loop, images: dict[Storage, Image]) -> Loop:
    """The loop with separate axes for batch, channels and pixels of the images that it accesses."""
    axis, has_index = 0, any(isinstance(s, Reduce) and s.kind.startswith("arg") for s in loop.expression.steps)
    while axis < len(loop.extents):
        is_reduced = axis >= len(loop.extents) - loop.reduced
        sizes = next(filter(None, (_sizes(v, axis, images) for v in (*loop.inputs, *loop.outputs))), None)
        if sizes is None or (has_index and is_reduced):
            axis += 1
            continue
        loop = replace(
            loop, extents=(*loop.extents[:axis], *sizes, *loop.extents[axis + 1 :]), reduced=loop.reduced + is_reduced,
            inputs=tuple(views.split(v, axis, sizes) for v in loop.inputs),
            outputs=tuple(views.split(v, axis, sizes) if axis < len(v.shape) else v for v in loop.outputs),
        )  # fmt: skip
    return loop


def _sizes(view: View, axis: int, images: dict[Storage, Image]) -> tuple[Known, Known] | None:
    """The sizes of two axes in place of one that merges pixels with channels, or channels with the batch; else None."""
    image = images.get(view.storage)
    if image is None or axis >= len(view.shape):
        return None
    extent, stride = view.shape[axis], view.strides[axis]
    for step, size in ((1, image.pixels), (image.pixels, image.channels)):
        if stride == step and extent != size:
            count = dims.exact_div(extent, size)
            return None if count is None or count == 1 else (count, size)
    return None


def _image_of(view: View) -> Image | None:
    """The image whose channels, or some of them, a view of (batch, channels, *spatial) has.

    None if the storage is no such image, or if NCHW and NHWC are the same for it.
    """
    pixels = dims.known(dims.product(view.shape[2:]))
    if pixels is None or pixels == 1:
        return None
    channels = (
        dims.exact_div(view.storage.elements, dims.mul(pixels, view.shape[0]) or 0) if view.shape[0] != 0 else None
    )
    if channels is None or channels == 1:
        return None
    dense = views.dense_strides(view.shape[2:])
    is_even = all(d == 1 or s == t for d, s, t in zip(view.shape[2:], view.strides[2:], dense, strict=True))
    is_one = view.shape[0] == 1 or view.strides[0] == dims.mul(channels, pixels)
    return Image(channels, pixels) if is_even and is_one and (view.strides[1] == pixels or view.shape[1] == 1) else None


def _with_nhwc_views(group: Group, images: dict[Storage, Image]) -> Group:
    return group.with_views(lambda view: _nhwc_view(view, images))


def _nhwc_view(view: View, images: dict[Storage, Image]) -> View:
    image = images.get(view.storage)
    found = image.as_nhwc(view) if image is not None else view
    assert found is not None
    return found
