"""Direct convolution of NCHW images by vector multiply-adds, outputs along the lanes.

A micro-tile is MR filters by NV vectors of neighbouring outputs. For each channel and tap, NV vectors of the image
block (``common.image_block``) are multiplied by MR broadcast weights, which are packed as [group][filters /
MR][channel][taps][MR]. The image keeps its layout; nothing is stored once per tap.

**Order of sums.** Channel by channel and tap by tap, in K-blocks of whole channels: about ``RUN`` terms, or half of a
shorter sum. Each K-block starts from zero and K-blocks are added in order, so results do not depend on blocks, tiles or
the number of threads.

**Cache blocking.** An image block covers some rows of outputs and all channels of a group, and takes half of L2. For
each tile of filters, the weights of a K-block (in L1) are applied to all outputs of the block, whose accumulators are
in scratch. Meanwhile the lines that the next tile of outputs reads are prefetched into L1. The grid is (batch, group,
plane, block, chunk of filters); a thread whose next chunk has the same block reuses it. Blocks depend on sizes and
caches, chunks on sizes only.

Window sizes are run-time numbers: tap offsets are looked up in a table, which is cheap next to the products of a
tile, and one kernel serves all windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.kernels.common.block_epilogue import BlockEpilogue
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue, EpilogueArgs, is_cheap
from sardonyx.providers.cpu.kernels.common.image_block import (
    LINE,
    ImageBlock,
    ImageBlockArgs,
    ImageBlockConfig,
    OutputBlocks,
    RuntimeWindow,
    ScratchLayout,
    broadcast_weights,
)
from sardonyx.providers.cpu.kernels.common.window import WindowGeometry, refusal
from sardonyx.providers.cpu.kernels.conv.filter_tile import (
    FilterTile,
    channels_per_block,
    filter_chunks,
    is_shallow,
    packed_filters,
)
from sardonyx.providers.cpu.kernels.gemm.vector import accumulate, lanes_of
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, Var, i64, register_dtype
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import Record


class DirectConvConfig(Record):
    """Compile-time configuration of a direct convolution."""

    dtype: DType
    """The type of the accumulators."""
    step: int
    """The stride along x: 1, 2, or 0 for any other."""
    shape: FilterTile
    has_unit_stride: bool
    """Elements of an image row are adjacent in memory."""
    rows_are_contiguous: bool
    """Rows of outputs and of epilogue operands follow each other without gaps."""
    is_register_epilogue: bool
    """There is one K-block only, and the epilogue is cheap: it is applied to registers."""


def supports(group: Convolution, analysis: Analysis) -> Refusal | None:
    return refusal(group)


def steps(group: Convolution, analysis: Analysis) -> list[Step]:
    isa, geometry, dtype = analysis.isa, WindowGeometry.of(group), register_dtype(group.x.dtype)
    channels, filters = group.w.shape[1], expressible(dims.exact_div(group.w.shape[0], group.groups))
    shape = FilterTile.of(isa, filters)
    is_register_epilogue = (
        geometry.rows_are_contiguous and is_shallow(geometry.taps, channels) and is_cheap(group.epilogue)
    )
    config = DirectConvConfig(
        dtype, geometry.taps.step, shape, geometry.has_unit_stride, geometry.rows_are_contiguous, is_register_epilogue
    )
    before, weights = packed_filters(group, dtype, shape.rows, isa)
    epilogue, operands = geometry.epilogue(group)
    block_channels = (
        channels if is_register_epilogue and isinstance(channels, int) else channels_per_block(geometry.taps, channels)
    )
    layout = ScratchLayout(geometry.taps, dtype, lanes_of(isa.lanes, dtype), shape.rows, block_channels)
    room_nbytes = isa.l2_nbytes // 2
    args = DirectConvArgs[Ref, Known](
        ImageBlockArgs(geometry.operand, layout.operand), weights.operand.memory, groups=group.groups,
        channels=channels, filters=filters, room=room_nbytes * 8 // config.dtype.bits, epilogue=operands,
    )  # fmt: skip
    flops = dims.known(dims.product((2 * geometry.taps.count, channels, *group.box))) or 0
    nbytes = dims.known(dims.add(geometry.nbytes, dims.mul(weights.storage.elements, config.dtype.bits // 8))) or 0
    spec = conv_direct(config=config, x_dtype=group.x.dtype, epilogue=epilogue)
    variant = f"{config.shape.rows} filters x {config.shape.vectors} vectors of {config.dtype}"
    scratch = layout.nbytes(channels, room_nbytes)
    return [*before, Step(spec, flat(args=args), epilogue.writes, group.nodes, scratch, flops, nbytes, variant)]


class DirectConvArgs(Arguments[M, N]):
    """The parameters of ``conv_direct``."""

    is_inline: ClassVar[bool] = True
    image: ImageBlockArgs[M, N]
    w: M
    groups: N
    channels: N
    filters: N
    """Channels and filters of a group."""
    room: N
    """Elements of an image block."""
    epilogue: EpilogueArgs[M, N]


def _params(config: DirectConvConfig, x_dtype: DType, epilogue: Epilogue) -> Params:
    image, w = ImageBlockArgs.declared(x_dtype), Memory(config.dtype)
    return {"args": DirectConvArgs[Memory, DType](image, w, i64, i64, i64, i64, epilogue.declared)}


@kernel(_params)
def conv_direct(
    k: Kernel, args: DirectConvArgs[Buf, Val], *, config: DirectConvConfig, x_dtype: DType, epilogue: Epilogue
) -> None:
    window, groups, channels, filters = args.image.window, args.groups, args.channels, args.filters
    taps, shape, lanes = RuntimeWindow(k, args.image.scratch), config.shape, lanes_of(k.lanes, config.dtype)
    block_config = ImageBlockConfig(config.dtype, lanes, config.step, config.has_unit_stride)
    depth, planes = channels * taps.count, window.axes.z.out
    tiles = ceil_div(filters, shape.rows)
    blocks = OutputBlocks(k, taps, window, args.room // k.max(channels * taps.phase_planes, 1), shape.rows, lanes)
    count = window.batch * groups * planes * blocks.count
    chunks, filled = filter_chunks(k, count, tiles), k.var(-1)
    with k.share(count * chunks) as at:
        chunk, which = at % chunks, at // chunks
        image, block_number = which // blocks.count, which % blocks.count
        plane, image = image % planes, image // planes
        group, image = image % groups, image // groups
        block = ImageBlock(k, taps, args.image, blocks, block_number, block_config)
        start = window.x.at(image * window.strides.b + group * channels * window.strides.c)
        with k.when(filled.ne(which)):
            block.tables()
            block.fill(start, plane, channels, 0.0)
            filled.set(which)
        with k.loop(chunk * tiles // chunks, (chunk + 1) * tiles // chunks) as tile:
            weights = args.w.at((group * tiles + tile) * depth * shape.rows)
            first = tile * shape.rows
            rows = k.min(filters - first, shape.rows)
            tile_epilogue = _TileEpilogue(
                k, epilogue, args.epilogue, block, [image, plane], group * filters + first, rows, config
            )
            if config.is_register_epilogue:
                only = _KBlock(k, config, block, weights, k.const(0), channels)
                tile_epilogue.rest(only.accumulate(tile_epilogue))
            else:
                block_channels = args.image.scratch.layout.channels
                with k.loop(0, k.max(channels, 1), block_channels) as c:
                    panel = weights.at(c * (taps.count * shape.rows))
                    _KBlock(k, config, block, panel, c, k.min(channels - c, block_channels)).accumulate()
                tile_epilogue.rest(k.const(0))


class _TileEpilogue(BlockEpilogue):
    """The epilogue of a tile of filters."""

    config: DirectConvConfig

    @property
    def is_contiguous(self) -> Val:
        """Whether the accumulators of a filter are contiguous in scratch, as its outputs are in memory."""
        return (self.block.columns % self.block.lanes).eq(0) | self.block.rows.eq(1)

    @property
    def full_vectors(self) -> Val:
        """Vectors that can be finished in registers: all lanes are outputs, and all rows of the tile are filters."""
        k, block = self.k, self.block
        is_full = self.is_contiguous & self.rows.eq(self.config.shape.rows)
        return k.select(is_full, block.rows * block.columns // block.lanes, 0)

    def put(self, found: list[list[Var]], v: Val) -> None:
        """Finish a micro-tile in registers, from vector ``v`` of the block on."""
        finish, place = self.as_one_row()
        lanes = self.block.lanes
        for r, row in enumerate(found):
            for j, total in enumerate(row):
                finish.put(self.first + r, Tile(place + (v + j) * lanes, lanes, None), total.get())

    def rest(self, done: Val) -> None:
        """Finish the accumulators in scratch, from vector ``done`` on."""
        k, block = self.k, self.block
        if not self.config.rows_are_contiguous:
            self.row_by_row(self.block.row)
            return
        finish, place = self.as_one_row()
        with k.either(self.is_contiguous) as (yes, no):
            with yes:
                before = done * block.lanes
                sums, count = block.sums.at(before), block.rows * block.columns - before
                finish.tile(sums, block.sums_pitch, self.first, self.rows, place + before, count)
            with no:
                self.row_by_row(self.block.row)


class _KBlock(Record):
    """A K-block: the sums over ``count`` channels from ``channel`` on, for all outputs of an image block."""

    k: Kernel
    config: DirectConvConfig
    block: ImageBlock
    weights: Buf
    channel: Val
    count: Val

    def accumulate(self, epilogue: _TileEpilogue | None = None) -> Val:
        """Add the sums to scratch memory. Given an epilogue, finish full vectors in registers; returns their number."""
        k, block, done, most = self.k, self.block, self.k.const(0), self.config.shape.vectors
        finished = done
        if epilogue is not None:
            finished = done = epilogue.full_vectors // most * most
            with k.loop(0, done, most) as v:
                epilogue.put(self._tile(v, most), v)
        for width in self.config.shape.widths:
            stop = done + (block.vectors - done) // width * width
            with k.loop(done, stop, width) as v:
                sums = block.sums.at(v * block.lanes)
                accumulate(k, self._tile(v, width), sums, self.channel > 0, block.sums_pitch)
            done = stop
        return finished

    def _tile(self, v: Val, width: int) -> list[list[Var]]:
        k, block, shape = self.k, self.block, self.config.shape
        total = [[k.var(k.zeros(self.config.dtype, block.lanes)) for _ in range(width)] for _ in range(shape.rows)]
        image = block.elements.at(self.channel * block.channel)
        starts = [image.at(block.vector_offset(v + j)) for j in range(width)]
        with k.loop(0, self.count * block.taps.count) as term:
            here = block.tap_offsets.load(term)
            if width == shape.vectors:
                starts[-1].at(here).prefetch(LINE)
            vectors = [s.load(here, block.lanes) for s in starts]
            sums = [[x.get() for x in row] for row in total]
            made = self._multiply_add(
                sums, broadcast_weights(k, self.weights.at(term * shape.rows), shape.rows, block.lanes), vectors
            )
            for row, new in zip(total, made, strict=True):
                for x, value in zip(row, new, strict=True):
                    x.set(value)
        return total

    def _multiply_add(self, sums: list[list[Val]], singles: Iterator[Val], vectors: list[Val]) -> list[list[Val]]:
        return [
            [self.k.multiply_add(w, v, x) for x, v in zip(row, vectors, strict=True)]
            for row, w in zip(sums, singles, strict=True)
        ]
