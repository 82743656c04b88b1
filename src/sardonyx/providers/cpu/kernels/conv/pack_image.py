"""Packs an image for AMX convolutions: split into bf16 terms, padded, row by row (``conv.packed_image``).

NHWC sources are split without moving channels. NCHW sources are transposed, sixteen pixels at a time, or interleaved if
channels are few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Storage, View
from sardonyx.providers.cpu.kernels.common.window import ImageStrides
from sardonyx.providers.cpu.kernels.conv.packed_image import (
    BLOCK,
    HIGH_HALF,
    PackedImageArgs,
    PackedImageLayout,
    encode_pixel,
    zero_padding,
)
from sardonyx.providers.cpu.kernels.math.transpose import interleaved_wide, transposed
from sardonyx.providers.cpu.kernels.split.bf16 import HALF
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat, named
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bf16, f32, i32, i64, u16, u32
from sardonyx.providers.cpu.program.steps import Ref, Step

FEW = 8
"""Channels up to which those of sixteen pixels are interleaved in registers."""
AHEAD = 2
"""Rows by which interleaved sources are prefetched; destinations are prefetched one row ahead."""
MAGNITUDE, INFINITY = 0x7FFF_FFFF, 0x7F80_0000
NHWC, NCHW, ANY = "nhwc", "nchw", "any"
"""Which elements of the source are adjacent: channels, pixels of a row, or neither."""


class RowsArgs(Arguments[M, N]):
    """The parameters of an image and its packed copy."""

    is_inline: ClassVar[bool] = True
    x: M
    y: M
    layout: PackedImageArgs[M, N] = field(metadata=named("y"))
    strides: ImageStrides[M, N] = field(metadata=named("x"))
    batch: N
    channels: N
    blocks: N

    @staticmethod
    def declared(source: DType, packed: DType) -> RowsArgs[Memory, DType]:
        strides = ImageStrides[Memory, DType](i64, i64, i64, i64, i64)
        return RowsArgs(Memory(source), Memory(packed), PackedImageArgs.declared(packed), strides, i64, i64, i64)


class PackImageArgs(Arguments[M, N]):
    """The parameters of ``pack_image``."""

    is_inline: ClassVar[bool] = True
    rows: RowsArgs[M, N]
    flags: M | None


def _params(source: DType, terms: int, order: str, few: int, is_flagged: bool) -> Params:
    flags = Memory(i32) if is_flagged else None
    return {"args": PackImageArgs(RowsArgs.declared(source, bf16), flags)}


@kernel(_params)
def pack_image(
    k: Kernel, args: PackImageArgs[Buf, Val], *, source: DType, terms: int, order: str, few: int, is_flagged: bool
) -> None:
    """y = x in terms. ``few`` is the number of channels in the compact layout, up to 16; else 0. ``is_flagged``: each
    row gets a flag, which is 0 if all its numbers, in one term, are finite.
    """
    with shared_rows(k, args.rows) as (at, row, to, block):
        made = _Row(k, args, row, to, block * BLOCK, terms, order)
        if order == NHWC:
            made.pixels(1 if few else 2)
        elif 0 < few <= FEW:
            made.interleaved(few)
        else:
            made.transposed()
        if args.flags is not None:
            args.flags.store(at, k.select((made.largest.get() >= INFINITY).any(), k.const(1, i32), 0))


@contextmanager
def shared_rows(k: Kernel, args: RowsArgs[Buf, Val]) -> Iterator[tuple[Val, Buf, Buf, Val]]:
    """Fill the padding, and share the rows of the channel blocks among threads.

    Yields the number of a row, where it is in the image and in the packed copy, and its channel block.
    """
    blocks, layout, strides = args.blocks, args.layout, args.strides
    zero_padding(k, args.y, layout, args.batch)
    size_z, size_y, _ = layout.size.each
    with k.share(args.batch * blocks * size_z * size_y) as at:
        block, image = at % blocks, at // blocks
        line, image = image % size_y, image // size_y
        z, image = image % size_z, image // size_z
        row = args.x.at(image * strides.b + z * strides.z + line * strides.y)
        to = args.y.at(image * layout.strides.b + block * layout.strides.block)
        to = to.at((z + layout.front.z) * layout.strides.z)
        to = to.at((line + layout.front.y) * layout.strides.y)
        yield at, row, to.at(layout.front.x * layout.strides.x), block


class _Row:
    """Packs a row of pixels, 32 channels of each."""

    def __init__(
        self, k: Kernel, args: PackImageArgs[Buf, Val], x: Buf, y: Buf, first: Val, terms: int, order: str
    ) -> None:
        self.is_flagged = args.flags is not None
        self.k, self.x, self.y, self.first, self.terms, self.order = k, x, y, first, terms, order
        layout, self.channels, self.strides = args.rows.layout, args.rows.channels, args.rows.strides
        self.width = layout.size.x
        self.y_y, self.pixel, self.term = layout.strides.y, layout.strides.x, layout.strides.term
        self.room = layout.room - first
        self.largest = k.var(k.zeros(u32, HALF))
        """The largest magnitude so far in each lane, as bits."""

    def pixels(self, vectors: int) -> None:
        """Pack pixels whose channels are adjacent (NHWC): ``vectors`` vectors of 16 channels, one or two."""
        k, words = self.k, self.y.as_type(u16)
        masks = [k.mask(self.channels - self.first - i * HALF, HALF) for i in range(vectors)]
        source, there = self.x.at(self.first * self.strides.c), k.mask(self.room, vectors * HALF)
        with k.loop(0, self.width) as i:
            here = source.at(i * self.strides.x)
            heads = [self._seen(here.load(j * HALF, HALF, mask)) for j, mask in enumerate(masks)]
            for term, found in enumerate(zip(*heads, strict=True)):
                left, right = k.bitcast(found[0], u16), k.bitcast(found[-1], u16)
                upper = left.shuffle(range(1, vectors * 2 * HALF, 2), right)
                words.store(i * self.pixel + self.term * term, upper, there)

    def transposed(self) -> None:
        """Pack sixteen pixels at a time: a vector of pixels is loaded for each channel, and transposed in registers."""
        k, words = self.k, self.y.as_type(u32)
        local, staging = k.local(u32, self.terms * HALF * HALF), k.local(u32, HALF * HALF)
        there = k.mask(self.room // 2, HALF)
        with k.loop(0, self.width, HALF) as at:
            count = k.min(self.width - at, HALF)
            with k.loop(0, HALF) as pair:
                even, odd = (self._packed(self.first + pair * 2 + side, at, count) for side in range(2))
                for term, both in enumerate(_pairs(even, odd)):
                    local.store((term * HALF + pair) * HALF, both)
            with k.loop(0, self.terms) as which:
                rows = transposed([local.load((which * HALF + i) * HALF, HALF) for i in range(HALF)])
                for n, row in enumerate(rows):
                    staging.store(n * HALF, row)
                with k.loop(0, count) as i:
                    words.store(((at + i) * self.pixel + which * self.term) // 2, staging.load(i * HALF, HALF), there)

    def interleaved(self, few: int) -> None:
        """Pack sixteen pixels at a time of ``few`` channels, whose vectors of pixels are interleaved in registers."""
        k, unit = self.k, 1 << (few - 1).bit_length()
        nothing = [k.zeros(u32, HALF)] * self.terms
        with k.loop(0, self.width, HALF) as at:
            count = k.min(self.width - at, HALF)
            for c in range(few if self.order == NCHW else 0):
                self.x.at(self.strides.c * c + self.strides.y * AHEAD + at).prefetch()
            for line in range(unit * HALF // BLOCK):
                self.y.at(self.y_y + at * self.pixel + line * BLOCK).prefetch(write=True)
            heads = [self._packed(k.const(c), at, count) if c < few else nothing for c in range(unit)]
            if unit == 1:
                words = [[k.cast(head >> 16, u16) for head in heads[0]]]
            else:
                words = [_pairs(even, odd) for even, odd in zip(heads[::2], heads[1::2], strict=True)]
            for term, vectors in enumerate(zip(*words, strict=True)):
                whole = interleaved_wide(vectors)
                to = self.y.at(at * self.pixel + self.term * term).as_type(whole.dtype)
                to.store(0, whole, k.mask(count * len(words), whole.lanes))

    def _packed(self, c: Val, at: Val, count: Val) -> list[Val]:
        """The terms of channel ``c`` for ``count`` pixels, at most sixteen, from ``at`` on."""
        k, here, existing = self.k, self.x.at(c * self.strides.c), self.k.select(c < self.channels, count, 0)
        if self.order == NCHW:
            return self._seen(here.load(at, HALF, k.mask(existing, HALF)))
        local = k.local(f32, HALF)
        local.store(0, k.zeros(f32, HALF))
        with k.loop(0, existing) as j:
            local.store(j, here.load((at + j) * self.strides.x))
        return self._seen(local.load(0, HALF))

    def _seen(self, v: Val) -> list[Val]:
        """The terms of a vector of numbers; records the largest magnitude of first terms if rows have flags."""
        heads = encode_pixel(self.k, v, self.terms)
        if self.is_flagged:
            self.largest.set(self.k.max(self.largest.get(), heads[0] & MAGNITUDE))
        return heads


def _pairs(even: Sequence[Val], odd: Sequence[Val]) -> list[Val]:
    return [(a >> 16) | (b & HIGH_HALF) for a, b in zip(even, odd, strict=True)]


# -- what convolutions ask for


def packing_step(source: View, layout: PackedImageLayout, nodes: Any) -> tuple[Step, Storage, Storage | None]:
    """The step that packs an image, over (batch, channels, z, y, x), its result, and the flags of its rows.

    Only compact images of one term have flags: their tile rows read more pixels than a window does.
    """
    made, few = Storage("temporary", bf16, layout.elements), layout.channels if 0 < layout.compact <= HALF else 0
    flags, rows = None, dims.known(dims.product((layout.batch, *layout.size[:2])))
    if layout.terms == 1 and few and rows is not None:
        flags = Storage("temporary", i32, rows)
    strides = ImageStrides[Ref, Known](*source.strides)
    is_interleaved, is_row = 0 < few <= FEW, strides.x == 1 or source.shape[4] == 1
    order = NHWC if strides.c == 1 and not is_interleaved else NCHW if is_row else ANY
    rows_args = RowsArgs(
        Ref.of(source), Ref(made), layout.operand(), strides, batch=layout.batch, channels=layout.channels,
        blocks=-(-layout.room // BLOCK),
    )  # fmt: skip
    args = PackImageArgs(rows_args, None if flags is None else Ref(flags))
    spec = pack_image(source=source.dtype, terms=layout.terms, order=order, few=few, is_flagged=flags is not None)
    why = f"split into {layout.terms} bf16 terms{', compact' if layout.compact else ''}"
    nbytes = dims.known(dims.mul(layout.elements, 2)) or 0
    writes = frozenset(("y",) if flags is None else ("y", "flags"))
    return Step(spec, flat(args=args), writes, nodes, 0, 0, nbytes, why), made, flags
