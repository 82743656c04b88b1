"""Depthwise convolution of NCHW images: every filter reads one channel.

The grid is (batch, plane, image block, chunk of filters). A work item copies one channel of its block after the other
into scratch in L1 (``common.image_block``), whose padding stays, accumulates all outputs there and applies the
epilogue. With few taps, micro-tiles of some rows by two vectors of outputs are accumulated from vectors that are loaded
once for all of them, with every tap unrolled; a cheap epilogue is applied to registers.

The last vector of a row overlaps the one before it. Where rows of accumulators follow each other without gaps, a vector
that is longer than its row reaches into the next row, which is stored later. The order of a sum depends on the window
and, through the height of a block, on the sizes of the image; not on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.kernels.common.block_epilogue import BlockEpilogue
from sardonyx.providers.cpu.kernels.common.epilogue import BROADCAST, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.image_block import (
    ImageBlock,
    ImageBlockArgs,
    ImageBlockConfig,
    OutputBlocks,
    RuntimeWindow,
    ScratchLayout,
    broadcast_weights,
)
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, Problem
from sardonyx.providers.cpu.kernels.common.window import Taps, WindowGeometry, refusal
from sardonyx.providers.cpu.kernels.gemm.pack import packed_b
from sardonyx.providers.cpu.kernels.gemm.vector import lanes_of
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, i64, register_dtype
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import Record

MAX_TILED_TAPS, HEIGHTS = 25, (7, 4)
"""Taps up to which several rows of outputs are accumulated at once, and how many rows: halved 224-pixel images have a
multiple of 7. Two vectors per row are 14 registers of accumulators, next to up to 7 of weights.
"""
UNROLLED = 8
"""Taps of a row up to which they are unrolled."""
WIDTHS = (8, 4, 1)
"""Vectors that are accumulated at once: eight hide the latency of an addition, fewer take the tail."""
GRID, CHUNK = 64, 16
"""Work items wanted; filters of a work item, at most."""


class DepthwiseConfig(Record):
    """Compile-time configuration of a depthwise convolution."""

    dtype: DType
    """The type of the accumulators."""
    taps: Taps
    rows: int
    """Rows of outputs of a micro-tile; 0: single vectors of outputs, in order."""
    has_unit_stride: bool
    """Elements of an image row are adjacent in memory."""
    rows_are_contiguous: bool
    """Rows of outputs and of epilogue operands follow each other without gaps."""
    is_register_epilogue: bool
    """The epilogue of micro-tiles is applied to registers: it is cheap, and a row has at least one vector."""

    def layout(self, lanes: int) -> ScratchLayout:
        return ScratchLayout(self.taps, self.dtype, lanes_of(lanes, self.dtype), 1)


def supports(group: Convolution, analysis: Analysis) -> Refusal | None:
    is_depthwise = group.groups > 1 and group.w.shape[1] == 1
    return refusal(group) if is_depthwise else Refusal("filters read more than one channel")


def steps(group: Convolution, analysis: Analysis) -> list[Step]:
    isa, geometry, dtype = analysis.isa, WindowGeometry.of(group), register_dtype(group.x.dtype)
    per_channel = expressible(dims.exact_div(group.w.shape[0], group.groups))
    epilogue, operands = geometry.epilogue(group)
    rows = _rows(geometry, isa)
    is_register_epilogue = rows > 0 and _is_register_epilogue(geometry, epilogue, lanes_of(isa.lanes, dtype))
    config = DepthwiseConfig(
        dtype, geometry.taps, rows, geometry.has_unit_stride, geometry.rows_are_contiguous, is_register_epilogue
    )
    before, weights = _weights(group, config, isa)
    room_nbytes = isa.l1_nbytes // 2
    flops = expressible(dims.product((2 * geometry.taps.count, *group.box)))
    layout = config.layout(isa.lanes)
    scratch = layout.nbytes(1, room_nbytes)
    spec = conv_depthwise_nchw(config=config, x_dtype=group.x.dtype, epilogue=epilogue)
    args = DepthwiseNchwArgs[Ref, Known](
        ImageBlockArgs(geometry.operand, layout.operand), filters=group.box[1], per_channel=per_channel,
        room=room_nbytes * 8 // dtype.bits, w=weights, epilogue=operands,
    )  # fmt: skip
    return [
        *before,
        Step(
            spec,
            flat(args=args),
            epilogue.writes,
            group.nodes,
            scratch,
            flops,
            geometry.nbytes,
            "one channel at a time, NCHW",
        ),
    ]


def _rows(geometry: WindowGeometry, isa: Isa) -> int:
    """The height of a micro-tile: the one for which the fewest rows are computed twice."""
    rows = geometry.size[1]
    if not 1 < geometry.taps.count <= MAX_TILED_TAPS:
        return 0
    if not isinstance(rows, int) or isa.registers < 32:
        return HEIGHTS[-1]
    return min((h for h in HEIGHTS if h <= rows), key=lambda h: -rows % h, default=HEIGHTS[-1])


def _is_register_epilogue(geometry: WindowGeometry, epilogue: Epilogue, lanes: int) -> bool:
    """Whether the epilogue is applied to registers.

    Vectors that overlap are finished twice. So operands may not be read again where they could share memory with the
    output: only those with one value per filter are allowed.
    """
    columns, is_alone = geometry.size[2], all(x.columns == BROADCAST for x in epilogue.extra)
    has_vectors = not isinstance(columns, int) or columns >= lanes
    return geometry.rows_are_contiguous and is_alone and has_vectors and not epilogue.is_expensive


def _weights(group: Convolution, config: DepthwiseConfig, isa: Isa) -> tuple[list[Step], Ref]:
    """The weights in the type of the accumulators."""
    w, count = group.w, config.taps.count
    if w.dtype is config.dtype:
        return [], Ref.of(w)
    matrix = Matrix(w.storage, w.offset, (), count, 1)
    problem = Problem(group.nodes, (), 0, count, w.shape[0], matrix, matrix, group.epilogue, (), ())
    before, panel = packed_b(problem, config.dtype, count, isa)
    return before, Ref(panel.storage)


class DepthwiseNchwArgs(Arguments[M, N]):
    """The parameters of ``conv_depthwise_nchw``."""

    is_inline: ClassVar[bool] = True
    image: ImageBlockArgs[M, N]
    filters: N
    per_channel: N
    """Filters that read one channel."""
    room: N
    """Elements of an image block."""
    w: M
    epilogue: EpilogueArgs[M, N]


def _params(config: DepthwiseConfig, x_dtype: DType, epilogue: Epilogue) -> Params:
    image, w = ImageBlockArgs.declared(x_dtype), Memory(config.dtype)
    return {"args": DepthwiseNchwArgs[Memory, DType](image, i64, i64, i64, w, epilogue.declared)}


@kernel(_params)
def conv_depthwise_nchw(
    k: Kernel, args: DepthwiseNchwArgs[Buf, Val], *, config: DepthwiseConfig, x_dtype: DType, epilogue: Epilogue
) -> None:
    window, filters = args.image.window, args.filters
    planes, lanes = window.axes.z.out, lanes_of(k.lanes, config.dtype)
    block_config = ImageBlockConfig(config.dtype, lanes, config.taps.step, config.has_unit_stride, is_padded=True)
    taps = RuntimeWindow(k, args.image.scratch)
    blocks = OutputBlocks(k, taps, window, args.room // taps.phase_planes, 1, lanes)
    count = window.batch * planes * blocks.count
    chunks = k.max(ceil_div(filters, CHUNK), k.min(ceil_div(k.const(GRID), k.max(count, 1)), filters))
    padded = k.var(-1)
    with k.share(count * chunks) as at:
        chunk, which = at % chunks, at // chunks
        block_number, plane, image = (
            which % blocks.count,
            which // blocks.count % planes,
            which // blocks.count // planes,
        )
        block = ImageBlock(k, taps, args.image, blocks, block_number, block_config)
        with k.when(padded.get().ne(which)):
            block.clear()
            padded.set(which)
        is_tiled = block.rows >= config.rows if config.rows else k.const(0).ne(0)
        if config.is_register_epilogue:
            is_tiled &= block.columns >= lanes
        with k.when(~is_tiled):
            block.tables()
        with k.loop(chunk * filters // chunks, (chunk + 1) * filters // chunks) as c:
            start = image * window.strides.b + c // args.per_channel * window.strides.c
            block.refill(window.x.at(start), plane, config.taps)
            finish = _FilterEpilogue(k, epilogue, args.epilogue, block, [image, plane], c, k.const(1), config)
            _FilterSums(k, config, block, args.w.at(c * config.taps.count), finish).make(is_tiled)


class _FilterEpilogue(BlockEpilogue):
    """The epilogue of a filter."""

    config: DepthwiseConfig

    def put(self) -> Callable[[Val, Val], None]:
        """A function that finishes a vector of accumulators at an output of the block."""
        finish, start = self.as_one_row()
        own = finish.of_row(self.first)
        return lambda place, sums: own.put(self.first, Tile(start + place, sums.lanes, None), sums)

    def rest(self) -> None:
        """Apply the epilogue to the accumulators in scratch memory."""
        block = self.block
        if not self.config.rows_are_contiguous:
            self.row_by_row(block.columns)
            return
        finish, place = self.as_one_row()
        finish.tile(block.sums, block.sums_pitch, self.first, self.rows, place, block.rows * block.columns)


class _FilterSums(Record):
    """All outputs of an image block for one filter."""

    k: Kernel
    config: DepthwiseConfig
    block: ImageBlock
    w: Buf
    """The filter."""
    finish: _FilterEpilogue

    def make(self, is_tiled: Val) -> None:
        """Compute all outputs and apply the epilogue: in micro-tiles if the block has enough rows for them
        (``is_tiled``), else vector by vector.
        """
        k, is_register_epilogue = self.k, self.config.is_register_epilogue
        if not self.config.rows:
            self.vectors(WIDTHS)
        else:
            with k.either(is_tiled) as (yes, no):
                with yes:
                    self.tiles()
                with no:
                    self.vectors(WIDTHS[1:])
                    if is_register_epilogue:
                        self.finish.rest()
        if not is_register_epilogue:
            self.finish.rest()

    def tiles(self) -> None:
        """Micro-tiles of some rows by two vectors or one; the last of a row or column may overlap those before.

        They are finished at once or stored in scratch. There, a vector that is longer than its row reaches into the
        next row, which is stored later.
        """
        k, block, lanes, rows = self.k, self.block, self.block.lanes, self.config.rows
        columns, pair = block.columns, 2 * lanes
        put = self.finish.put() if self.config.is_register_epilogue else block.sums.store

        def tile(y: Val, x: Val, width: int) -> None:
            for out, vectors in enumerate(self._tile(y, x, width)):
                for j, v in enumerate(vectors):
                    put((y + out) * columns + x + j * lanes, v)

        pairs = k.select(columns >= pair, (columns + (lanes - 1)) // pair, 0)
        with k.loop(0, block.rows, rows) as i:
            y = k.min(i, block.rows - rows)
            with k.loop(0, pairs) as j:
                tile(y, k.min(j * pair, columns - pair), 2)
            with k.loop(pairs * pair, columns, lanes) as x:
                tile(y, k.max(k.min(x, columns - lanes), 0), 1)

    def _tile(self, y: Val, x: Val, width: int) -> list[list[Val]]:
        """A micro-tile of ``width`` vectors from output (y, x) on.

        It goes through the block phase by phase and row by row: each vector is loaded once for all outputs that read
        it.
        """
        k, block, taps = self.k, self.block, self.config.taps
        lanes, high, wide = block.lanes, len(taps.phases(1)), len(taps.phases(2))
        found = [[k.zeros(self.config.dtype, lanes)] * width for _ in range(self.config.rows)]
        weights = list(broadcast_weights(k, self.w, taps.count, lanes))
        start = block.elements.at(y * block.pitch + x)
        for tz in range(taps.kernel[0]):
            for phase in range(high):
                rows = [(ty, ahead) for ty, (p, ahead) in enumerate(taps.phase_offsets(1)) if p == phase]
                for row in range(self.config.rows + taps.reach(1)):
                    uses = [(ty, row - ahead) for ty, ahead in rows if 0 <= row - ahead < self.config.rows]
                    for tx, (p, ahead) in enumerate(taps.phase_offsets(2) if uses else ()):
                        at = start.at(block.plane * ((tz * high + phase) * wide + p) + block.pitch * row)
                        seen = [at.load(ahead + j * lanes, lanes) for j in range(width)]
                        for ty, out in uses:
                            weight = weights[(tz * taps.kernel[1] + ty) * taps.kernel[2] + tx]
                            found[out] = [
                                k.multiply_add(weight, v, sums) for sums, v in zip(found[out], seen, strict=True)
                            ]
        return found

    def vectors(self, widths: tuple[int, ...]) -> None:
        """Vectors of outputs in order, with a loop over the taps."""
        k, block, done = self.k, self.block, self.k.const(0)
        for width in widths:
            stop = done + (block.vectors - done) // width * width
            with k.loop(done, stop, width) as v:
                for j, sums in enumerate(self._sums(v, width)):
                    block.sums.store(block.output_offset(v + j), sums)
            done = stop

    def _sums(self, v: Val, width: int) -> list[Val]:
        k, block = self.k, self.block
        lanes = block.lanes
        found = [k.var(k.zeros(self.config.dtype, lanes)) for _ in range(width)]
        starts = [block.elements.at(block.vector_offset(v + j)) for j in range(width)]
        wide = self.config.taps.kernel[2]
        inner = wide if wide <= UNROLLED else 1
        with k.loop(0, block.taps.count, inner) as i:
            here = block.tap_offsets.load(i)
            for t, (phase, ahead) in enumerate(self.config.taps.phase_offsets(2)[:inner]):
                offset, weight = here + (block.plane * phase + ahead), k.splat(self.w.load(i + t), lanes)
                for sums, at in zip(found, starts, strict=True):
                    sums.set(k.multiply_add(weight, at.load(offset, lanes), sums.get()))
        return [sums.get() for sums in found]
