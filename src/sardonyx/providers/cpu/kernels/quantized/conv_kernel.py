"""The kernel of ``quantized.conv``: work items are some filters at one block of outputs.

An output block is as many rows as ``BLOCK_NBYTES`` of image block allow, at least one. Where there are few blocks,
filters are cut into chunks as well, so that all threads have work. Grid: (batch, group, plane, block, chunk).
"""

from __future__ import annotations

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.common.window import WindowArgs
from sardonyx.providers.cpu.kernels.gemm.pack import COLUMNS
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.quantized.byte_dot import zero_offset
from sardonyx.providers.cpu.kernels.quantized.conv_block import (
    PANELS,
    Int8ConvArgs,
    Int8ConvConfig,
    Int8ConvScratch,
    Int8ImageBlock,
)
from sardonyx.providers.cpu.kernels.quantized.gemm import Int8MicroTile, store_sums
from sardonyx.providers.cpu.kernels.quantized.gemm_amx import PANEL, MicroTile, first_row
from sardonyx.providers.cpu.kernels.quantized.pack import QUAD, QuadPacker
from sardonyx.providers.cpu.language.amx import ROWS, Tiles
from sardonyx.providers.cpu.language.arguments import Memory
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bool_, i8, i32, i64
from sardonyx.records import Record

ITEMS_PER_THREAD, MIN_CHUNK_TILES = 4, 4
"""Work items wanted for each of several threads; tiles of filters in a chunk, at least, that pay for packing panels."""
MAX_POINTWISE_PANELS = 8
"""Panels of an output block of a pointwise convolution."""


def _params(config: Int8ConvConfig, epilogue: Epilogue) -> Params:
    args = Int8ConvArgs[Memory, DType](
        WindowArgs.declared(config.x_dtype), Memory(i8), Memory(i32), Memory(config.x_dtype), i64, i64, i64, i64, i64,
        epilogue.declared,
    )  # fmt: skip
    return {"args": args}


@kernel(_params)
def conv_int8(k: Kernel, args: Int8ConvArgs[Buf, Val], *, config: Int8ConvConfig, epilogue: Epilogue) -> None:
    window, channels, filters, depth = args.window, args.channels, args.filters, args.depth
    scratch = Int8ConvScratch(k, config, depth)
    image_block = Int8ImageBlock(k, config, args, scratch)
    product = (_AmxProduct if k.isa.amx else _VectorProduct)(k, config, filters, depth, scratch)
    grid = _Grid(k, config, args, image_block.rows, ceil_div(filters, product.rows))
    conv = _Conv(k, config, epilogue, args, scratch, image_block, product, grid)
    filled = k.var(-1)
    with k.share(grid.count * grid.chunks) as at:
        item = grid.item(at)
        start = window.x.at(item.image * window.strides.b + item.group * channels * window.strides.c)
        weights = args.w.at(item.group * filters * depth)
        if not config.is_pointwise:
            with k.when(filled.ne(item.outputs)):
                image_block.fill(start, item.plane, item.block * grid.rows, args.zero.load())
                filled.set(item.outputs)
        pixels = grid.pixels(item)
        with k.loop(0, pixels, PANELS * grid.nr) as first:
            end = k.min(pixels, first + PANELS * grid.nr)
            conv.pack_panels(item, start, pixels, first, end)
            conv.multiply_panels(item, weights, pixels, first, end)
    product.end()


class _Item(Record):
    """A work item: some filters at one block of outputs."""

    chunk: Val
    outputs: Val
    """The number of the block of outputs, over all images, groups and planes."""
    image: Val
    group: Val
    plane: Val
    block: Val
    """The number of the block of outputs in the plane."""


class _Grid:
    """The work items: (batch, group, plane, block of outputs, chunk of filters)."""

    def __init__(self, k: Kernel, config: Int8ConvConfig, args: Int8ConvArgs[Buf, Val], rows: Val, tiles: Val) -> None:
        """A block has ``rows`` rows of outputs; a group has ``tiles`` tiles of filters."""
        self.k, self.config, self.rows, self.tiles, self.groups = k, config, rows, tiles, args.groups
        self.nr, (self.planes, self.out_y, self.out_x) = config.nr(k.isa), args.window.out
        self.blocks = ceil_div(self.out_y, rows)
        self.panels = ceil_div(rows * self.out_x, self.nr)
        if config.is_pointwise:
            self.panels = k.max(k.min(k.const(MAX_POINTWISE_PANELS), ceil_div(self.out_x, self.nr)), 1)
            self.blocks = ceil_div(self.out_x, self.panels * self.nr)
        self.count = args.window.batch * args.groups * self.planes * self.blocks
        wanted = k.select(k.threads > 1, k.threads * ITEMS_PER_THREAD, 1)
        self.chunks = k.max(k.min(ceil_div(wanted, k.max(self.count, 1)), tiles // MIN_CHUNK_TILES), 1)

    def item(self, at: Val) -> _Item:
        chunk, outputs = at % self.chunks, at // self.chunks
        image, block = outputs // self.blocks, outputs % self.blocks
        plane, image = image % self.planes, image // self.planes
        group, image = image % self.groups, image // self.groups
        return _Item(chunk, outputs, image, group, plane, block)

    def first_pixel(self, item: _Item) -> Val:
        """The first output of an item, by its number in the plane."""
        if self.config.is_pointwise:
            return item.block * self.panels * self.nr
        return item.block * self.rows * self.out_x

    def pixels(self, item: _Item) -> Val:
        """The number of outputs of an item."""
        rows = self.k.min(self.out_y - item.block * self.rows, self.rows)
        if self.config.is_pointwise:
            return self.k.min(self.out_x - item.block * self.panels * self.nr, self.panels * self.nr)
        return rows * self.out_x


class _Conv(Record):
    """Packs the panels of a work item, and multiplies them by its filters."""

    k: Kernel
    config: Int8ConvConfig
    epilogue: Epilogue
    args: Int8ConvArgs[Buf, Val]
    scratch: Int8ConvScratch
    image_block: Int8ImageBlock
    product: _VectorProduct | _AmxProduct
    grid: _Grid

    def pack_panels(self, item: _Item, image: Buf, pixels: Val, first: Val, end: Val) -> None:
        """Pack outputs ``first`` to ``end`` of the item's ``pixels``."""
        k, args, grid, nr, flips = self.k, self.args, self.grid, self.grid.nr, self.product.zero_offset != 0
        with k.loop(first, end, nr) as at:
            panel = self._panel(at, first)
            if self.config.is_pointwise:
                pixel = item.block * grid.panels * nr + at
                columns, x_c = k.min(grid.out_x - pixel, nr), args.window.strides.c
                packer = QuadPacker(k, image.at(pixel), x_c, k.const(1), args.channels, columns, nr, flips=flips)
                packer.fill(panel.at(nr * QUAD), args.depth // QUAD, COLUMNS)
            else:
                self.image_block.pack_panel(panel, at, k.min(pixels - at, nr), args.depth, flips=flips)

    def multiply_panels(self, item: _Item, weights: Buf, pixels: Val, first: Val, end: Val) -> None:
        """Multiply the packed panels by the item's chunk of filters, and finish the sums."""
        k, grid, nr, high, filters = self.k, self.grid, self.grid.nr, self.product.rows, self.args.filters
        first_pixel = grid.first_pixel(item)
        begin, stop = item.chunk * grid.tiles // grid.chunks, (item.chunk + 1) * grid.tiles // grid.chunks
        with k.loop(begin, stop) as tile, k.loop(first, end, nr) as at:
            panel = self._panel(at, first)
            epilogue = _PanelEpilogue(
                k, self.config, self.epilogue, self.args, [item.image, item.plane], item.group * filters,
                first_pixel + at, k.min(pixels - at, nr),
            )  # fmt: skip
            rows = k.min(filters - tile * high, high)
            self.product.tile(weights, self.args.w_sums.at(item.group * filters), panel, tile * high, rows, epilogue)

    def _panel(self, at: Val, first: Val) -> Buf:
        return self.scratch.panels.at((at - first) // self.grid.nr * self.scratch.panel_nbytes)


class _PanelEpilogue(Record):
    """The epilogue of some filters at the outputs of one panel."""

    k: Kernel
    config: Int8ConvConfig
    epilogue: Epilogue
    args: Int8ConvArgs[Buf, Val]
    at: list[Val]
    """The image and the plane, by number."""
    first: Val
    """The first filter of the group."""
    pixel: Val
    """The first output, by its number in the plane."""
    columns: Val
    """The number of outputs."""

    def put(self, sums: Buf, row: Val, rows: Val) -> None:
        k, nr, (_, out_y, out_x) = self.k, self.config.nr(self.k.isa), self.args.window.out
        pixel, columns, operands = self.pixel, self.columns, self.args.epilogue
        if self.config.rows_are_contiguous:
            finish = BoundEpilogue(k, self.epilogue, operands, out_y * out_x, [*self.at, k.const(0)])
            finish.tile(sums, nr, self.first + row, rows, pixel, columns, width=nr, at_once=True)
            return
        done = k.var(0)
        with k.loop_while(lambda: done.get() < columns):
            y, left = (pixel + done.get()) // out_x, (pixel + done.get()) % out_x
            here = k.min(columns - done.get(), out_x - left)
            finish = BoundEpilogue(k, self.epilogue, operands, out_x, [*self.at, y])
            finish.tile(sums.at(done.get()), nr, self.first + row, rows, left, here)
            done.set(done.get() + here)


class _VectorProduct:
    """A tile of filters times a panel, in vector registers."""

    def __init__(self, k: Kernel, config: Int8ConvConfig, filters: Val, depth: Val, scratch: Int8ConvScratch) -> None:
        self.k, self.config, self.depth, self.scratch = k, config, depth, scratch
        self.rows = config.shape.rows
        self.zero_offset = zero_offset(config.x_dtype, config.panel_dtype(k.isa))

    def tile(self, weights: Buf, sums: Buf, panel: Buf, first: Val, rows: Val, epilogue: _PanelEpilogue) -> None:
        """Compute and finish ``rows`` filters from ``first`` on. ``sums`` are the sums of the filters' weights."""
        k, shape, nr = self.k, self.config.shape, self.config.nr(self.k.isa)
        tile = Int8MicroTile(k, shape, i8, self.config.panel_dtype(k.isa))
        for low, high in zip((0, *shape.heights), shape.heights, strict=False):
            with k.when((rows > low) & (rows <= high)):
                at = [first + k.min(rows - 1, r) for r in range(high)]
                start = None
                if self.zero_offset:
                    start = [k.splat(sums.load(r) * self.zero_offset, k.lanes) for r in at]
                given = [weights.at(r * self.depth) for r in at]
                store_sums(tile.sums(given, panel, self.depth, start), self.scratch.sums, nr)
        epilogue.put(self.scratch.sums, first, rows)

    def end(self) -> None:
        pass


class _AmxProduct:
    """32 filters times a panel, in AMX tiles."""

    rows, zero_offset = PANEL, 0

    def __init__(self, k: Kernel, config: Int8ConvConfig, filters: Val, depth: Val, scratch: Int8ConvScratch) -> None:
        self.k, self.config, self.filters, self.depth, self.scratch = k, config, filters, depth, scratch
        self.tiles, self.is_short = Tiles(k), filters <= ROWS
        self.tiles.configure(k.select(self.is_short, k.max(filters, 1), ROWS), short=MicroTile.SHORT)

    def tile(self, weights: Buf, _: Buf, panel: Buf, first: Val, rows: Val, epilogue: _PanelEpilogue) -> None:
        k, sums = self.k, self.scratch.sums
        micro_tile = MicroTile(self.tiles, sums, k.const(False, bool_), i8, self.config.x_dtype)
        given = [weights.at(first_row(k, first + r, self.filters) * self.depth) for r in (0, ROWS)]
        with k.either(self.is_short) as (short, whole):
            for branch, count in ((short, 1), (whole, 2)):
                with branch:
                    micro_tile.add(given[:count], self.depth, panel.at(QUAD * PANEL), self.depth)
        with k.loop(first, first + rows, ROWS) as row:
            found = sums.at((row - first + row - first_row(k, row, self.filters)) * PANEL)
            epilogue.put(found, row, k.min(self.filters - row, ROWS))

    def end(self) -> None:
        self.tiles.release()
