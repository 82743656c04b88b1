"""int8 convolution of NCHW images as an implicit GEMM: the weights times panels that are packed on the fly.

A panel is the right operand of a product in the layout of ``quantized.pack``: its columns are NR neighbouring outputs,
its rows the elements under a window. The weights, [filters][channels][taps], are the left operand. Panels are packed
from an image block in scratch memory: the padded input rows that a block of outputs reads, with columns grouped by
stride phase, so that neighbouring outputs read neighbouring elements for each tap. Pointwise convolutions pack panels
from the image itself. Only the few panels of one step hold elements once per tap; they stay in L1 or L2 for all
filters.

An output block is as many rows as ``BLOCK_NBYTES`` of image block allow, at least one. Where there are few blocks,
filters are cut into chunks as well, so that all threads have work. Grid: (batch, group, plane, block, chunk).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.errors import NotImplemented
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Apply, IntegerConvolution, Storage
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, Problem
from sardonyx.providers.cpu.kernels.common.window import Taps, WindowArgs, WindowGeometry
from sardonyx.providers.cpu.kernels.gemm.pack import COLUMNS
from sardonyx.providers.cpu.kernels.gemm.vector import MicroTileShape
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.quantized.byte_dot import flip_signs, partner_dtype, zero_offset
from sardonyx.providers.cpu.kernels.quantized.gemm import Int8MicroTile, store_sums
from sardonyx.providers.cpu.kernels.quantized.gemm_amx import MICRO_TILE, PANEL, MicroTile, first_row
from sardonyx.providers.cpu.kernels.quantized.pack import QUAD, QuadPacker, depth_of, interleaved_quads, padded_a
from sardonyx.providers.cpu.language.amx import ROWS, Tiles
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bool_, i8, i32, i64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.prepack import aligned
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step

Array = np.ndarray[Any, Any]
BLOCK_NBYTES = 128 << 10
"""Bytes of an image block, unless one row of outputs needs more."""
PANELS = 4
"""Panels that are packed at a time and multiplied by all filters of a chunk."""
ITEMS_PER_THREAD, MIN_CHUNK_TILES = 4, 4
"""Work items wanted for each of several threads; tiles of filters in a chunk, at least, that pay for packing panels."""
MAX_POINTWISE_PANELS, MIN_BLOCK_ROWS = 8, 8
"""Panels of an output block of a pointwise convolution; rows of an output block, where they fit."""


@dataclass(frozen=True)
class Int8ConvConfig:
    """Compile-time configuration of ``conv_int8``."""

    x_dtype: DType
    taps: Taps
    shape: MicroTileShape
    has_unit_stride: bool
    """The elements of a row are adjacent in memory."""
    is_pointwise: bool
    """The window is one element and all pixels are one row: panels are packed from the image, without a block."""
    rows_are_contiguous: bool
    """Rows of outputs and of epilogue operands follow each other without gaps."""

    def nr(self, isa: Isa) -> int:
        return PANEL if isa.amx else self.shape.columns(isa, i32)

    def panel_dtype(self, isa: Isa) -> DType:
        """The type of a panel: the image's own, or the one that the chip multiplies with signed weights."""
        return self.x_dtype if isa.amx else partner_dtype(isa)

    def block_nbytes(self, channels: Known, out_x: Known) -> Known:
        """Bytes of the image block: ``BLOCK_NBYTES``, or more if one row of outputs needs more."""
        if self.is_pointwise:
            return 0
        taps = self.taps
        rows = taps.kernel[0] * (1 + (taps.kernel[1] - 1) * taps.dilations[1])
        row = dims.mul(len(taps.phases(2)), dims.add(out_x, taps.reach(2)))
        return expressible(dims.maximum(BLOCK_NBYTES, dims.product((channels, rows, row))))


def steps(group: IntegerConvolution, analysis: Analysis) -> list[Step]:
    if not all(isinstance(step, Apply) for step in group.epilogue.steps):
        raise NotImplemented("a reduction follows the sums", where=group.nodes[0].op_type)
    isa, geometry = analysis.isa, WindowGeometry.of(group)
    channels, filters = group.w.shape[1], expressible(dims.exact_div(group.w.shape[0], group.groups))
    is_pointwise = geometry.is_flat_pointwise and geometry.has_unit_stride
    pixels = geometry.size[2] if is_pointwise else dims.known(dims.mul(*geometry.size[1:])) or 1 << 20
    shape = MicroTileShape.of(isa, i32, pixels)
    config = Int8ConvConfig(
        group.x.dtype, geometry.taps, shape, geometry.has_unit_stride, is_pointwise, geometry.rows_are_contiguous
    )
    depth = expressible(dims.product((geometry.taps.count, channels)))
    before, w = _weights(group, isa, depth)
    more_before, w_sums = _weight_sums(group, w, expressible(depth_of(depth, isa)), config, isa)
    epilogue, operands = geometry.epilogue(group)
    padded, nr = depth_of(depth, isa), config.nr(isa)
    block_nbytes = config.block_nbytes(channels, geometry.size[2])
    args = Int8ConvArgs[Ref, Known](
        geometry.operand, Ref(w.storage, w.offset), w_sums, Ref.of(group.zero), groups=group.groups, channels=channels,
        filters=filters, depth=padded, block_nbytes=block_nbytes, epilogue=operands,
    )  # fmt: skip
    panels = dims.mul(padded, PANELS * nr + QUAD)
    scratch = dims.total((_Scratch.fixed_nbytes(config, isa), block_nbytes, panels))
    flops = dims.known(dims.product((2 * geometry.taps.count, channels, *group.box))) or 0
    nbytes = dims.known(dims.add(geometry.nbytes, w.storage.elements)) or 0
    variant = "AMX tiles, int8" if isa.amx else f"micro-tile of {shape.rows} filters x {shape.vectors} vectors, int8"
    spec = conv_int8(config=config, epilogue=epilogue)
    return [
        *before,
        *more_before,
        Step(spec, flat(args=args), epilogue.writes, group.nodes, expressible(scratch), flops, nbytes, variant),
    ]


def _weights(group: IntegerConvolution, isa: Isa, depth: Known) -> tuple[list[Step], Matrix]:
    """The weights as rows of whole steps of k: themselves, padded once if they are constant, or padded in every run."""
    w = group.w
    rows = Matrix(w.storage, w.offset, (), depth, 1)
    padded, tensor = depth_of(depth, isa), w.storage.tensor
    if depth == padded or tensor is None:
        return padded_a(Problem(group.nodes, (), w.shape[0], 0, depth, rows, rows, group.epilogue, (), ()), isa)
    count, width, whole = int(w.shape[0]), int(depth), int(padded)

    def make() -> Array:
        out = aligned(count * whole, i8).reshape(count, whole)
        out[:, width:] = 0
        first = int(w.offset)
        out[:, :width] = tensor.peek().reshape(-1)[first : first + count * width].reshape(count, width)
        return out.reshape(-1)

    key = ("rows of bytes", identity(tensor), w.offset, count, width, whole)
    made = Packed("constant", i8, count * whole, w.storage.value, key=key, make=make)
    return [], Matrix(made, 0, (), padded, 1)


def _weight_sums(
    group: IntegerConvolution, w: Matrix, depth: Known, config: Int8ConvConfig, isa: Isa
) -> tuple[list[Step], Ref]:
    """The sum of each filter's weights, which compensates for flipped panels; without those, a dummy."""
    count, tensor = group.w.shape[0], group.w.storage.tensor
    if not zero_offset(config.x_dtype, config.panel_dtype(isa)):
        return [], Ref(Packed("constant", i32, 1, key=("no sums",), make=lambda: np.zeros(1, np.int32)))
    if tensor is None:
        to = Storage("temporary", i32, count)
        args: dict[str, Ref | Known | float] = {
            "w": Ref(w.storage, w.offset), "sums": Ref(to), "rows": count, "depth": depth
        }  # fmt: skip
        writes = frozenset(("sums",))
        return [Step(sum_weight_rows(), args, writes, group.nodes, variant="sums of a filter's weights")], Ref(to)
    first, width = int(group.w.offset), int(expressible(dims.product(group.w.shape[1:])))

    def make() -> Array:
        content = tensor.peek().reshape(-1)[first : first + int(count) * width].reshape(int(count), width)
        return np.asarray(content.sum(1, dtype=np.int32))

    key = ("sums of rows", identity(tensor), first, count, width)
    return [], Ref(Packed("constant", i32, count, group.w.storage.value, key=key, make=make))


@kernel(w=(i8,), sums=(i32,), rows=i64, depth=i64)
def sum_weight_rows(k: Kernel, w: Buf, sums: Buf, rows: Val, depth: Val) -> None:
    """The sum of each row of weights."""
    with k.share(rows) as r:
        total = k.var(k.zeros(i32, k.lanes))
        for t in k.tiles(depth):
            total += k.cast(w.at(r * depth).load(t), i32)
        sums.store(r, total.sum())


# -- the kernel


class _Scratch:
    """A thread's scratch memory: sums, offsets of the elements under a window, panels, and the image block.

    Packing a panel's last row overruns it into the column sums in front of the next panel, which are not used here.
    """

    def __init__(self, k: Kernel, config: Int8ConvConfig, depth: Val) -> None:
        nr = config.nr(k.isa)
        self.sums = k.scratch(i32)
        at = k.const(self.sums_nbytes(config, k.isa))
        self.offsets = k.scratch(i32, at)
        at = at + depth * 4
        self.panel_nbytes = (depth + QUAD) * nr
        self.panels = k.scratch(i8, at)
        self.block = k.scratch(i8, at + self.panel_nbytes * PANELS + QUAD * nr)

    @staticmethod
    def sums_nbytes(config: Int8ConvConfig, isa: Isa) -> int:
        return MICRO_TILE * 4 if isa.amx else config.shape.rows * config.nr(isa) * 4

    @staticmethod
    def fixed_nbytes(config: Int8ConvConfig, isa: Isa) -> int:
        """Everything but panels, offsets and the image block, and the slack that is read beyond that block."""
        return _Scratch.sums_nbytes(config, isa) + (PANELS + 2) * QUAD * config.nr(isa)


@dataclass(frozen=True)
class Int8ConvArgs(Arguments[M, N]):
    """The parameters of ``conv_int8``."""

    is_inline: ClassVar[bool] = True
    window: WindowArgs[M, N]
    w: M
    w_sums: M
    zero: M
    groups: N
    channels: N
    filters: N
    """Of a group."""
    depth: N
    """Elements under a window, rounded up to whole steps of k."""
    block_nbytes: N
    """Of the image block."""
    epilogue: EpilogueArgs[M, N]


def _params(config: Int8ConvConfig, epilogue: Epilogue) -> Params:
    args = Int8ConvArgs[Memory, DType](
        WindowArgs.declared(config.x_dtype), Memory(i8), Memory(i32), Memory(config.x_dtype), i64, i64, i64, i64, i64,
        epilogue.declared,
    )  # fmt: skip
    return {"args": args}


@kernel(_params)
def conv_int8(k: Kernel, args: Int8ConvArgs[Buf, Val], *, config: Int8ConvConfig, epilogue: Epilogue) -> None:
    window, channels, filters, depth = args.window, args.channels, args.filters, args.depth
    scratch = _Scratch(k, config, depth)
    image_block = _ImageBlock(k, config, args, scratch)
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


@dataclass(frozen=True)
class _Item:
    """A work item: some filters at one block of outputs."""

    chunk: Val
    outputs: Val
    """The number of the block of outputs, over all images, groups and planes."""
    image: Val
    group: Val
    plane: Val
    block: Val
    """Of the plane."""


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


@dataclass(frozen=True)
class _Conv:
    """Packs the panels of a work item, and multiplies them by its filters."""

    k: Kernel
    config: Int8ConvConfig
    epilogue: Epilogue
    args: Int8ConvArgs[Buf, Val]
    scratch: _Scratch
    image_block: _ImageBlock
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


@dataclass(frozen=True)
class _PanelEpilogue:
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

    def __init__(self, k: Kernel, config: Int8ConvConfig, filters: Val, depth: Val, scratch: _Scratch) -> None:
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

    def __init__(self, k: Kernel, config: Int8ConvConfig, filters: Val, depth: Val, scratch: _Scratch) -> None:
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


class _ImageBlock:
    """Padded input rows in scratch memory: [channel][tap along z][row][stride phase][outputs and reach]."""

    def __init__(self, k: Kernel, config: Int8ConvConfig, args: Int8ConvArgs[Buf, Val], scratch: _Scratch) -> None:
        self.k, self.config, self.window, self.channels, self.scratch = k, config, args.window, args.channels, scratch
        taps, (_, out_y, self.out_x) = config.taps, args.window.out
        self.pitch = self.out_x + taps.reach(2)
        self.row = self.pitch * len(taps.phases(2))
        across, (sy, dy, ky) = taps.kernel[0], (taps.strides[1], taps.dilations[1], taps.kernel[1])
        self.extra = (ky - 1) * dy
        """Input rows that the taps of one output span, less one."""
        if config.is_pointwise:
            self.rows = k.const(1)
            return
        fitting = (args.block_nbytes // k.max(self.channels * across * self.row, 1) - self.extra - 1) // sy + 1
        least = ceil_div(k.const(config.nr(k.isa)), k.max(self.out_x, 1))
        self.rows = k.max(k.min(k.min(fitting, k.max(least, MIN_BLOCK_ROWS)), out_y), 1)
        """Rows of outputs of a block."""
        self.high = (self.rows - 1) * sy + self.extra + 1
        self.plane = self.high * self.row
        self._tables()

    def _tables(self) -> None:
        """Store the offset in the block of each element under a window. The rest of the last quad may be any."""
        k, taps, at = self.k, self.config.taps, self.k.var(0)
        places = taps.phase_offsets(2)
        with k.loop(0, self.channels) as c, k.loop(0, taps.kernel[0]) as tz, k.loop(0, taps.kernel[1]) as ty:
            row = (c * taps.kernel[0] + tz) * self.plane + ty * (taps.dilations[1] * self.row)
            for phase, ahead in places:
                self.scratch.offsets.store(at.get(), k.cast(row + self.pitch * phase + ahead, i32))
                at.set(at.get() + 1)
        for t in range(QUAD - 1):
            self.scratch.offsets.store(at.get() + t, 0)

    def fill(self, x: Buf, plane: Val, top: Val, zero: Val) -> None:
        """Copy the input rows that outputs from row ``top`` of a plane on read, of all channels."""
        k, taps = self.k, self.config.taps
        (in_z, in_y, in_x), pads, strides = self.window.size, self.window.pad, self.window.strides
        with k.loop(0, self.channels) as c, k.loop(0, taps.kernel[0]) as tz, k.loop(0, self.high) as r:
            z = plane * taps.strides[0] + tz * taps.dilations[0] - pads[0]
            y = top * taps.strides[1] + r - pads[1]
            to = self.scratch.block.at((c * taps.kernel[0] + tz) * self.plane + r * self.row)
            exists = (z >= 0) & (z < in_z) & (y >= 0) & (y < in_y)
            source = x.at(c * strides.c + z * strides.z + y * strides.y)
            for i, phase in enumerate(taps.phases(2)):
                self._copy_phase(to.at(self.pitch * i), source, exists, phase, pads[2], in_x, strides.x, zero)

    def _copy_phase(
        self, to: Buf, source: Buf, exists: Val, phase: int, pad: Val, in_x: Val, stride: Val, zero: Val
    ) -> None:  # fmt: skip
        """Copy one stride phase of a row: its element i is element i * stride + phase - pad of the row."""
        k, s = self.k, self.config.taps.strides[2]
        to = to.as_type(self.config.x_dtype)
        first = k.min(k.max((pad - phase + (s - 1)) // s, 0), self.pitch)
        first = k.select(pad - phase > 0, first, 0)
        right = in_x + pad - phase
        last = k.select(exists & (right > 0), k.max(k.min((right + (s - 1)) // s, self.pitch), first), first)
        with k.loop(0, first) as i:
            to.store(i, zero)
        done, wide = first, k.lanes * QUAD
        if s == 1 and self.config.has_unit_stride:
            done = first + (last - first) // wide * wide
            with k.loop(first, done, wide) as i:
                to.store(i, source.load(i + phase - pad, wide))
        with k.loop(done, last) as i:
            to.store(i, source.load((i * s + phase - pad) * stride))
        with k.loop(last, self.pitch) as i:
            to.store(i, zero)

    def pack_panel(self, panel: Buf, first: Val, columns: Val, depth: Val, *, flips: bool) -> None:
        """Pack ``columns`` outputs of the block from number ``first`` on, one quad of k after the other.

        A row of outputs is stored in whole vectors; the next row overwrites what is beyond its end.
        """
        k, nr, sy = self.k, self.config.nr(self.k.isa), self.config.taps.strides[1]
        y, left = first // self.out_x, first % self.out_x

        used = k.min(depth, ceil_div(self.channels * self.config.taps.count, QUAD) * QUAD)
        with k.loop(0, used, QUAD) as p:
            starts = [self.scratch.block.at(k.cast(self.scratch.offsets.load(p + t), i64)) for t in range(QUAD)]
            to = panel.at((p + QUAD) * nr)
            row, at, done = k.var(y * (sy * self.row)), k.var(left), k.var(0)
            with k.loop_while(lambda: done.get() < columns):
                here = row.get() + at.get()
                quads = k.bitcast(interleaved_quads([s.load(here, nr) for s in starts]), i32)
                to.store(done.get() * QUAD, k.bitcast(flip_signs(quads) if flips else quads, i8))
                done.set(done.get() + self.out_x - at.get())
                row.set(row.get() + sy * self.row)
                at.set(0)
        with k.loop(used * nr, depth * nr, k.lanes * QUAD) as i:
            panel.store(i + QUAD * nr, k.zeros(i8, k.lanes * QUAD))
