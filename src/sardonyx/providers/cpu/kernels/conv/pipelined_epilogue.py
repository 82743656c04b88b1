"""Software-pipelined epilogue: pixels of a micro-tile are finished between the products of the next one.

The core issues in order, and a tile instruction waits at issue for a free tile register. An epilogue after the
products of a micro-tile therefore starts when they end, and the next products wait for it. Interleaved with them it
costs almost nothing. With one term, where products are few, each step finishes a fixed number of pixels of the
micro-tile before, chosen at compile time so that the steps of a K-block finish all of them.

A step has no time to compute addresses of pixels in padded rows. They are the same for all filters, so a table holds,
for each existing pixel of a group, its index in the tile and its offset in each operand and result. Every word that a
step reads costs time: operands of equal strides share a word, and where pixels are contiguous there is one for each
tile only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.kernels.common.epilogue import BROADCAST, UNIT, Access, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.matrices import MatrixArgs
from sardonyx.providers.cpu.kernels.conv.image_epilogue import PACKED, ImageEpilogue
from sardonyx.providers.cpu.kernels.conv.implicit_gemm import GROUP, PixelTiles, TileConvArgs
from sardonyx.providers.cpu.kernels.conv.packed_image import BLOCK
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, i64
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref
from sardonyx.records import Record

MAX_PACE = {False: 16, True: 4}
"""Pixels that a step finishes, at most: of a cheap epilogue, and of an expensive one, whose code is long."""
HEAD, SLOTS = 8, 2 * HALF
"""Words of a tile in the table: a head, whose first word is the number of existing pixels, and the slots of each column
of offsets. Slots are stored 16 at a time; the next image row overwrites those beyond the end of a row."""


def pace_of(epilogue: Epilogue, steps: int, *, is_full: bool) -> int:
    """Pixels that each of ``steps`` steps finishes, a power of two; 0: the epilogue is not pipelined. A cheap one must
    access packed images of 32 filters only; otherwise its stores dominate.
    """
    if epilogue.is_expensive:
        is_apart = all(
            x.columns in (UNIT, PACKED) or (x.columns == BROADCAST and not x.is_row_invariant)
            for _, x in epilogue.names
        )
    else:
        is_apart = is_full and all(
            x.columns == PACKED or (x.columns == UNIT and x.is_row_invariant) for _, x in epilogue.names
        )
    least = -(-HALF // max(steps, 1))
    return min(1 << (least - 1).bit_length(), MAX_PACE[epilogue.is_expensive]) if is_apart else 0


def is_one_for_images(epilogue: Epilogue, operands: EpilogueArgs[Ref, Known]) -> bool:
    """Whether operands with one value per filter are the same in all rows of an image, and so in all pixels of a tile.
    If the batch is the depth of one image (``layout.conv_axes``), they may differ from plane to plane.
    """
    given = zip(epilogue.names, operands.views, strict=True)
    held = [view for (_, x), view in given if x.is_row_invariant and x.columns == UNIT]
    return all(view.batch[axis] == 0 for view in held for axis in (1, 2))


class Places(Record):
    """The compile-time layout of the table of pixel offsets."""

    words: tuple[int | None, ...]
    """For each operand and result, its column of offsets; those of equal strides share one. None: it is the same for
    all pixels."""
    is_dense: bool
    """All pixels of a tile exist."""
    is_line: bool
    """Pixels are one channel block apart in every operand and result: the offset of the first is enough."""

    @staticmethod
    def of(epilogue: Epilogue, args: TileConvArgs[Ref, Known], *, is_full: bool) -> Places:
        """The layout for a convolution's arguments."""
        found: list[tuple[Any, ...]] = []
        words: list[int | None] = []
        is_even = is_full
        for (_, x), view in zip(epilogue.names, args.epilogue.operands.views, strict=True):
            strides = (*view.batch, view.row)
            key = (*strides, x.columns, view.col)
            if x.is_row_invariant and not any(strides):
                words.append(None)
                continue
            is_even &= x.is_row_invariant or (x.columns == PACKED and view.row == BLOCK)
            found += [] if key in found else [key]
            words.append(found.index(key))
        out_z, out_y, out_x = args.out.each
        is_dense = args.pitch_y == out_x and args.pitch_z == expressible(dims.mul(out_y, out_x))
        is_line = is_even and (out_z, out_y) == (1, 1) and args.lines == 1
        return Places(tuple(words), is_dense or is_line, is_line)

    @property
    def columns(self) -> int:
        """Columns of offsets in the table."""
        return 1 + max((word for word in self.words if word is not None), default=-1)

    @property
    def tile_words(self) -> int:
        """Words of a tile: the head, and for each pixel its index in the tile and its offsets."""
        return HEAD if self.is_line else HEAD + SLOTS * (self.columns + (not self.is_dense))


def table_nbytes(places: Places) -> int:
    return GROUP * places.tile_words * 8


class _Operand(Record):
    """An operand or a result of the epilogue."""

    name: str
    access: Access
    matrix: MatrixArgs[Buf, Val]
    word: int | None
    """The operand's column of offsets in the table; None if its offset is the same for all pixels."""

    @property
    def panel_stride(self) -> Operand:
        """The stride from 32 filters to the next 32."""
        if self.access.columns == PACKED:
            return self.matrix.col
        return PANEL if self.access.columns == UNIT else 0


class PipelinedPixels:
    """The pixels of the previous micro-tile that are not finished yet."""

    def __init__(
        self, k: Kernel, epilogue: Epilogue, args: TileConvArgs[Buf, Val], grid: PixelTiles, table: Buf, places: Places,
        pace: int, *, is_full: bool,
    ) -> None:  # fmt: skip
        assert places.columns < HEAD
        self.k, self.grid, self.places = k, grid, places
        self.pace, self.is_full = pace, is_full
        self.filters = args.filters
        self.finish = _PixelEpilogue(k, epilogue, args.epilogue, self.filters, [k.const(0)] * 3, grid.sums, 1)
        given = zip(epilogue.names, args.epilogue.operands.views, places.words, strict=True)
        self.operands = [_Operand(name, x, view, word) for (name, x), view, word in given]
        self.width = PANEL if self.finish.is_wide else HALF
        """Filters that are finished at a time."""
        self._table = table
        self._count, self._tile, self._slot, self._column = (k.var(0) for _ in range(4))
        """The pixels of the micro-tile that are not finished (all or none), its entry in the table, the offset of its
        sums, and its column of filters."""

    def locate(self, rows: Val) -> None:
        """Write the table of a group of ``rows`` tiles."""
        with self.k.loop(0, rows) as tile:
            here = self._table.at(tile * self.places.tile_words)
            here.store(0, self._locate_line(tile, here) if self.places.is_line else self._locate_rows(tile, here))

    def _locate_line(self, tile: Val, here: Buf) -> Val:
        _, *place, x, count = self.grid.entry(tile)
        for word, (start, _) in self._counted(place, x).items():
            here.store(1 + word, start)
        return count

    def _locate_rows(self, tile: Val, here: Buf) -> Val:
        found = self.k.var(0)
        with self.grid.image_rows(tile) as (first, place, x, count):
            self._write(here.at(HEAD + found.get()), first, place, x)
            found += count
        return found.get()

    def _counted(self, place: list[Val], x: Val) -> dict[int, tuple[Val, Val]]:
        """For each column of offsets: the offset of pixel ``x`` of an image row, and the stride to the next pixel."""
        counted = {}
        for own in self.operands:
            if own.word is not None and own.word not in counted:
                terms = (index * stride for index, stride in zip(place, own.matrix.batch, strict=True))
                counted[own.word] = sum(terms, x * own.matrix.row), own.matrix.row
        return counted

    def _write(self, to: Buf, first: Val, place: list[Val], x: Val) -> None:
        """Store the offsets of an image row from pixel ``x`` on, which is pixel ``first`` of a tile."""
        k, lanes = self.k, HALF // 2
        counted = self._counted(place, x)
        if not self.places.is_dense:
            counted[self.places.columns] = first * PANEL, k.const(PANEL)
        for word, (start, step) in counted.items():
            values = k.iota(i64, lanes) * step + start
            to.store(word * SLOTS, values)
            to.store(word * SLOTS + lanes, values + step * lanes)

    def start(self, tile: Val, slot: Val, column: Val) -> None:
        """Begin the epilogue of a tile and 32 filters, whose sums are complete at element ``slot``."""
        start = tile * self.places.tile_words
        for var, value in (
            (self._tile, start), (self._count, self._table.load(start)), (self._slot, slot), (self._column, column),
        ):  # fmt: skip
            var.set(value)

    def pipelined_steps(self, count: Val) -> Val:
        """How many of ``count`` steps finish a full ``pace`` of pixels."""
        k, ready = self.k, self.k.min(count, self._count.get() >> (self.pace.bit_length() - 1))
        return ready if self.is_full else k.select(self.filters - self._column.get() * PANEL >= PANEL, ready, 0)

    def step_actions(self) -> Callable[[Val], list[Callable[[], None]]]:
        """For a step: the actions, one for each pixel, that are interleaved with its products."""
        pixel = self._pixel()
        return lambda step: [partial(pixel, step * self.pace, i) for i in range(self.pace)]

    def drain(self, steps: Operand = 0) -> None:
        """Finish the pixels that are left after ``steps`` pipelined steps."""
        k, begin = self.k, self.k.value(steps, i64) * self.pace
        with k.when(begin < self._count.get()):
            if self.is_full:
                pixel = self._pixel()
                with k.loop(begin, self._count.get()) as at:
                    pixel(at, 0)
            else:
                slot, first = self.grid.sums.at(self._slot.get()), self._column.get() * PANEL
                with k.loop(begin, self._count.get()) as at, k.loop(0, PANEL, HALF) as half:
                    self.finish.places = {own.name: self._place(own.word, at, 0) for own in self.operands}
                    t = Tile(first + half, HALF, k.mask(self.filters - first - half, HALF))
                    self.finish.put(0, t, slot.at(self._sums(at, 0)).load(half, HALF))
        self._count.set(0)

    def _pixel(self) -> Callable[[Val, int], None]:
        """Returns a function that finishes a pixel and 32 filters."""
        slot, column = self.grid.sums.at(self._slot.get()), self._column.get()
        tiles = [Tile(column * PANEL + at, self.width, None) for at in range(0, PANEL, self.width)]
        # A tile belongs to one image, in which held operands are the same for all pixels.
        self.finish.places = {own.name: self._first(own.word) for own in self.operands}
        held = [self.finish.of_columns(t) for t in tiles]
        starts = {own.word: column * own.panel_stride for own in self.operands}
        if self.places.is_line:
            starts = {word: start + self._first(word) for word, start in starts.items()}

        def pixel(at: Val, more: int) -> None:
            found = {word: start + self._place(word, at, more) for word, start in starts.items()}
            sums, places = slot.at(self._sums(at, more)), {own.name: found[own.word] for own in self.operands}
            for i, finish in enumerate(held):
                finish.places = places
                finish.put(
                    0, Tile(self.k.const(i * self.width), self.width, None), sums.load(i * self.width, self.width)
                )

        return pixel

    def _first(self, word: int | None) -> Val:
        """The offset of the first pixel of the tile."""
        if word is None:
            return self.k.const(0)
        return self._table.load(self._tile.get() + (1 + word if self.places.is_line else HEAD + word * SLOTS))

    def _place(self, word: int | None, at: Val, more: int) -> Val:
        """The offset of the pixel ``more`` after pixel ``at`` of a tile; in a line, relative to its first pixel."""
        if word is None:
            return self.k.const(0)
        if self.places.is_line:
            return (at + more) * BLOCK
        return self._table.load(self._tile.get() + at + (HEAD + word * SLOTS + more))

    def _sums(self, at: Val, more: int) -> Val:
        if self.places.is_dense:
            return (at + more) * PANEL
        return self._place(self.places.columns, at, more)


class _PixelEpilogue(ImageEpilogue):
    """The epilogue of one pixel, whose offset in each operand is given."""

    places: dict[str, Val]

    def _row(self, name: str, row: Operand, *, is_row_invariant: bool = False) -> Buf:
        return self._at[name].at(self.places[name])
