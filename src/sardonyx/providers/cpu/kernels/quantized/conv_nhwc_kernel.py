"""The kernel of ``quantized.conv_nhwc``: micro-tiles of output pixels by vectors of filters.

A work item is a panel of filters at the pixels of a block. The products of a micro-tile run over all taps and channels,
four channels at a time; the epilogue is applied to the sums in registers, to the vectors of a pixel together, so that
they are packed into bytes at once. A long epilogue is emitted once, for sums in scratch memory.

**Registers.** The sums of a micro-tile, a vector of weights for each vector of filters, and four channels of a pixel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.window import TapsArgs, WindowArgs
from sardonyx.providers.cpu.kernels.conv.nhwc_block import Block, Channels, TilePixels
from sardonyx.providers.cpu.kernels.conv.nhwc_kernel import PixelBlock, PixelGrid, PixelTiles
from sardonyx.providers.cpu.kernels.conv.stem_rows import RowTransposer, StemArgs
from sardonyx.providers.cpu.kernels.gemm.vector import RowBlocking
from sardonyx.providers.cpu.kernels.quantized.byte_dot import dot, flip_signs
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, Var, i8, i32, i64, u8
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES, Isa
from sardonyx.records import Record

QUAD = 4
"""Channels of a dot product."""
AHEAD = 8
"""Steps of a sum by which weights are prefetched where they exceed L1."""


class Int8NhwcConfig(PixelTiles):
    """Compile-time configuration of ``conv_int8_nhwc``."""

    x_dtype: DType
    has_start: bool
    """Sums begin with a number for each filter."""
    tail: int
    """Filters of the last panel; 0 if all panels are whole."""
    is_single: bool
    """There is one panel."""
    prefetches: bool
    """The weights of a panel exceed L1."""

    @property
    def is_signed(self) -> bool:
        return self.x_dtype is i8

    def nr(self, lanes: int) -> int:
        """Filters of a panel."""
        return self.shape.vectors * lanes

    def sums_nbytes(self, isa: Isa) -> int:
        return 0 if self.is_register_epilogue else self.shape.rows * self.nr(isa.lanes) * 4

    def scratch_nbytes(self, isa: Isa, channels: int) -> int:
        """Scratch: pixel tables, sums, and a pixel of padding; without the transposed rows of a stem, which come
        last.
        """
        nbytes = Block.nbytes(self.most) + self.sums_nbytes(isa) + (channels if self.is_padded else 0)
        return -(-nbytes // LINE_NBYTES) * LINE_NBYTES


class Int8NhwcArgs(Arguments[M, N]):
    """The parameters of ``conv_int8_nhwc``."""

    is_inline: ClassVar[bool] = True
    window: WindowArgs[M, N]
    w: M
    zero: M
    groups: N
    channels: N
    quads: N
    filters: N
    row_block_nbytes: N
    lines: N
    length: N
    """Pixels of a line."""
    distance: N
    """The stride of neighbouring pixels."""
    taps: TapsArgs[M, N]
    stem: StemArgs[M, N] | None
    epilogue: EpilogueArgs[M, N]


def _params(config: Int8NhwcConfig, epilogue: Epilogue) -> Params:
    args = Int8NhwcArgs[Memory, DType](
        WindowArgs.declared(config.x_dtype), Memory(i8), Memory(config.x_dtype), i64, i64, i64, i64, i64, i64, i64,
        i64, TapsArgs.declared(), StemArgs.declared() if config.stem_channels else None, epilogue.declared,
    )  # fmt: skip
    return {"args": args}


@kernel(_params)
def conv_int8_nhwc(k: Kernel, args: Int8NhwcArgs[Buf, Val], *, config: Int8NhwcConfig, epilogue: Epilogue) -> None:
    conv = _Conv(k, args, config, epilogue)
    with conv.blocking.share() as (index, panel, top, bottom):
        block = PixelBlock.of(conv, index, top, bottom)
        block.locate()
        sums = _PanelSums.of(conv, block, panel)
        with k.loop(top, bottom) as tile:
            sums.compute(tile)


class _Conv:
    """A convolution inside its kernel: its grid and scratch memory."""

    def __init__(self, k: Kernel, args: Int8NhwcArgs[Buf, Val], config: Int8NhwcConfig, epilogue: Epilogue) -> None:
        self.k, self.args, self.config, self.epilogue = k, args, config, epilogue
        self.grid = PixelGrid(args.groups, args.lines, args.length, config.shape.rows, config.is_padded)
        self.nr = config.nr(k.lanes)
        self.panels = (args.filters + (self.nr - 1)) // self.nr
        self.block = Block(k, args.window, args.taps, config.most)
        self.sums = k.scratch(i32, Block.nbytes(config.most))
        self.zeros = k.scratch(config.x_dtype, Block.nbytes(config.most) + config.sums_nbytes(k.isa))
        self.taps = k.opaque(args.taps.count())
        self.panel_nbytes = self.taps * args.quads * (self.nr * QUAD) + (self.nr * 4 if config.has_start else 0)
        self.block.fill_tap_offsets()
        if config.is_padded:
            zero = args.zero.load()
            with k.loop(0, args.channels) as i:
                self.zeros.store(i, zero)
        self.blocking = self._blocking()
        self.transposer = self._transposer()
        self.located = k.var(-1)

    def _transposer(self) -> RowTransposer | None:
        k, args, config = self.k, self.args, self.config
        if args.stem is None:
            return None
        to, zero = k.scratch(config.x_dtype, config.scratch_nbytes(k.isa, 0)), k.splat(args.zero.load(), k.lanes)
        return RowTransposer(k, args.window, args.taps, args.stem, to, config.stem_channels, zero)

    def _blocking(self) -> RowBlocking:
        args, shape = self.args, self.config.shape
        row_nbytes = args.channels + args.filters * len(self.epilogue.names)
        lines = args.window.batch * args.groups * args.lines
        return RowBlocking(
            self.k, args.length, self.panels, lines, shape.rows, shape.block, row_nbytes, self.panel_nbytes,
            args.row_block_nbytes,
        )  # fmt: skip


class _QuadPixels(TilePixels):
    """The input pixels of a tile, of which four channels are read at a time."""

    def moving(self, pixel: Buf) -> Buf:
        return pixel.as_type(i32)

    def load(self, at: Buf) -> Val:
        """Four channels, from any address."""
        return self.k.bitcast(at.as_type(u8).load(0, QUAD), i32)


class _PanelSums(Record):
    """The sums of one panel of filters at the pixels of a block."""

    conv: _Conv
    block: PixelBlock
    source: Buf
    start: Buf
    """What sums begin with, if there is such."""
    weights: Buf
    finishing: BoundEpilogue
    panel: Val
    filter: Val
    """The first."""

    @staticmethod
    def of(conv: _Conv, block: PixelBlock, panel: Val) -> _PanelSums:
        k, args, config = conv.k, conv.args, conv.config
        source = args.window.x.at(block.group * args.channels)
        source = source if conv.transposer is None else conv.transposer.rows
        start = args.w.at((block.group * conv.panels + panel) * conv.panel_nbytes)
        weights = start.at(conv.nr * 4) if config.has_start else start
        finish = BoundEpilogue(k, conv.epilogue, args.epilogue, args.filters, [block.image, block.group, block.line])
        return _PanelSums(conv, block, source, start, weights, finish, panel, panel * conv.nr)

    def compute(self, tile: Val) -> None:
        """Compute and finish a micro-tile."""
        conv, k, rows = self.conv, self.conv.k, self.conv.config.shape.rows
        row = (tile - self.block.top) * rows
        there = k.min(conv.args.length - self.block.first - row, rows)
        heights = conv.config.heights
        for low, height in zip((0, *heights), heights, strict=False):
            with k.when((there > low) & (there <= height)):
                self._micro_tile(row, there, height)

    def _micro_tile(self, row: Val, there: Val, height: int) -> None:
        """``there`` pixels from ``row`` of the block on; a tile has ``height``."""
        conv, k, config = self.conv, self.conv.k, self.conv.config
        is_high = height == config.shape.rows
        apart = (conv.args.distance if config.even == 0 else config.even) if is_high else None
        pixels = _QuadPixels(
            self.source, conv.zeros if config.is_padded else None, conv.block, row, height, apart
        )  # fmt: skip
        sums = self._products(pixels)
        if is_high:
            with k.either(there.eq(height)) as (whole, part):
                with whole:
                    self._finish(sums, row, height)
                with part:
                    self._finish(sums, row, there)
        else:
            self._finish(sums, row, there)

    def _products(self, pixels: TilePixels) -> list[list[Var]]:
        conv, k, shape = self.conv, self.conv.k, self.conv.config.shape
        lanes, nr, quads = k.lanes, self.conv.nr, self.conv.args.quads
        sums = [[k.var(self._first(j)) for j in range(shape.vectors)] for _ in pixels.rows]

        def add(channels: Channels, b: Buf) -> None:
            with k.paced(0, quads, [nr * QUAD], channels.moving) as ((p, at), here):
                if conv.config.prefetches:
                    for j in range(0, nr * QUAD, LINE_NBYTES):
                        b.prefetch(at + (AHEAD * nr * QUAD + j))
                columns = [b.at(at + j * lanes * QUAD).as_type(i32).load(0, lanes) for j in range(shape.vectors)]
                for row, word in zip(sums, channels.read(p, here), strict=True):
                    v = k.splat(word, lanes)
                    v = flip_signs(v) if conv.config.is_signed else v
                    for total, y in zip(row, columns, strict=True):
                        total.set(dot(k, total.get(), v, y, u8, i8))

        with k.loop(0, conv.taps) as tap:
            b, is_even = self.weights.at(tap * quads * (nr * QUAD)), pixels.is_even(tap)
            if is_even is None:
                add(pixels.at(tap), b)
            else:
                with k.either(is_even) as (even, uneven):
                    with even:
                        add(pixels.neighbours(tap), b)
                    with uneven:
                        add(pixels.at(tap), b)
        return sums

    def _first(self, vector: int) -> Val:
        k = self.conv.k
        if not self.conv.config.has_start:
            return k.zeros(i32, k.lanes)
        return self.start.as_type(i32).load(vector * k.lanes, k.lanes)

    def _finish(self, sums: list[list[Var]], row: Val, rows: Val | int) -> None:
        """Apply the epilogue to the first ``rows`` pixels of a micro-tile."""
        k, config, first = self.conv.k, self.conv.config, self.block.first + row
        if not config.is_register_epilogue:
            self._finish_in_memory(sums, first, rows)
        elif not config.tail:
            self._put(sums, first, rows, 0)
        elif config.is_single:
            self._put(sums, first, rows, config.tail)
        else:
            with k.either(self.panel + 1 < self.conv.panels) as (whole, part):
                with whole:
                    self._put(sums, first, rows, 0)
                with part:
                    self._put(sums, first, rows, config.tail)

    def _finish_in_memory(self, sums: list[list[Var]], first: Val, rows: Val | int) -> None:
        conv, k, nr = self.conv, self.conv.k, self.conv.nr
        for r, vectors in enumerate(sums):
            for j, total in enumerate(vectors):
                conv.sums.store(r * nr + j * k.lanes, total.get())
        filters = k.min(conv.args.filters - self.filter, nr)
        self.finishing.tile(conv.sums, nr, first, rows, self.filter, filters, width=nr, at_once=True)

    def _put(self, sums: list[list[Var]], first: Val, rows: Val | int, tail: int) -> None:
        """The epilogue of sums in registers; ``tail`` is the number of filters where the panel is not whole."""
        k = self.conv.k
        for r, vectors in enumerate(sums):
            if isinstance(rows, int):
                self._put_pixel(vectors, first + r, tail)
            else:
                with k.when(rows > r):
                    self._put_pixel(vectors, first + r, tail)

    def _put_pixel(self, vectors: list[Var], pixel: Val, tail: int) -> None:
        k, lanes = self.conv.k, self.conv.k.lanes
        for at, count in _chunks(len(vectors)):
            width, left = count * lanes, tail - at * lanes if tail else count * lanes
            if left > 0:
                mask = k.mask(left, width) if left < width else None
                wide = _concatenated([total.get() for total in vectors[at : at + count]])
                self.finishing.put(pixel, Tile(self.filter + at * lanes, width, mask), wide)


def _chunks(vectors: int) -> Iterator[tuple[int, int]]:
    """Vectors in powers of two: the first of each, and how many."""
    at = 0
    while at < vectors:
        count = 1 << (vectors - at).bit_length() - 1
        yield at, count
        at += count


def _concatenated(parts: list[Val]) -> Val:
    while len(parts) > 1:
        parts = [a.shuffle(range(2 * a.lanes), b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
