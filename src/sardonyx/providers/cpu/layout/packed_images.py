"""Chooses the intermediate images that are stored packed for AMX convolutions, once for all groups.

An image that an AMX convolution, a depthwise convolution or a pooling writes and an AMX convolution reads is stored in
bf16 terms, padded for the widest of its readers (``conv.packed_image``). AMX convolutions also read residuals packed,
and windows over NHWC images read one term; an unpacked copy is kept only for other readers.

Quantized images are packed as bytes, padded with the zero point that their readers share.

One term takes half the bytes of f32. So at one term, and of bytes, an image that is only added to sums is packed as
well. So is, in one bf16 term, one that reaches AMX convolutions through a max pooling: the maximum of rounded numbers
is the rounded maximum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from functools import partial

import numpy as np

from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Convolution, Group, IntegerConvolution, Pool, Storage, View
from sardonyx.providers.cpu.kernels.common import nhwc_window
from sardonyx.providers.cpu.kernels.common.window import WindowGeometry
from sardonyx.providers.cpu.kernels.conv import depthwise_nhwc, int8_slices, summed_pair
from sardonyx.providers.cpu.kernels.conv import on_tiles as conv_on_tiles
from sardonyx.providers.cpu.kernels.conv.packed_image import BYTES, ImageFormat, PackedImageLayout, most_compact
from sardonyx.providers.cpu.kernels.conv.tile_geometry import Geometry, geometry
from sardonyx.providers.cpu.kernels.image.pool_nhwc import MAX
from sardonyx.providers.cpu.language.values import f32
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Packed, Ref
from sardonyx.records import Record, replace

ADDED = (1, 3)
"""Terms in which an f32 image that is added to sums may be stored. Three represent f32 exactly, and one is what
``medium`` asks for. Two would round to 16 bits a residual that ``high`` adds in f32."""


ONE_TERM = ImageFormat.of_terms(1)


class Image(Record):
    """An intermediate image that is stored packed for convolutions on tiles."""

    view: View
    """The unpacked view that its producer would write."""
    layout: PackedImageLayout
    """The layout of ``storage``."""
    storage: Storage
    has_unpacked: bool
    """An unpacked copy is stored, too."""
    fill: Ref | None = None
    """The zero point of a quantized image, with which it is padded."""

    def is_of(self, view: View) -> bool:
        """Whether a view is the whole image as it was written.

        It is not if the view takes a batch of images for the planes of one, or the other way round.
        """
        return _is_all(view, self.view)


class _Use(Record):
    group: Group
    view: View


def images(groups: Sequence[Group], analysis: Analysis) -> dict[Storage, Image]:
    """The intermediate images that are stored packed, by the storage that they replace."""
    if not analysis.isa.amx:
        return {}
    reads: dict[Storage, list[_Use]] = defaultdict(list)
    writes: dict[Storage, list[_Use]] = defaultdict(list)
    for group in groups:
        for view in group.reads:
            reads[view.storage].append(_Use(group, view))
        for view in group.writes:
            writes[view.storage].append(_Use(group, view))
    kinds = _Kinds.of(groups, reads, analysis)
    found: dict[Storage, Image] = {}
    packing: set[int] = set()
    for storage, writers in writes.items():
        group = writers[0].group
        is_own = storage.kind == "temporary" and storage not in analysis.shared
        if is_own and len(writers) == 1 and storage not in analysis.summed_pairs:
            fmt = kinds.format(group, writers[0].view, reads[storage])
            made = _image(writers[0].view, reads[storage], kinds, fmt) if fmt else None
            if made is not None and id(group) not in packing:
                found[storage] = made
                packing.add(id(group))
    return found


class _Kinds(Record):
    """Groups that read or write packed images, by ``id``."""

    on_tiles: Mapping[int, ImageFormat]
    """Convolutions on tiles in bf16 terms or bytes, with the format of the images that they read."""
    sliced: Container[int]
    """Convolutions in int8 slices: they read f32 images, and may write packed ones."""
    sliding: Container[int]
    """Depthwise convolutions and poolings of NHWC images, which may read and write packed images."""
    moving: Container[int]
    """Max poolings whose results only convolutions on tiles in one bf16 term read."""

    @staticmethod
    def of(groups: Sequence[Group], reads: Mapping[Storage, Sequence[_Use]], analysis: Analysis) -> _Kinds:
        chosen = {id(g): (g, analysis.choices[id(g)].name) for g in groups if isinstance(g, Convolution)}
        fixed = {number: one for number, one in chosen.items() if analysis.choices[number].few is None}
        sliced = {number for number, (_, name) in fixed.items() if name == "conv.int8_slices"}
        on_tiles = {
            number: conv_on_tiles.format_of(g, analysis)
            for number, (g, name) in fixed.items()
            if name in ("conv.on_tiles", summed_pair.NAME)
        }
        sliding = {id(g) for g in groups if _slides(g, analysis)}
        pools = [g for g in groups if isinstance(g, Pool) and id(g) in sliding and g.kind == MAX]
        moving = set()
        for g in pools:
            (out,) = g.outputs
            uses = reads.get(out.storage, ())
            is_moving = all(on_tiles.get(id(use.group)) == ONE_TERM and _is_all(use.view, out) for use in uses)
            if out.storage.kind == "temporary" and not g.epilogue.steps and uses and is_moving:
                moving.add(id(g))
        return _Kinds(on_tiles, sliced, sliding, moving)

    def format(self, writer: Group, out: View, uses: Sequence[_Use]) -> ImageFormat | None:
        """The format in which ``writer`` may write an image packed; None if it may not.

        Bytes stay bytes. Of terms, a convolution writes as many as it multiplies, a depthwise convolution or pooling as
        many as all readers multiply.
        """
        own = ImageFormat.of_terms(int8_slices.TERMS) if id(writer) in self.sliced else self.on_tiles.get(id(writer))
        if out.dtype in BYTES:
            return ImageFormat(out.dtype, 1) if own is not None or id(writer) in self.sliding else None
        if id(writer) not in self.sliding:
            return None if own is None or own.is_quantized else own
        wanted = {self.on_tiles[id(use.group)] for use in uses if id(use.group) in self.on_tiles}
        return wanted.pop() if len(wanted) == 1 else None


def packed_inputs(groups: Sequence[Group], analysis: Analysis) -> set[Storage]:
    """The images that convolutions on tiles would read packed, if their producers can pack them."""
    readers = (g for g in groups if isinstance(g, Convolution) and views.is_whole(g.x))
    return {
        g.x.storage
        for g in readers
        if conv_on_tiles.takes(g, analysis) and conv_on_tiles.slices_refusal(g, analysis) is not None
    }


def _slides(group: Group, analysis: Analysis) -> bool:
    """Whether a group is a depthwise convolution or pooling of NHWC images that can read and write packed images."""
    if isinstance(group, Convolution):
        return depthwise_nhwc.exchanges_packed_images(group, analysis)
    return isinstance(group, Pool) and nhwc_window.supports_packed_images(group, analysis)


def _image(out: View, uses: Sequence[_Use], kinds: _Kinds, fmt: ImageFormat) -> Image | None:
    if not (views.is_whole(out) or views.is_whole(views.permuted(out, (0, *range(2, len(out.shape)), 1)))):
        return None
    found, rest, is_worth = list[Geometry](), list[_Use](), fmt.terms == 1
    zero: View | None = None
    for use in uses:
        reader, view = use.group, use.view
        if not isinstance(reader, (Convolution, Pool)) or not _is_all(view, out):
            rest.append(use)
        elif id(reader) in kinds.sliding and view is reader.x and view.dtype is f32 and fmt == ONE_TERM:
            is_worth &= id(reader) in kinds.moving
        elif not isinstance(reader, Convolution) or kinds.on_tiles.get(id(reader)) is None:
            rest.append(use)
        elif view is reader.x:
            if kinds.on_tiles[id(reader)] != fmt or not _pads_alike(reader, zero):
                rest.append(use)
                continue
            zero = reader.zero if isinstance(reader, IntegerConvolution) else None
            found.append(geometry(reader, WindowGeometry.of(reader, collapse=False), fmt))
        elif not any(view is one for one in reader.extra) or not _may_be_added(kinds.on_tiles[id(reader)], fmt, out):
            rest.append(use)
    layouts = [one.layout for one in found]
    if not layouts and is_worth and uses and not rest:
        layouts.append(_unpadded(out, fmt))
    if not layouts or not all(isinstance(d, int) for one in layouts for d in one.back):
        return None
    layout = most_compact(_widest(layouts), ((one.kernel, one.dilations) for one in found))
    fill = None
    if fmt.is_quantized:
        fill = (
            Ref(
                Packed(
                    "constant",
                    fmt.dtype,
                    1,
                    key=("no padding", fmt.dtype.name),
                    make=partial(np.zeros, 1, fmt.dtype.numpy),
                )
            )
            if zero is None
            else Ref.of(zero)
        )
    return Image(out, layout, Storage("temporary", fmt.dtype, layout.elements), bool(rest), fill)


def _may_be_added(reader: ImageFormat, fmt: ImageFormat, out: View) -> bool:
    """Whether a convolution on tiles may read a packed image that it adds to its sums."""
    return fmt.is_quantized or (reader == fmt and (fmt.terms in ADDED or out.dtype is not f32))


def _pads_alike(reader: Convolution, zero: View | None) -> bool:
    """Whether the padding that a convolution wants is known, and is ``zero`` if that is given."""
    if not isinstance(reader, IntegerConvolution):
        return True
    own, other = reader.zero.storage.tensor, None if zero is None else zero.storage.tensor
    return own is not None and (other is None or _element(reader.zero) == _element(zero))


def _element(view: View | None) -> int:
    """The one element of a constant."""
    assert view is not None and view.storage.tensor is not None
    return int(view.storage.tensor.numpy().reshape(-1)[int(view.offset)])


def _is_all(view: View, out: View) -> bool:
    return view.shape == out.shape and views.same_elements(view, out)


def _unpadded(out: View, fmt: ImageFormat) -> PackedImageLayout:
    """The layout of an image without padding."""
    batch, channels, *size = out.shape
    lead = (1,) * (3 - len(size))
    return PackedImageLayout(fmt, batch, int(channels), (*lead, *size), (0, 0, 0), (0, 0, 0))


def _widest(layouts: Sequence[PackedImageLayout]) -> PackedImageLayout:
    """One layout with the largest padding of several on each side."""
    front = tuple(max(one.front[i] for one in layouts) for i in range(3))
    back: list[Known] = [max(int(one.back[i]) for one in layouts) for i in range(3)]
    return replace(layouts[0], front=front, back=tuple(back), overrun=max(one.overrun for one in layouts))
