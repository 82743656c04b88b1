"""Packs an image for AMX convolutions of int8 slices: three or four bytes a number, padded, one scale for each image.

    [batch][channels / 64][z][y][x][slice][64 channels], then fourth slices [batch][channels / 64][z][y][x][64 channels]

A sum runs over many pixels, so all pixels of an image share the scale of its largest number. ``image_magnitudes`` finds
it, stretch by stretch of the rows, and ``pack_image_int8_slices`` makes the slices. Where the largest number is an
outlier (``FOURTH_RATIO``), or some stretch is much darker than another (``DARK``), numbers have a fourth slice, stored
after all others. Images without negative numbers, such as results of ReLU (``lower.analysis.signs``), have unsigned
leading slices: the additional bit halves the rounding error of the image, which is the largest error of a sum. An image
that needs more than four slices (``MAX_RATIO``) or has no scale sets its flag and is convolved in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Storage, View
from sardonyx.providers.cpu.kernels.common.window import PerAxis
from sardonyx.providers.cpu.kernels.conv.packed_image import PackedImageArgs, PackedImageLayout, zero_padding
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import HALF
from sardonyx.providers.cpu.kernels.split.int8_slices import SLICES, STEP, Magnitudes, Scale, has_no_scale, peak_to_mean
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat, named
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i8, i32, i64, u8, u32
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.records import Record, replace

FOURTH_RATIO, MAX_RATIO = 16.0, 4096.0
"""Times the mean of the others' sizes that the largest number of an image may be, with three slices and with four.
Zeros do not count. (Normal numbers have 6.)"""
DARK = 32.0
"""Times the largest number of a stretch that the largest of its image may be, with three slices."""
STRETCH, SEGMENT = 16, 64
"""Pixels of a row that are measured as one, and that are sliced at a time: a collapsed image is a single row."""
_INFINITE = 0x7F80_0000


class NhwcImageArgs(Arguments[M, N]):
    """The parameters of an NHWC image: strides, channels, sizes and batch."""

    b: N
    z: N
    y: N
    x: N
    channels: N
    size: PerAxis[M, N]
    batch: N

    @staticmethod
    def declared() -> NhwcImageArgs[Memory, DType]:
        return NhwcImageArgs(i64, i64, i64, i64, i64, PerAxis.declared(), i64)

    @staticmethod
    def of(source: View) -> NhwcImageArgs[Ref, Known]:
        b, _, z, y, x = source.strides
        batch, channels, *size = source.shape
        return NhwcImageArgs(b, z, y, x, channels, PerAxis(*size), batch)


class _Source:
    """An NHWC image of f32 numbers."""

    def __init__(self, k: Kernel, x: Buf, args: NhwcImageArgs[Buf, Val]) -> None:
        self.k, self.x = k, x
        self.b, self.z, self.y, self.pixel, self.channels = args.b, args.z, args.y, args.x, args.channels
        self.size_y, self.width, self.batch = args.size.y, args.size.x, args.batch
        self.lines = args.size.z * self.size_y
        self.stretches = ceil_div(self.width, STRETCH)
        """Stretches of a row."""

    def row(self, image: Val, line: Val) -> Buf:
        return self.x.at(image * self.b + line // self.size_y * self.z + line % self.size_y * self.y)

    def vectors(self, at: Buf, pixels: Val, do: Callable[[Val], None]) -> None:
        """Call ``do`` with all numbers of pixels, a vector at a time; lanes without a number are zero."""
        k = self.k
        with k.either(self.pixel.eq(self.channels)) as (close, apart):
            with close:
                for t in k.tiles(pixels * self.channels, HALF):
                    do(t.keep(at.load(t), 0.0))
            with apart, k.loop(0, pixels) as i:
                for t in k.tiles(self.channels, HALF):
                    do(t.keep(at.at(i * self.pixel).load(t), 0.0))


class MagnitudeArgs(Arguments[M, N]):
    """The parameters of ``image_magnitudes``: an image, and what it finds for each stretch."""

    is_inline: ClassVar[bool] = True
    x: M
    largest: M
    """The largest magnitude, as bits."""
    sizes: M
    """The sum of the other magnitudes."""
    counts: M
    """How many are not zero."""
    source: NhwcImageArgs[M, N]

    @staticmethod
    def declared() -> MagnitudeArgs[Memory, DType]:
        return MagnitudeArgs(Memory(f32), Memory(u32), Memory(f32), Memory(f32), NhwcImageArgs.declared())


@kernel(args=MagnitudeArgs.declared())
def image_magnitudes(k: Kernel, args: MagnitudeArgs[Buf, Val]) -> None:
    """For each stretch: its largest magnitude, as bits, the sum of the other magnitudes, and how many are not zero."""
    source = _Source(k, args.x, args.source)
    with k.share(source.batch * source.lines * source.stretches) as at:
        found, first, line = Magnitudes(k), at % source.stretches * STRETCH, at // source.stretches
        row = source.row(line // source.lines, line % source.lines)
        source.vectors(row.at(first * source.pixel), k.min(source.width - first, STRETCH), found.add)
        args.largest.store(at, found.top)
        args.sizes.store(at, found.others)
        args.counts.store(at, found.count)


class PackSlicesArgs(Arguments[M, N]):
    """The parameters of ``pack_image_int8_slices``."""

    is_inline: ClassVar[bool] = True
    magnitudes: MagnitudeArgs[M, N]
    y: M
    scales: M
    fourth: M
    """Whether an image has fourth slices."""
    flags: M
    """Whether an image is convolved in f32."""
    layout: PackedImageArgs[M, N] = field(metadata=named("y"))
    blocks: N
    more: N
    """Elements before the fourth slices."""


def _params(first: DType) -> Params:
    memory = (Memory(i8), Memory(f32), Memory(i32), Memory(i32))
    return {"args": PackSlicesArgs(MagnitudeArgs.declared(), *memory, PackedImageArgs.declared(), i64, i64)}


@kernel(_params)
def pack_image_int8_slices(k: Kernel, args: PackSlicesArgs[Buf, Val], *, first: DType) -> None:
    """Slice NHWC images into ``y``, with a scale for each image.

    ``fourth`` tells whether an image has fourth slices, ``flags`` whether it cannot be sliced.
    """
    source, y, layout, blocks = _Source(k, args.magnitudes.x, args.magnitudes.source), args.y, args.layout, args.blocks
    zero_padding(k, y, layout, source.batch)
    with k.when(_has_fourth(k, source, args.magnitudes)):  # memory that nobody writes to takes no pages
        zero_padding(k, y.at(args.more), _of_fourth_slices(layout), source.batch)
    known, top, has_fourth, is_short = k.var(-1), k.var(k.zeros(u32)), k.var(0), k.var(0)
    segments = ceil_div(source.width, SEGMENT)
    with k.share(source.batch * source.lines * segments * blocks) as at:
        block, rest = at % blocks, at // blocks
        left, rest = rest % segments * SEGMENT, rest // segments
        line, image = rest % source.lines, rest // source.lines
        with k.when(image.ne(known.get())):
            known.set(image)
            size, ratio, is_dark = _known(k, source, image, args.magnitudes)
            top.set(size)
            has_fourth.set(k.cast(_needs_fourth(ratio, is_dark), i64))
            is_short.set(k.cast(has_no_scale(size) | ~(ratio <= MAX_RATIO), i64))
        scale = Scale(k, top.get(), first)
        with k.when((line + left + block).eq(0)):
            args.scales.store(image, scale.value)
            args.fourth.store(image, k.cast(has_fourth.get(), i32))
            args.flags.store(image, k.cast(is_short.get(), i32))
        strides, front = layout.strides, layout.front
        place = image * strides.b + block * strides.block
        place = place + (line // source.size_y + front.z) * strides.z
        place = place + (line % source.size_y + front.y) * strides.y
        place = place + (left + front.x) * strides.x
        row, count = source.row(image, line).at(left * source.pixel), k.min(source.width - left, SEGMENT)
        fourth = y.at(args.more + place // SLICES)
        segment = _Segment(k, source, row, count, y.at(place), fourth, strides.x, block * STEP, scale)
        with k.either(has_fourth.get().ne(0)) as (some, none):
            with some:
                segment.put(has_fourth=True)
            with none:
                segment.put(has_fourth=False)


def _has_fourth(k: Kernel, source: _Source, given: MagnitudeArgs[Buf, Val]) -> Val:
    """Whether some image has fourth slices."""
    found = k.var(0)
    with k.loop(0, source.batch) as image:
        _, ratio, is_dark = _known(k, source, image, given)
        found.set(found.get() | k.cast(_needs_fourth(ratio, is_dark), i64))
    return found.get().ne(0)


def _needs_fourth(ratio: Val, is_dark: Val) -> Val:
    return (ratio > FOURTH_RATIO) | is_dark


def _of_fourth_slices(layout: PackedImageArgs[Buf, Val]) -> PackedImageArgs[Buf, Val]:
    """The layout of the fourth slices: that of the three others, with a third of its distances."""
    s = layout.strides
    strides = replace(s, b=s.b // SLICES, z=s.z // SLICES, y=s.y // SLICES, x=s.x // SLICES)
    plane, over, used = (n // SLICES for n in (layout.plane, layout.over, layout.used))
    return replace(layout, strides=strides, plane=plane, over=over, used=used)


def _known(k: Kernel, source: _Source, image: Val, given: MagnitudeArgs[Buf, Val]) -> tuple[Val, Val, Val]:
    """The largest magnitude of an image, as bits; its ratio to the mean of the other magnitudes; and whether some
    stretch that is not all zero is much darker than the image (``DARK``).
    """
    each = source.lines * source.stretches
    top, least = k.var(k.zeros(u32, HALF)), k.var(k.const(_INFINITE, u32, HALF))
    for t in k.tiles(each, HALF):
        size = given.largest.load(image * each + t.index, HALF, t.mask)
        top.set(k.max(top.get(), size))
        least.set(k.min(least.get(), k.select(size.eq(0), _INFINITE, size)))
    found, total, count = top.get().max(), k.var(k.zeros(f32, HALF)), k.var(k.zeros(f32, HALF))
    for t in k.tiles(each, HALF):
        there = image * each + t.index
        size, others = (memory.load(there, HALF, t.mask) for memory in (given.largest, given.sizes))
        total.set(total.get() + others + k.bitcast(k.select(size.eq(k.splat(found, HALF)), 0, size), f32))
        count.set(count.get() + given.counts.load(there, HALF, t.mask))
    ratio = peak_to_mean(k, found, total.get().sum(), count.get().sum())
    return found, ratio, k.bitcast(found, f32) > k.bitcast(least.get().min(), f32) * DARK


class _Segment(Record):
    """Slices 64 channels of ``count`` pixels of a row."""

    k: Kernel
    source: _Source
    row: Buf
    count: Val
    to: Buf
    fourth: Buf
    pixel: Val
    """The stride of pixels, in elements of the first three slices."""
    first: Val
    scale: Scale

    def put(self, *, has_fourth: bool) -> None:
        k, left = self.k, self.source.channels - self.first
        masks = [k.mask(left - j, HALF) for j in range(0, STEP, HALF)]
        with k.either(left >= STEP) as (full, edge):
            with full:
                self._pixels([None] * len(masks), has_fourth)
            with edge:
                self._pixels(masks, has_fourth)

    def _pixels(self, masks: Sequence[Val | None], has_fourth: bool) -> None:
        k, row = self.k, self.row.at(self.first)
        places = [(self.to.at(index * STEP), self.pixel) for index in range(SLICES)]
        places.append((self.fourth, self.pixel // SLICES))
        with k.loop(0, self.count) as i:
            pixel = row.at(i * self.source.pixel)
            numbers = [pixel.load(j * HALF, HALF, mask) for j, mask in enumerate(masks)]
            for (place, stride), bits in zip(places, self.scale.step(numbers, has_fourth=has_fourth), strict=False):
                place.as_type(u8).store(i * stride, bits)


# -- what convolutions ask for


class SlicedImage(Record):
    """An image in slices."""

    tiles: Storage
    scales: Storage
    fourth: Storage
    flags: Storage
    first: DType
    """The type of first slices: unsigned bytes if no number is negative."""


def packing_steps(source: View, layout: PackedImageLayout, nodes: Any, first: DType) -> tuple[list[Step], SlicedImage]:
    """The steps that pack an image, over (batch, channels, z, y, x), into int8 slices, and their result."""
    batch, stretches = layout.batch, dims.ceildiv(layout.size[2], STRETCH)
    each = expressible(dims.product((batch, *layout.size[:2], stretches)))
    largest, sizes, counts = (Storage("temporary", dtype, each) for dtype in (u32, f32, f32))
    made = SlicedImage(
        Storage("temporary", i8, expressible(dims.add(layout.elements, dims.floordiv(layout.elements, SLICES)))),
        Storage("temporary", f32, batch),
        Storage("temporary", i32, batch), Storage("temporary", i32, batch), first,
    )  # fmt: skip
    found = MagnitudeArgs[Ref, Known](Ref.of(source), Ref(largest), Ref(sizes), Ref(counts), NhwcImageArgs.of(source))
    count = dims.known(dims.product((4, *source.shape))) or 0
    measured = frozenset(("largest", "sizes", "counts"))
    before = Step(image_magnitudes(), flat(args=found), measured, nodes, 0, 0, count, "the scale of an image")
    args = PackSlicesArgs(
        found, Ref(made.tiles), Ref(made.scales), Ref(made.fourth), Ref(made.flags), layout.operand(),
        blocks=layout.blocks, more=layout.elements,
    )  # fmt: skip
    nbytes = dims.known(dims.add(count, layout.elements)) or 0
    writes = frozenset(("y", "scales", "fourth", "flags"))
    spec, words = pack_image_int8_slices(first=first), f"{SLICES} or {SLICES + 1} slices"
    return [before, Step(spec, flat(args=args), writes, nodes, 0, 0, nbytes, words)], made
