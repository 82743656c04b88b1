"""The packed image layouts of AMX convolutions: padded, and split into bf16 terms, or quantized to bytes.

Any 16 pixels at equal distances are the rows of a tile, so convolutions of every stride, dilation and padding read
pixels in place. There are two layouts (for bytes, with 64 channels instead of 32 and a single term):

    channel-blocked   [batch][channels / 32][z][y][x][term][32 channels]
    compact           [batch][term][z][y][x][channels]

**Channel-blocked**: a pixel of a block is one cache line for each term, and a row of a tile is what one tap reads of
it. Blocks are an odd multiple of 32 pixels apart, so that the same pixel of two blocks does not fall into the same L1
sets.

**Compact**: for channels that do not fill blocks of 32. Neighbouring taps of a row read one contiguous span of
numbers, cut into tile rows of 32. Three channels and seven taps are a single tile. The last tile of a span reads on
into the next pixels, where the weights are zero.

Padding is zeros before and after rows and planes, of quantized images their zero point; the padding after a row is
also that before the next one. Channels beyond the last are zero, of bytes undefined: their weights are zero.

**Representable range.** With several terms, an image is stored multiplied by ``LIFT``, and a convolution divides its
sums by that: no term of any small number is a denormal then, which AMX would take for zero, and no product that counts
is one. Small numbers are common in images: a Swish of large negative numbers, or what a gate lets through. Infinities,
NaN and numbers from ``LARGEST`` on are encoded so that every sum that contains them is NaN, which is how a convolution
finds them: their first term is NaN, and the others hold their bits, not lifted. A sum that overflows is not finite
either. One term is bf16 itself, rounded to even, with its own infinities and NaN; denormals count as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Storage
from sardonyx.providers.cpu.kernels.common.matrices import Matrix
from sardonyx.providers.cpu.kernels.common.window import PerAxis
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, LARGEST, split_terms
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, named
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bf16, f32, i8, i64, u8, u16, u32
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref
from sardonyx.records import Record, replace

BLOCK = 32
"""Channels of a block of bf16 numbers."""
BYTES = (i8, u8)
OVERRUN = 4 * HALF
"""Default of ``overrun``, enough for usual strides: one value for all, so that convolutions share images and results
may overwrite residuals."""
LIFT = 2.0**32
"""The factor of images in several terms. The smallest denormal becomes 2^-117, and products whose sum is one of the
smallest denormals stay above 2^-126."""
_SIGN, HIGH_HALF, NAN = 0x8000_0000, 0xFFFF_0000, 0x7FC0_0000
_ABS, _LARGEST = 0x7FFF_FFFF, int(np.float32(LARGEST).view(np.uint32))


def block_of(dtype: DType) -> int:
    """Channels of a block, which are a cache line and a row of a tile."""
    return LINE_NBYTES // dtype.itemsize


class ImageFormat(Record):
    """How a packed image stores a number: ``terms`` elements of type ``dtype``."""

    dtype: DType
    terms: int

    @property
    def is_quantized(self) -> bool:
        return self.dtype in BYTES and self.terms == 1

    @property
    def block(self) -> int:
        """Channels of a block."""
        return block_of(self.dtype)

    @property
    def nbytes(self) -> int:
        """Of a number."""
        return self.terms * self.dtype.itemsize

    @staticmethod
    def of_terms(terms: int) -> ImageFormat:
        return ImageFormat(bf16, terms)


class PackedImageLayout(Record):
    """A packed image layout. Distances are in pixels."""

    format: ImageFormat
    batch: Known
    channels: int
    size: tuple[Known, ...]
    """z, y, x."""
    front: tuple[int, ...]
    back: tuple[Known, ...]
    """Padding before and after the image along each axis."""
    compact: int = 0
    """Numbers from pixel to pixel in the compact layout; 0: channel-blocked."""
    overrun: int = OVERRUN
    """Pixels after the end at which a tile row may still begin."""

    @property
    def terms(self) -> int:
        return self.format.terms

    @property
    def block(self) -> int:
        """Channels of a block."""
        return self.format.block

    @property
    def blocks(self) -> int:
        return 1 if self.compact else -(-self.channels // self.block)

    @property
    def unit(self) -> int:
        """Elements from pixel to pixel."""
        return self.compact or self.terms * self.block

    @property
    def room(self) -> int:
        """Channels of a pixel, including those that are zero."""
        return self.compact or self.blocks * self.block

    @property
    def row(self) -> Known:
        return expressible(dims.add(self.size[2], dims.maximum(self.front[2], self.back[2])))

    @property
    def deep(self) -> Known:
        high = dims.total((self.front[1], self.size[1], self.back[1]))
        return expressible(dims.mul(high, self.row))

    @property
    def used(self) -> Known:
        """Pixels of a plane that windows read, padding included."""
        high = dims.total((self.front[0], self.size[0], self.back[0]))
        return expressible(dims.add(dims.mul(high, self.deep), self.front[2]))

    @property
    def plane(self) -> Known:
        return expressible(dims.add(dims.mul(dims.ceildiv(dims.sub(self.used, 32), 64), 64), 32))

    @property
    def zeroes_tail(self) -> bool:
        """Whether pixels that no window reads are zero as well.

        Rows of a tile that are no output read them, and their sums are dropped. But with several terms all sums are
        checked for NaN, and in the compact layout the last tile of a span reads on into these pixels.
        """
        return self.terms > 1 or (self.compact > 0 and not self.format.is_quantized)

    @property
    def planes(self) -> int:
        """Planes of an image: one for each term (compact) or channel block."""
        return self.terms if self.compact else self.blocks

    @property
    def elements(self) -> Known:
        pixels = dims.product((self.batch, self.planes, self.plane))
        return expressible(dims.mul(dims.add(pixels, self.tail_pixels), self.unit))

    @property
    def tail_pixels(self) -> int:
        """Pixels after the last plane."""
        return self.overrun + -(-self.block // self.unit)

    @property
    def has_no_padding(self) -> bool:
        """Whether there is no padding: rows follow each other."""
        return not any((*self.front, *self.back))

    def spans(self, kernel: int, dilation: int) -> tuple[int, int]:
        """How many contiguous spans of a channel block a row of taps reads, and their length."""
        if not self.compact:
            return kernel, self.block
        return (1, (kernel - 1) * self.compact + self.channels) if dilation == 1 else (kernel, self.channels)

    def at(self, *place: int) -> Known:
        """The element at which pixel (z, y, x) begins. (0, 0, 0) is the image's first pixel; padding is before it."""
        z, y, x = (f + p for f, p in zip(self.front, place, strict=True))
        return expressible(dims.mul(dims.total((dims.mul(z, self.deep), dims.mul(y, self.row), x)), self.unit))

    @property
    def plane_stride(self) -> Known:
        """Elements from plane to plane."""
        return expressible(dims.mul(self.plane, self.unit))

    @property
    def strides(self) -> PackedStrides[Ref, Known]:
        plane, (z, y) = self.plane_stride, (expressible(dims.mul(n, self.unit)) for n in (self.deep, self.row))
        block, term = (self.block, plane) if self.compact else (plane, self.block)
        b = expressible(dims.mul(plane, self.planes))
        return PackedStrides(b, block, z, y, self.unit, term)

    def operand(self, fill: Ref | None = None) -> PackedImageArgs[Ref, Known]:
        """``fill`` is the zero point of a quantized image: what its padding holds."""
        used, over = (self.plane, self.tail_pixels) if self.zeroes_tail else (self.used, 0)
        return PackedImageArgs(
            self.strides, self.plane_stride, planes=self.planes, room=self.room, over=over * self.unit,
            used=expressible(dims.mul(used, self.unit)), size=PerAxis(*self.size), front=PerAxis(*self.front),
            fill=fill,
        )  # fmt: skip


class PackedStrides(Arguments[M, N]):
    """The strides of a packed image in elements: of the batch and of 32 channels, along the axes, and of terms."""

    b: N
    block: N
    z: N
    y: N
    x: N
    term: N

    @staticmethod
    def declared() -> PackedStrides[Memory, DType]:
        return PackedStrides(i64, i64, i64, i64, i64, i64)


class PackedImageArgs(Arguments[M, N]):
    """The parameters of a packed image's layout, in elements."""

    strides: PackedStrides[M, N] = field(metadata=named("{}"))
    plane: N
    """The stride of planes."""
    planes: N
    """Planes of an image."""
    room: N
    """Channels that a pixel has, with those that are zero."""
    over: N
    """Elements after the last plane that are zeroed."""
    used: N
    """Elements of a plane whose padding is zeroed."""
    size: PerAxis[M, N]
    front: PerAxis[M, N]
    """Padding in front."""
    fill: M | None = None
    """What the padding of a quantized image holds: one element."""

    @staticmethod
    def declared(dtype: DType = bf16) -> PackedImageArgs[Memory, DType]:
        axes, fill = PerAxis.declared(), Memory(dtype) if dtype in BYTES else None
        return PackedImageArgs(PackedStrides.declared(), i64, i64, i64, i64, i64, axes, axes, fill)


class PackedImageMatrix(Matrix):
    """A packed image as an epilogue operand: rows are pixels, ``column`` is the stride of channel blocks."""

    term: Known
    """The stride between terms."""

    @staticmethod
    def of_image(storage: Storage, layout: PackedImageLayout) -> PackedImageMatrix:
        s = layout.strides
        return PackedImageMatrix(storage, layout.at(0, 0, 0), (s.b, s.z, s.y), s.x, s.block, s.term)


def most_compact(
    layout: PackedImageLayout, windows: Iterable[tuple[Sequence[int], Sequence[int]]]
) -> PackedImageLayout:
    """The layout, compact or not, whose windows (kernel sizes and dilations) read the fewest tiles.

    Among equals, channels padded by up to a third are preferred: fewer tile rows then straddle two cache lines.
    """
    n, seen, block = layout.channels, list(windows), layout.block
    multiples = (block, block // 2, *(unit for unit in (16, 8, 4) if unit < block // 2))
    units = [-(-n // unit) * unit for unit in multiples] if n > 2 or layout.format.is_quantized else [n]
    found = [replace(layout, compact=unit % block and unit) for unit in units]
    tiles = [sum(window_tiles(one, *window) for window in seen) for one in found]
    best = [one for one, count in zip(found, tiles, strict=True) if count == min(tiles)]
    return next((one for one in best if one.room * 3 <= n * 4), best[-1])


def window_tiles(layout: PackedImageLayout, kernel: Sequence[int], dilations: Sequence[int]) -> int:
    """Tiles that one window of 16 output pixels reads."""
    spans, wide = layout.spans(kernel[2], dilations[2])
    return layout.blocks * kernel[0] * kernel[1] * spans * -(-wide // layout.block)


# -- inside kernels


def lift_of_terms(terms: int) -> float:
    """The factor by which an image in so many terms is multiplied."""
    return 1.0 if terms == 1 else LIFT


def encode_pixel(k: Kernel, v: Val, terms: int) -> list[Val]:
    """The terms of f32 numbers of an image, each in the upper half of a 32-bit word, lifted if there are several."""
    if terms == 1:
        return [k.cast(k.to_bf16(v, is_loose=True), u32) << 16]
    return encode_terms(k, v, terms, LIFT, (k.bitcast(v, u32) & _ABS) >= _LARGEST)


def decode_pixel(k: Kernel, pixel: Buf, term: Val, terms: int, lanes: int) -> Val:
    """The f32 numbers that ``encode_pixel`` stored at ``pixel``; ``term`` is the stride of terms in elements."""
    return decode_terms(k, pixel, term, terms, lanes, lift_of_terms(terms))


def encode_terms(k: Kernel, v: Val, terms: int, lift: float, odd: Val) -> list[Val]:
    """Two or three terms of f32 numbers multiplied by ``lift``, each in the upper half of a 32-bit word.

    Numbers that are ``odd`` are encoded as the module describes under **Representable range**.
    """
    bits, heads = k.bitcast(v, u32), split_terms(k, v * lift, terms)
    kept = [bits & HIGH_HALF, bits << 16]
    first = NAN if terms == 3 else ((bits << 6) & 0x3F_0000) | NAN
    return [k.select(odd, held, head) for held, head in zip((first, *kept), heads, strict=False)]


def decode_terms(k: Kernel, pixel: Buf, term: Val, terms: int, lanes: int, lift: float) -> Val:
    """The f32 numbers that ``encode_terms`` stored at ``pixel``; ``term`` is the stride of terms in elements, and
    ``lift`` what the terms are too large by.
    """
    heads = [k.cast(pixel.as_type(u16).load(term * i, lanes), u32) << 16 for i in range(terms)]
    value = k.bitcast(heads[-1], f32)
    for bits in reversed(heads[:-1]):  # the smallest first: exact
        value = k.bitcast(bits, f32) + value
    if terms == 1:
        return value
    signed = k.bitcast(k.bitcast(value, u32) | (heads[0] & _SIGN), f32)  # a sum that is zero has the sign of its first
    if lift != 1.0:
        signed = signed * (1 / lift)
    rest = heads[2] >> 16 if terms == 3 else (heads[0] >> 6) & 0xFC00
    return k.select(value.ne(value), k.bitcast(heads[1] | rest, f32), signed)


def zero_padding(k: Kernel, y: Buf, layout: PackedImageArgs[Buf, Val], batch: Val) -> None:
    """Fill the padding and, if the layout asks for it, the tail that tiles read beyond the end: with zeros, or with the
    zero point of a quantized image.

    A thread fills the padding around some rows, of all channel blocks; it reads most of that itself in the next step.
    """
    lanes = block_of(y.dtype)
    nothing = k.zeros(u16 if y.dtype is bf16 else y.dtype, lanes)
    if layout.fill is not None:
        nothing = k.splat(layout.fill.load(), lanes)
    strides, size, front = layout.strides, layout.size, layout.front

    def start(row: Val) -> Val:
        z, line = row // k.max(size.y, 1), row % k.max(size.y, 1)
        return (z + front.z) * strides.z + (line + front.y) * strides.y + front.x * strides.x

    rows = size.z * size.y
    is_there = (layout.used > rows * size.x * strides.x) | (layout.over > 0)
    with k.loop(*k.share_of(k.select(is_there, batch * (rows + 1), 0))) as at:
        image, row = at // (rows + 1), at % (rows + 1)
        is_last = row.eq(rows)
        first = k.opaque(k.select(row.eq(0), 0, start(row - 1) + size.x * strides.x))
        stop = k.opaque(k.select(is_last, layout.used, start(row)))
        with k.loop(0, layout.planes) as plane:
            here = y.at(image * strides.b + plane * layout.plane + first).as_type(nothing.dtype)
            is_end = is_last & plane.eq(layout.planes - 1) & image.eq(batch - 1)
            for t in k.tiles(stop + k.cast(is_end, i64) * layout.over - first, nothing.lanes):
                here.store(t, nothing)
