"""Epilogues over images: operands and results in NCHW, or in packed images of bf16 terms or bytes.

These two layouts come on top of the stride classes of ``common.epilogue``. Packed numbers are decoded when they are
loaded and encoded when they are stored, in the layout that the next convolution on AMX reads (``conv.packed_image``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.kernels.common.epilogue import Access, BoundEpilogue, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.conv.packed_image import (
    BYTES,
    PackedImageArgs,
    block_of,
    decode_pixel,
    encode_pixel,
    zero_padding,
)
from sardonyx.providers.cpu.kernels.math.transpose import transposed
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, named
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, bf16, f32, i64, u16
from sardonyx.records import Record

NCHW, PACKED = "nchw", "packed"
"""Stride classes besides those of ``Access``: an NCHW operand, and a packed image."""
TOGETHER = 2
"""Pixels that an expensive epilogue finishes at a time."""
MICRO_TILE = HALF * PANEL
"""Sums of 16 pixels and 32 filters."""


class ImageEpilogueArgs(Arguments[M, N]):
    """The parameters of an epilogue, and of the packed image that it writes for the next convolution."""

    is_inline: ClassVar[bool] = True
    image: M | None
    layout: PackedImageArgs[M, N] | None = field(metadata=named("image"))
    operands: EpilogueArgs[M, N]
    terms: tuple[N | None, ...]
    """The stride of terms of each operand and output that is a packed image; None for others."""

    @staticmethod
    def declared(epilogue: Epilogue) -> ImageEpilogueArgs[Memory, DType]:
        terms = tuple(i64 if x.columns == PACKED else None for _, x in epilogue.names)
        dtype = next((y.dtype for y in epilogue.outputs if y.columns == PACKED), None)
        if dtype is None:
            return ImageEpilogueArgs(None, None, epilogue.declared, terms)
        return ImageEpilogueArgs(Memory(dtype), PackedImageArgs.declared(dtype), epilogue.declared, terms)

    def zero_padding(self: ImageEpilogueArgs[Buf, Val], k: Kernel, batch: Val) -> None:
        """Fill the padding of the image that is written, if there is one."""
        if self.image is not None and self.layout is not None:
            zero_padding(k, self.image, self.layout, batch)


def packs_image(epilogue: Epilogue) -> bool:
    """Whether a result is packed for the convolution that reads it."""
    return any(y.columns == PACKED for y in epilogue.outputs)


def writes_of(epilogue: Epilogue) -> frozenset[str]:
    """The memory parameters that a kernel with such an epilogue writes."""
    return epilogue.writes | ({"image"} if packs_image(epilogue) else set())


class PackedPixels(Record):
    """Access to the channels of a pixel of a packed image."""

    block: Val
    """The stride of channel blocks."""
    term: Val
    """The stride of terms."""
    terms: int
    dtype: DType

    def load(self, pixel: Buf, t: Tile) -> Val:
        """The channels ``t`` of a pixel: terms decoded to f32, or bytes."""
        if self.dtype in BYTES:
            return self._at(pixel, t).load(0, t.lanes)
        return decode_pixel(pixel.k, self._at(pixel, t), self.term, self.terms, t.lanes)

    def store(self, pixel: Buf, room: Val, t: Tile, value: Val) -> Buf:
        """Store ``value``, in terms or as bytes, as the channels ``t`` of a pixel: at least 32 that exist, or others.

        A pixel has ``room`` channels; those beyond are not stored. Returns the address of the first term.
        """
        k, at = pixel.k, self._at(pixel, t)
        there = None if t.lanes >= PANEL and t.mask is None else k.mask(room - t.index, t.lanes)
        if self.dtype in BYTES:
            at.store(0, value, there)
            return at
        at = at.as_type(u16)
        for i, head in enumerate(encode_pixel(k, t.keep(value, 0.0), self.terms)):
            at.store(self.term * i, k.cast(head >> 16, u16), there)
        return at

    def _at(self, pixel: Buf, t: Tile) -> Buf:
        unit = block_of(self.dtype)
        return pixel.at(t.index // unit * self.block + t.index % unit)


def packed_pixels(epilogue: Epilogue, args: ImageEpilogueArgs[Buf, Val], terms: int) -> dict[str, PackedPixels]:
    """``PackedPixels`` for each operand and output that is a packed image, by name."""
    given = zip(epilogue.names, args.operands.views, args.terms, strict=True)
    return {name: PackedPixels(view.col, term, terms, x.dtype) for (name, x), view, term in given if term is not None}


class ImageEpilogue(BoundEpilogue):
    """The epilogue of pixels of one image row; a matrix row is a pixel. NCHW operands pass through a micro-tile of
    scratch memory and are transposed in registers.
    """

    here: Val
    """The offset of the current numbers in such a micro-tile."""

    def __init__(
        self, k: Kernel, epilogue: Epilogue, args: ImageEpilogueArgs[Buf, Val], n: Val, place: list[Val], spare: Buf,
        terms: int, factor: Val | None = None,
    ) -> None:  # fmt: skip
        super().__init__(k, epilogue, args.operands, n, place)
        self.factor = factor
        self.terms, self._packed = terms, packed_pixels(epilogue, args, terms)
        self._room = n if args.layout is None else args.layout.room
        """Channels of a pixel of the image that is written."""
        names = [name for name, x in epilogue.names if x.columns == NCHW]
        self.is_wide = not names
        """Whether 32 filters are finished at a time."""
        self.micro_tiles = {name: spare.at(i * MICRO_TILE) for i, name in enumerate(names)}
        self.staging = k.local(f32, HALF * HALF)

    def prefetch(self, row: Operand, column: Operand, width: int) -> None:
        super().prefetch(row, column, width)
        for name, packed in self._packed.items():
            at = self._row(name, row).at(self.k.value(column, i64) // block_of(packed.dtype) * packed.block)
            for term in range(1 if packed.dtype in BYTES else self.terms):
                at.prefetch(packed.term * term, write=name.startswith("y"))

    def pixels(self, sums: Buf, half: Val, x: Val, count: Val, t: Tile) -> None:
        """Apply the epilogue to ``count`` pixels of a row from pixel ``x`` on, at the 16 filters ``t``.

        The sums of successive pixels are ``PANEL`` elements apart; ``half`` is the column of ``t`` among the panel's 32
        filters. Expensive results are split into terms in a loop of their own: in one loop, the core would not look far
        enough ahead.
        """
        k, outputs = self.k, self.epilogue.names[len(self.epilogue.extra) :]
        is_long = self.terms > 1 and self.epilogue.is_expensive
        later = [output for output in outputs if is_long and output[1] == Access(bf16, PACKED)]
        with k.loop(0, count) as i:
            self.here = i * PANEL + half
            for output, result in zip(outputs, self.results(x + i, t, sums.load(i * PANEL, HALF)), strict=True):
                if output in later:
                    sums.store(i * PANEL, result)
                else:
                    self._store(*output, x + i, t, result)
        for output in later:
            with k.loop(0, count) as i:
                self._store(*output, x + i, t, sums.load(i * PANEL, HALF))

    def panel(self, sums: Buf, x: Val, count: Val, first: Val) -> None:
        """Apply the epilogue to ``count`` pixels from ``x`` on, at the 32 filters from ``first`` on.

        A pixel of an image in one term is then written as a whole cache line.
        """
        together = TOGETHER if self.epilogue.is_expensive else 1
        self.rows(sums, PANEL, x, count, Tile(first, PANEL, None), together=together)

    def transpose_in(self, x: Val, count: Val, first: Val) -> None:
        """Transpose NCHW operands into scratch memory: ``count`` pixels from ``x`` on, 32 filters from ``first`` on."""
        k, mask = self.k, self.k.mask(count, HALF)
        for name in (name for name in self.micro_tiles if name.startswith("x")):
            for at, sixteen, filters in self._sixteen(name, x, first):
                with k.loop(0, sixteen) as i:
                    self.staging.store(i * HALF, filters(i).load(0, HALF, mask))
                rows = transposed([self.staging.load(n * HALF, HALF) for n in range(HALF)])
                for n, row in enumerate(rows):
                    self.micro_tiles[name].store(at + n * PANEL, row)

    def transpose_out(self, x: Val, count: Val, first: Val) -> None:
        """Transpose results from scratch memory to NCHW: ``count`` pixels from ``x`` on, 32 filters from ``first``
        on.
        """
        k, mask = self.k, self.k.mask(count, HALF)
        for name in (name for name in self.micro_tiles if name.startswith("y")):
            for at, sixteen, filters in self._sixteen(name, x, first):
                rows = [self.micro_tiles[name].load(at + n * PANEL, HALF) for n in range(HALF)]
                for n, row in enumerate(transposed(rows)):
                    self.staging.store(n * HALF, row)
                with k.loop(0, sixteen) as i:
                    filters(i).store(0, self.staging.load(i * HALF, HALF), mask=mask)

    def _sixteen(self, name: str, x: Val, first: Val) -> Iterator[tuple[Val, Val, Callable[[Val], Buf]]]:
        """For 16 filters at a time: their column in the micro-tile, how many exist, and the address of each."""
        k, own = self.k, self._operands[name]
        pixel = self._at[name].at(x * own.row)
        with k.loop(0, PANEL, HALF) as at:
            start = pixel.at((first + at) * own.col)
            yield at, k.min(self.n - (first + at), HALF), lambda i: start.at(i * own.col)

    def _load(self, name: str, x: Access, row: Operand, t: Tile) -> Val:
        if x.columns == NCHW:
            return self.micro_tiles[name].load(self.here, HALF)
        if x.columns == PACKED:
            return self._packed[name].load(self._row(name, row), t)
        return super()._load(name, x, row, t)

    def _store(self, name: str, y: Access, row: Operand, t: Tile, value: Val) -> None:
        if y.columns == NCHW:
            self.micro_tiles[name].store(self.here, value)
        elif y.columns == PACKED:
            self._packed[name].store(self._row(name, row), self._room, t, value)
        else:
            super()._store(name, y, row, t, value)
