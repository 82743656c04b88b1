"""Implicit GEMM convolutions on AMX, from bf16 terms (``conv.bf16_split``) or int8 slices (``conv.int8_slices``).

A tile of A is a vector of channels for each of 16 output pixels, loaded from the packed image without any copy (no
im2col). A *step* is one such tile: one tap and one channel block or, in the compact layout, a stretch of the numbers
that one row of taps covers. ``distances[step]``, a table in scratch memory, tells how far its pixels are from those of
the first step. Kernel size, stride, dilation, padding and layout are run-time numbers: one kernel serves every
geometry.

**Pixels.** With unit strides the pixels of an image are one line that continues through the padding between rows;
outputs computed there are dropped, and rows of 7 or 14 pixels still fill tiles. With other strides each row is a line,
unless the image is decomposed into stride phases (``conv.stride_phases``). A line is cut into tiles of equal height,
at most 16. A tile and 32 filters are a *micro-tile* of sums; the micro-tiles that share weights in L1 are a *group*.

**Caches.** A K-block of weights takes 24 KiB and stays in L1 while the micro-tiles of a group pass. The taps of a
channel block follow each other, so its pixels come from L2 once for a K-block. The next K-block of weights is
prefetched into L2.

**f32 fallback.** The scratch memory begins with what f32 products need: a K-block of 32 filters and one of the pixels
of a micro-tile (``gemm.f32_fallback``).

**Epilogue.** It is applied to a micro-tile after the products of the next one, which find its sums stored. With one
term there are few products, and it is software-pipelined among them (``conv.pipelined_epilogue``) unless stores
dominate it. Results are written in NHWC, in NCHW after a transpose in registers, or packed for the convolution that
reads them (``conv.image_epilogue``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.common.window import PerAxis, TapsArgs
from sardonyx.providers.cpu.kernels.conv.image_epilogue import (
    MICRO_TILE,
    NCHW,
    ImageEpilogue,
    ImageEpilogueArgs,
)
from sardonyx.providers.cpu.kernels.conv.packed_image import PackedStrides
from sardonyx.providers.cpu.kernels.gemm.f32_fallback import SCRATCH_NBYTES
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import SUMS, TILES, A
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, named
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, f32, i64
from sardonyx.records import Record

GROUP = 10
"""Most micro-tiles of a group: their sums and a K-block of weights fit into an L1 of 48 KiB."""
LINES = 2 * HALF
"""Cache lines of the weights of a step, for each term."""
FETCHED = 4
"""Lines of the next K-block of weights that a step of one micro-tile prefetches into L2 for each term, at least; the
micro-tiles of a group prefetch all of them. With one term, the later groups of a thread prefetch nothing if the weights
are few enough to be in L2 still."""
NEAR_NBYTES = 512 * 1024
"""Bytes of weights that stay in L2: all chips with AMX have 2 MiB."""
ENTRY = 8
"""Words of a tile in the table: offset of its first pixel, image, z, y, x, number of pixels, and the offset of its
first pixel in a second image."""


class SecondImageArgs(Arguments[M, N]):
    """The packed image of a second, pointwise convolution, whose sums are added (``conv.summed_pair``).

    Strides are from output to output, in elements.
    """

    b: N
    block: N
    z: N
    y: N
    x: N
    blocks: N


class TileConvArgs(Arguments[M, N]):
    """The parameters of a convolution on tiles, without the memory of images and weights."""

    is_inline: ClassVar[bool] = True
    strides: PackedStrides[M, N] = field(metadata=named("x"))
    phase_strides: PerAxis[M, N] = field(metadata=named("x_phase"))
    batch: N
    blocks: N
    """Channel blocks of the image."""
    filters: N
    lines: N
    length: N
    """Pixels of a line."""
    wide: N
    """Numbers that one tap reads or, in the compact layout, the taps of a row."""
    pitch_z: N
    pitch_y: N
    """Outputs of a plane and of a row, with those that are dropped."""
    k_block: N
    taps: TapsArgs[M, N]
    out: PerAxis[M, N]
    phase: PerAxis[M, N]
    """Stride phases of the image along each axis."""
    second: SecondImageArgs[M, N] | None
    epilogue: ImageEpilogueArgs[M, N]

    @staticmethod
    def declared(epilogue: Epilogue, *, has_second: bool = False) -> TileConvArgs[Memory, DType]:
        axes, second = PerAxis.declared(), SecondImageArgs[Memory, DType](i64, i64, i64, i64, i64, i64)
        return TileConvArgs(
            PackedStrides.declared(), axes, i64, i64, i64, i64, i64, i64, i64, i64, i64, TapsArgs.declared(), axes,
            axes, second if has_second else None, ImageEpilogueArgs.declared(epilogue),
        )  # fmt: skip

    def second_blocks(self: TileConvArgs[Buf, Val], k: Kernel) -> Val:
        """Channel blocks of the second image."""
        return k.const(0) if self.second is None else self.second.blocks


class TileFormat(Record):
    """The number format of images and weights, and its tile registers and scratch memory."""

    block: int
    """Elements of a tile row."""
    terms: int
    """bf16 terms of the packed image that is written."""
    number_nbytes: int
    step_nbytes: int
    """Bytes of the weights of a step and 32 filters."""
    spare: int = 1
    """Micro-tiles of scratch memory for the sums of a K-block."""
    tiles: int = TILES
    """Tile registers that are used."""
    own: int = 0
    """Work items of a thread's share that no other thread steals, at most, where pixels are divided among threads."""
    sums: DType = f32
    """The type of the sums."""


def convolve(
    k: Kernel, args: TileConvArgs[Buf, Val], epilogue: Epilogue, fmt: TileFormat, work_of: Callable[..., TileConv]
) -> None:
    """The loops of a convolution over groups, filters and K-blocks; ``TileConv`` multiplies micro-tiles."""
    lines, length = args.lines, args.length
    taps = args.taps.count()
    steps = k.opaque(args.blocks * taps * ceil_div(args.wide, fmt.block) + args.second_blocks(k))
    per_line = k.opaque(ceil_div(length, HALF))
    high = k.opaque(ceil_div(length, k.max(per_line, 1)))
    each = k.opaque(lines * per_line)
    count, columns = args.batch * each, ceil_div(args.filters, PANEL)
    args.epilogue.zero_padding(k, args.batch)
    groups = _Groups.of(k, args, fmt, count, columns, steps)
    tiles = Tiles(k)
    tiles.configure(high, short=(*SUMS, A), count=fmt.tiles)
    distances = k.scratch(i64, SCRATCH_NBYTES)
    plane_rows = k.opaque(args.pitch_z // k.max(args.pitch_y, 1))
    grid = PixelTiles(k, args, distances.at(ceil_div(steps, 8) * 8), per_line, high, each, plane_rows, fmt.sums)
    _fill_distances(k, args, distances, fmt.block)
    work = work_of(k, tiles, args, distances, grid, steps, epilogue, fmt)
    known, first = k.var(-1), k.var(-1)
    own = groups.never_stolen(k, fmt)
    with k.share(k.select(count > 0, groups.count * groups.columns, 0), own) as at:
        column, group = at % groups.columns, at // groups.columns
        top, stop = (i * count // groups.count for i in (group, group + 1))
        rows = stop - top
        with k.when(known.ne(group)):
            grid.locate(top, rows)
            work.locate(rows)
            first.set(k.select(known.eq(-1), group, first))
            known.set(group)
        fetched = k.max(ceil_div(k.const(LINES), k.max(rows, 1)), FETCHED)
        if fmt.terms == 1:
            fetched = k.select(first.ne(group) & (groups.weights_nbytes <= NEAR_NBYTES), 0, fetched)
        with k.loop(0, steps, args.k_block) as step:
            step_count = k.min(args.k_block, steps - step)
            is_last = step + args.k_block >= steps
            work.micro_tiles(rows, column, step, step_count, fetched, is_last)
    work.close()
    tiles.release()


class _Groups(Record):
    """Groups of tiles of pixels; a work item is a group and 32 filters."""

    count: Val
    columns: Val
    """Panels of 32 filters."""
    is_split: Val
    """Threads divide the pixels."""
    weights_nbytes: Val

    @staticmethod
    def of(k: Kernel, args: TileConvArgs[Buf, Val], fmt: TileFormat, count: Val, columns: Val, steps: Val) -> _Groups:
        """Divide ``count`` tiles of pixels into groups of equal size.

        There are at least two groups for each thread, if there are enough tiles, and equally many for all threads.
        Threads divide the pixels, as in the layers before and after, unless reading all weights costs more.
        """
        fair = count * columns // (k.threads * 2)
        groups = ceil_div(count, k.max(k.min(fair, GROUP), 1))
        channels = (args.blocks * ceil_div(args.wide, fmt.block) + args.second_blocks(k)) * fmt.block
        pixels_nbytes = args.batch * args.lines * args.length * (channels * fmt.number_nbytes + args.filters * 4)
        weights_nbytes = columns * steps * fmt.step_nbytes
        is_split = (count >= k.threads * 2) & (weights_nbytes <= pixels_nbytes)
        groups = k.max(groups, k.select(is_split, k.threads, 1))
        groups = k.opaque(k.max(k.select(groups < k.threads, groups, ceil_div(groups, k.threads) * k.threads), 1))
        return _Groups(groups, columns, is_split, weights_nbytes)

    def never_stolen(self, k: Kernel, fmt: TileFormat) -> Val:
        """How many work items of a thread no other thread steals: it would fetch pixels from another core's cache."""
        return k.select(self.is_split, k.min(self.count * self.columns // (k.threads * 4), fmt.own), 0)


def _fill_distances(k: Kernel, args: TileConvArgs[Buf, Val], to: Buf, block_size: int) -> None:
    """Store how far the pixels of each step are from those of the first step, in elements."""
    strides = args.strides.z, args.strides.y, args.strides.x

    def along(axis: int, tap: Val) -> Val:
        place, phases = tap * args.taps.dilation.each[axis], k.max(args.phase.each[axis], 1)
        return place % phases * args.phase_strides.each[axis] + place // phases * strides[axis]

    at, kernel = k.var(0), args.taps.kernel
    with k.loop(0, args.blocks) as block, k.loop(0, kernel.z) as z, k.loop(0, kernel.y) as y:
        row = block * args.strides.block + along(0, z) + along(1, y)
        with k.loop(0, kernel.x) as tap, k.loop(0, args.wide, block_size) as first:
            to.store(at.get(), row + along(2, tap) + first)
            at += 1
    if args.second is not None:
        with k.loop(0, args.second.blocks) as block:
            to.store(at.get() + block, block * args.second.block)


class PixelTiles(Record):
    """The tiles of a group, in a table: which pixels they have, and where these are in the packed image."""

    k: Kernel
    args: TileConvArgs[Buf, Val]
    table: Buf
    per_line: Val
    """Tiles of a line."""
    high: Val
    """Pixels of a tile; the last one of a line may have fewer."""
    each: Val
    """Tiles of an image."""
    plane_rows: Val
    """Rows from plane to plane."""
    dtype: DType
    """The type of the sums."""

    def locate(self, top: Val, rows: Val) -> None:
        """Fill the table with ``rows`` tiles from tile ``top`` on."""
        k, args = self.k, self.args
        within = top % self.each
        image, line, first = (k.var(v) for v in (top // self.each, within // self.per_line, within % self.per_line))
        first.set(first.get() * self.high)
        with k.loop(0, rows) as i:
            count = k.min(self.high, args.length - first.get())
            place = line.get() * args.length + first.get()
            z, rest = place // args.pitch_z, place % args.pitch_z
            y, x = rest // args.pitch_y, rest % args.pitch_y
            start = image.get() * args.strides.b
            strides = args.strides.z, args.strides.y, args.strides.x
            for index, step, stride in zip((z, y, x), args.taps.stride.each, strides, strict=True):
                start = start + index * step * stride
            entry = self.table.at(i * ENTRY)
            words = [start, image.get(), z, y, x, count]
            if (second := args.second) is not None:
                terms = zip((image.get(), z, y, x), (second.b, second.z, second.y, second.x), strict=True)
                words.append(sum((index * stride for index, stride in terms), k.const(0)))
            for word, value in enumerate(words):
                entry.store(word, value)
            first += self.high
            is_line = first.get() >= args.length
            line += k.cast(is_line, i64)
            first.set(k.select(is_line, 0, first))
            is_image = line.get().eq(args.lines)
            image += k.cast(is_image, i64)
            line.set(k.select(is_image, 0, line))

    def entry(self, tile: Val) -> list[Val]:
        return [self.table.load(tile * ENTRY + i) for i in range(6)]

    def second(self, tile: Val) -> Val:
        """The offset of a tile's first pixel in the second image."""
        return self.table.load(tile * ENTRY + 6)

    @contextmanager
    def image_rows(self, tile: Val) -> Iterator[tuple[Val, list[Val], Val, Val]]:
        """A loop over the image rows in which a tile has pixels.

        Gives, for the tile's pixels in a row: the number of the first in the tile; image, z and y; its x; and how many
        of them are outputs.
        """
        k = self.k
        pitch, (_, out_y, out_x) = self.args.pitch_y, self.args.out.each
        _, image, *first, count = self.entry(tile)
        done, (z, y, x) = k.var(0), (k.var(index) for index in first)
        with k.loop_while(lambda: done.get() < count):
            length = k.min(count - done.get(), pitch - x.get())
            kept = k.select(y.get() < out_y, k.max(k.min(length, out_x - x.get()), 0), 0)
            yield done.get(), [image, z.get(), y.get()], x.get(), kept
            is_end = (y.get() + 1).eq(self.plane_rows)
            for var, value in (
                (done, done.get() + length), (x, 0), (z, z.get() + k.cast(is_end, i64)),
                (y, k.select(is_end, 0, y.get() + 1)),
            ):  # fmt: skip
                var.set(value)

    @property
    def sums(self) -> Buf:
        """The sums in scratch memory: a micro-tile for each tile of a group, the spare ones, and one for each
        operand that is transposed.
        """
        return self.table.at(GROUP * ENTRY).as_type(self.dtype)


def scratch_nbytes(steps: int, epilogue: Epilogue, spare: int = 1) -> int:
    staging = sum(x.columns == NCHW for _, x in epilogue.names)
    return SCRATCH_NBYTES + -(-steps // 8) * 64 + GROUP * ENTRY * 8 + (GROUP + spare + staging) * MICRO_TILE * 4


class TileConv(Record):
    """Multiplies micro-tiles and applies their epilogue. Subclasses say in which number format."""

    k: Kernel
    tiles: Tiles
    args: TileConvArgs[Buf, Val]
    distances: Buf
    grid: PixelTiles
    steps: Val
    epilogue: Epilogue
    fmt: TileFormat

    @property
    def filters(self) -> Val:
        return self.args.filters

    def slot(self, r: Val) -> Val:
        """Where the sums of micro-tile ``r`` begin: one of two slots if there is a single K-block."""
        return self.k.select(self.steps <= self.args.k_block, r & 1, r) * MICRO_TILE

    def locate(self, rows: Val) -> None:
        """Called once for the ``rows`` tiles of a group, after ``PixelTiles.locate``: for tables of a subclass."""

    def micro_tiles(self, rows: Val, column: Val, step: Val, count: Val, fetched: Val, is_last: Val) -> None:
        """Multiply a K-block, ``count`` steps from ``step`` on, for the ``rows`` micro-tiles of a group and 32 filters.

        After the last K-block, apply the epilogue to each micro-tile. A step prefetches ``fetched`` lines of weights.
        """
        k = self.k
        with k.loop(0, rows + k.cast(is_last, i64)) as r:
            if self.fmt.terms > 1:  # with one term, the products are too few to cover a prefetch
                with k.when(is_last & (r + 1 < rows)):
                    self.fetch(r + 1, column)
            with k.either(r < rows) as (more, none):
                with more:
                    self.micro_tile(r, column, step, count, fetched)
                with none:
                    self.complete_sums()
            with k.when(is_last & (r > 0)):
                self.end(r - 1, column)

    def micro_tile(self, r: Val, column: Val, step: Val, count: Val, fetched: Val) -> None:
        """Multiply ``count`` steps from ``step`` on for micro-tile ``r``; a step prefetches ``fetched`` lines of
        weights.
        """
        raise NotImplementedError

    def complete_sums(self) -> None:
        """Complete the sums of the last micro-tile, if their accumulation is deferred."""

    def close(self) -> None:
        """Called after the last micro-tile: apply what is left of a pipelined epilogue."""

    def f32_fallback(self, r: Val, column: Val, slot: Buf) -> Val | None:
        """Recompute the sums of micro-tile ``r`` in f32 if they contain numbers out of the representable range.

        Returns the factor by which the epilogue multiplies the sums, if there is one. Nothing is left to do where such
        numbers were multiplied in f32 in the first place.
        """

    def fetch(self, r: Val, column: Val) -> None:
        """Prefetch what the epilogue of micro-tile ``r`` touches, as if its pixels were all in one image row; pixels of
        further rows are not prefetched.
        """
        _, *place, x, count = self.grid.entry(r)
        finish = self._finishing(place)
        with self.k.loop(0, count) as i:
            finish.prefetch(x + i, column * PANEL, PANEL)

    def end(self, r: Val, column: Val) -> None:
        """Apply the epilogue to micro-tile ``r``, image row by image row, to those pixels that are outputs."""
        slot = self.grid.sums.at(self.slot(r))
        factor = self.f32_fallback(r, column, slot)
        with self.grid.image_rows(r) as (done, place, x, count):
            self._finish(slot.at(done * PANEL), place, x, count, column, factor)

    def _finish(self, sums: Buf, place: list[Val], x: Val, count: Val, column: Val, factor: Val | None) -> None:
        """Apply the epilogue to ``count`` pixels from pixel ``x`` of an image row on, at 32 filters."""
        k, first = self.k, column * PANEL
        left, finish = self.filters - first, self._finishing(place, factor)
        layout = self.args.epilogue.layout
        room = self.filters if layout is None else layout.room

        def by_halves() -> None:
            finish.transpose_in(x, count, first)
            with k.loop(0, k.min(room - first, PANEL), HALF) as half:
                finish.pixels(sums.at(half), half, x, count, Tile(first + half, HALF, k.mask(left - half, HALF)))
            finish.transpose_out(x, count, first)

        if not finish.is_wide:
            by_halves()
            return
        with k.either(left >= PANEL) as (full, edge):
            with full:
                finish.panel(sums, x, count, first)
            with edge:
                by_halves()

    def _finishing(self, place: list[Val], factor: Val | None = None) -> ImageEpilogue:
        """The epilogue, bound to the image row ``place`` (image, z, y)."""
        staging = self.grid.sums.at((GROUP + self.fmt.spare) * MICRO_TILE).as_type(f32)
        return ImageEpilogue(
            self.k, self.epilogue, self.args.epilogue, self.filters, place, staging, self.fmt.terms, factor
        )
