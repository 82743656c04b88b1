"""The kernel of ``conv.nhwc``: micro-tiles of output pixels by vectors of filters.

A work item is a panel of filters at the pixels of a row block. Their addresses are looked up once for all panels of the
row block; then, K-block by K-block, the micro-tiles are multiplied. Sums are kept in scratch memory from K-block to
K-block, and a cheap epilogue is applied to registers instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Protocol

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.window import TapsArgs, WindowArgs
from sardonyx.providers.cpu.kernels.conv.nhwc_block import Block, Channels, TilePixels
from sardonyx.providers.cpu.kernels.conv.stem_rows import RowTransposer, StemArgs
from sardonyx.providers.cpu.kernels.gemm.vector import (
    KC,
    MicroTileShape,
    RowBlocking,
    add_previous,
    lanes_of,
    prefetch_pace,
    scratch_nbytes,
    store_sums,
)
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, Var, i64
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES, Isa
from sardonyx.records import Record

LOW = 4
"""Pixels of the small tile that takes the tail of a line; missing pixels repeat the last."""


class PixelTiles(Record):
    """The micro-tiles of pixels by filters that a convolution of an NHWC image is compiled for."""

    shape: MicroTileShape
    even: int | None
    """The stride of neighbouring pixels, where the pixels of a tile share addresses; 0 if it is the run-time number
    ``distance``, None if they do not share."""
    is_padded: bool
    """Some window reads padding."""
    is_register_epilogue: bool
    """Whether the epilogue is applied to accumulators in registers: it is cheap, and all of K is summed in one pass."""
    stem_channels: int
    """Channels of an NCHW image whose rows are transposed (``conv.stem_rows``); 0 for NHWC images."""

    @property
    def most(self) -> int:
        """Pixels of a block, at most."""
        return self.shape.block * self.shape.rows

    @property
    def heights(self) -> tuple[int, ...]:
        """The heights of micro-tiles in pixels: a low one for the last pixels of a line, and the usual one."""
        return tuple(sorted({min(LOW, self.shape.rows), self.shape.rows}))


class NhwcConvConfig(PixelTiles):
    """Compile-time configuration of ``conv_nhwc``."""

    dtype: DType

    @property
    def sums_at(self) -> int:
        """Bytes of scratch before the sums: the pixel tables of a block, and zeros."""
        return Block.nbytes(self.most) + KC * self.dtype.bits // 8

    def scratch_nbytes(self, isa: Isa) -> int:
        """Scratch without the transposed rows of a stem, which come last."""
        nbytes = self.sums_at + scratch_nbytes(self.shape, isa, self.dtype, self.dtype)
        return -(-nbytes // LINE_NBYTES) * LINE_NBYTES


class NhwcConvArgs(Arguments[M, N]):
    """The parameters of ``conv_nhwc``."""

    is_inline: ClassVar[bool] = True
    window: WindowArgs[M, N]
    w: M
    groups: N
    channels: N
    filters: N
    k_block: N
    """Channels of a K-block."""
    k_block_taps: N
    row_block_nbytes: N
    lines: N
    length: N
    """Pixels of a line."""
    distance: N
    """The stride of neighbouring pixels."""
    taps: TapsArgs[M, N]
    stem: StemArgs[M, N] | None
    epilogue: EpilogueArgs[M, N]


def _params(config: NhwcConvConfig, epilogue: Epilogue) -> Params:
    args = NhwcConvArgs[Memory, DType](
        WindowArgs.declared(config.dtype), Memory(config.dtype), i64, i64, i64, i64, i64, i64, i64, i64, i64,
        TapsArgs.declared(), StemArgs.declared() if config.stem_channels else None, epilogue.declared,
    )  # fmt: skip
    return {"args": args}


@kernel(_params)
def conv_nhwc(k: Kernel, args: NhwcConvArgs[Buf, Val], *, config: NhwcConvConfig, epilogue: Epilogue) -> None:
    conv = _Conv(k, args, config, epilogue)
    with conv.blocking.share() as (index, panel, top, bottom):
        block = PixelBlock.of(conv, index, top, bottom)
        block.locate()
        sums = _PanelSums.of(conv, block, panel)
        with sums.k_blocks() as k_block, k.loop(top, bottom) as tile:
            sums.add(tile, k_block)
        if not config.is_register_epilogue:
            with k.loop(top, bottom) as tile:
                sums.finish(tile)


class PixelGrid(Record):
    """The output pixels of a convolution."""

    groups: Val
    lines: Val
    length: Val
    """Pixels of a line."""
    rows: int
    """Pixels of a micro-tile."""
    is_padded: bool


class ByPixels(Protocol):
    """A convolution inside its kernel, as its pixel blocks see it."""

    k: Kernel
    grid: PixelGrid
    block: Block
    transposer: RowTransposer | None
    located: Var
    """The first pixel of the block that ``block`` describes, by number in all images."""


class _Conv:
    """A convolution inside its kernel: its grid and scratch memory."""

    def __init__(self, k: Kernel, args: NhwcConvArgs[Buf, Val], config: NhwcConvConfig, epilogue: Epilogue) -> None:
        self.k, self.args, self.config, self.epilogue = k, args, config, epilogue
        self.grid = PixelGrid(args.groups, args.lines, args.length, config.shape.rows, config.is_padded)
        dtype, shape = config.dtype, config.shape
        self.lanes = lanes_of(k.lanes, dtype)
        self.nr = shape.vectors * self.lanes
        self.panels = (args.filters + (self.nr - 1)) // self.nr
        self.block, self.zeros = (
            Block(k, args.window, args.taps, config.most),
            k.scratch(dtype, Block.nbytes(config.most)),
        )
        self.sums = k.scratch(dtype, config.sums_at)
        self.taps = k.opaque(args.taps.count())
        self.block.fill_tap_offsets()
        if config.is_padded:
            self._clear_zeros()
        self.blocking = self._blocking()
        self.transposer = self._transposer()
        self.located = k.var(-1)

    def _clear_zeros(self) -> None:
        with self.k.loop(0, KC, self.lanes) as i:
            self.zeros.store(i, self.k.zeros(self.config.dtype, self.lanes))

    def _blocking(self) -> RowBlocking:
        args, shape, size = self.args, self.config.shape, self.config.dtype.bits // 8
        row_nbytes = (args.channels + args.filters * len(self.epilogue.names)) * size
        lines, panel_nbytes = args.window.batch * args.groups * args.lines, self.taps * args.channels * (self.nr * size)
        return RowBlocking(
            self.k, args.length, self.panels, lines, shape.rows, shape.block, row_nbytes, panel_nbytes,
            args.row_block_nbytes,
        )  # fmt: skip

    def _transposer(self) -> RowTransposer | None:
        k, args, config = self.k, self.args, self.config
        if args.stem is None:
            return None
        to = k.scratch(config.dtype, config.scratch_nbytes(k.isa))
        return RowTransposer(k, args.window, args.taps, args.stem, to, config.stem_channels)


class PixelBlock(Record):
    """The output pixels of some micro-tiles of a line, for one group."""

    conv: ByPixels
    image: Val
    group: Val
    line: Val
    top: Val
    bottom: Val
    """The first micro-tile and the one after the last."""
    first: Val
    """The first pixel, by number in the line."""

    @staticmethod
    def of(conv: ByPixels, index: Val, top: Val, bottom: Val) -> PixelBlock:
        """The micro-tiles from ``top`` to ``bottom`` of a line; ``index`` numbers lines over all images and groups."""
        grid = conv.grid
        line, image = index % grid.lines, index // grid.lines
        image, group = image // grid.groups, image % grid.groups
        return PixelBlock(conv, image, group, line, top, bottom, top * grid.rows)

    def locate(self) -> None:
        """Fill the tables of pixels, and transpose what a stem reads, unless the block before had the same pixels."""
        conv, k, grid, length, first = self.conv, self.conv.k, self.conv.grid, self.conv.grid.length, self.first
        place = (self.image * grid.lines + self.line) * length + first
        with k.when(conv.located.ne(place)):
            last = self.line * length + length - 1
            count = (self.bottom - self.top) * grid.rows
            conv.block.locate(self.image, self.line * length + first, count, last, grid.is_padded)
            if conv.transposer is not None:
                conv.transposer.transpose(self.image, self.line, first, k.min(count, length - first))
            conv.located.set(place)


class _KBlock(Record):
    """Some taps and channels of a panel's weights."""

    tap: Val
    channel: Val
    taps: Val
    channels: Val
    """The numbers of taps and of channels."""
    weights: Buf
    following: Buf
    """The weights of the next K-block."""
    is_later: Val
    is_last: Val


class _PanelSums(Record):
    """The sums of one panel of filters at the pixels of a block."""

    conv: _Conv
    block: PixelBlock
    source: Buf
    weights: Buf
    pace: Val
    """Elements of the next K-block that each micro-tile prefetches for an element of its own."""
    finishing: BoundEpilogue
    filter: Val
    """The first."""
    filters: Val

    @staticmethod
    def of(conv: _Conv, block: PixelBlock, panel: Val) -> _PanelSums:
        k, args, nr = conv.k, conv.args, conv.nr
        transposer = conv.transposer
        source = args.window.x.at(block.group * args.channels) if transposer is None else transposer.rows
        weights = args.w.at((block.group * conv.panels + panel) * conv.taps * args.channels * nr)
        pace = prefetch_pace(k, block.bottom - block.top, nr)
        place = [block.image, block.group, block.line]
        finish = BoundEpilogue(k, conv.epilogue, args.epilogue, args.filters, place)
        first = panel * nr
        return _PanelSums(conv, block, source, weights, pace, finish, first, k.min(args.filters - first, nr))

    @contextmanager
    def k_blocks(self) -> Iterator[_KBlock]:
        """A loop over the K-blocks, in order."""
        conv, k, args, nr = self.conv, self.conv.k, self.conv.args, self.conv.nr
        with k.loop(0, conv.taps, args.k_block_taps) as tap, k.loop(0, k.max(args.channels, 1), args.k_block) as c:
            channels = k.min(args.channels - c, args.k_block)
            taps = k.min(conv.taps - tap, args.k_block_taps)
            weights = self.weights.at((tap * args.channels + c) * nr)
            following = weights.at(taps * channels * nr)
            is_later, is_last = (tap + c) > 0, (tap + taps >= conv.taps) & (c + channels >= args.channels)
            yield _KBlock(tap, c, taps, channels, weights, following, is_later, is_last)

    def add(self, tile: Val, k_block: _KBlock) -> None:
        """Add the products of a K-block to a micro-tile; a register epilogue finishes it with the last."""
        conv, k, shape = self.conv, self.conv.k, self.conv.config.shape
        row, rows = self._rows(tile)
        partial = conv.sums.at(row * conv.nr)
        heights = conv.config.heights
        for low, height in zip((0, *heights), heights, strict=False):
            with k.when((rows > low) & (rows <= height)):
                self._micro_tile(tile, row, rows, height, k_block, partial)
        if conv.config.is_register_epilogue:
            with k.when(k_block.is_last & ((rows < shape.rows) | self.filters.ne(conv.nr))):
                self._finish_rows(partial, row, rows)

    def finish(self, tile: Val) -> None:
        """Apply the epilogue to the sums of a micro-tile in scratch memory."""
        row, rows = self._rows(tile)
        self._finish_rows(self.conv.sums.at(row * self.conv.nr), row, rows)

    def _rows(self, tile: Val) -> tuple[Val, Val]:
        """The first pixel of a micro-tile, by number in the block, and how many there are."""
        k, shape, length = self.conv.k, self.conv.config.shape, self.conv.args.length
        row = (tile - self.block.top) * shape.rows
        return row, k.min(length - self.block.first - row, shape.rows)

    def _finish_rows(self, sums: Buf, row: Val, rows: Val) -> None:
        nr, first = self.conv.nr, self.block.first + row
        self.finishing.tile(sums, nr, first, rows, self.filter, self.filters, width=nr)

    def _micro_tile(self, tile: Val, row: Val, rows: Val, height: int, k_block: _KBlock, partial: Buf) -> None:
        conv, k, config = self.conv, self.conv.k, self.conv.config
        is_high = height == config.shape.rows
        if is_high:  # for pointwise windows the hardware prefetcher is enough
            self._prefetch(tile, row, height, k_block)
        apart = (conv.args.distance if config.even == 0 else config.even) if is_high else None
        padding = conv.zeros if config.is_padded else None
        pixels = TilePixels(self.source.at(k_block.channel), padding, conv.block, row, height, apart)
        found = self._products(pixels, k_block, self._ahead(tile, k_block, is_high=is_high))
        add_previous(k, found, partial, k_block.is_later)
        if not (config.is_register_epilogue and is_high):
            store_sums(found, partial)
            return
        with k.either(k_block.is_last & self.filters.eq(conv.nr) & rows.eq(height)) as (whole, part):
            with whole:
                _put(self.finishing, found, self.block.first + row, self.filter)
            with part:
                store_sums(found, partial)

    def _prefetch(self, tile: Val, row: Val, height: int, k_block: _KBlock) -> None:
        """Prefetch what the epilogue touches and, in the first K-block, what the next micro-tile reads."""
        conv, k = self.conv, self.conv.k
        with k.when((conv.taps > 1) & k_block.is_last):
            for r in range(height):
                self.finishing.prefetch(self.block.first + row + r, self.filter, conv.nr)
        if conv.transposer is None:
            with k.when((conv.taps > 1) & ~k_block.is_later & (tile + 1 < self.block.bottom)):
                _fetch(self.source, conv.block, row + height, height, conv.args.channels)

    def _ahead(self, tile: Val, k_block: _KBlock, *, is_high: bool) -> Buf | None:
        """The address from which a micro-tile prefetches its share of the next K-block; None if it prefetches nothing.

        Low micro-tiles do not prefetch, nor do panels of one vector: such a panel is the only one, and stays in cache.
        """
        if not is_high or self.conv.config.shape.vectors == 1:
            return None
        return k_block.following.at((tile - self.block.top) * k_block.taps * k_block.channels * self.pace)

    def _products(self, pixels: TilePixels, k_block: _KBlock, ahead: Buf | None) -> list[list[Var]]:
        """The sums of a K-block; what is at ``ahead`` is prefetched into L2 meanwhile."""
        conv, k, shape, length = self.conv, self.conv.k, self.conv.config.shape, k_block.channels
        lanes, nr = conv.lanes, conv.nr
        sums = [[k.var(k.zeros(conv.config.dtype, lanes)) for _ in range(shape.vectors)] for _ in pixels.rows]

        def add(channels: Channels, b: Buf, fetched: Buf | None) -> None:
            paces: list[Operand] = [nr] if fetched is None else [nr, self.pace]
            with k.paced(0, length, paces, channels.moving) as ((p, at, *further), here):
                if fetched is not None:
                    fetched.prefetch(further[0], locality=2)
                columns = [b.load(at + j * lanes, lanes) for j in range(shape.vectors)]
                for row, element in zip(sums, channels.read(p, here), strict=True):
                    v = k.splat(element, lanes)
                    for total, y in zip(row, columns, strict=True):
                        total.set(k.multiply_add(v, y, total))

        with k.loop(0, k_block.taps) as t:
            tap, b = k_block.tap + t, k_block.weights.at(t * length * nr)
            fetched, is_even = None if ahead is None else ahead.at(t * length * self.pace), pixels.is_even(tap)
            if is_even is None:
                add(pixels.at(tap), b, fetched)
            else:
                with k.either(is_even) as (even, uneven):
                    with even:
                        add(pixels.neighbours(tap), b, fetched)
                    with uneven:
                        add(pixels.at(tap), b, fetched)
        return sums


def _put(finish: BoundEpilogue, found: list[list[Var]], row: Val, column: Val) -> None:
    """Apply the epilogue to a whole micro-tile in registers, whose first element belongs to (row, column)."""
    for r, sums in enumerate(found):
        for j, total in enumerate(sums):
            lanes = total.lanes
            finish.put(row + r, Tile(column + j * lanes, lanes, None), total.get())


def _fetch(source: Buf, block: Block, row: Val, rows: int, channels: Val) -> None:
    """Prefetch the input of the next tile's first taps: it is spread over more rows, each on its own page, than the
    hardware prefetcher follows.
    """
    k = source.k
    with k.loop(0, rows) as r, k.loop(0, channels, LINE_NBYTES // (source.dtype.bits // 8)) as c:
        source.at(block.places.load(row + r)).prefetch(c)
