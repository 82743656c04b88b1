"""Depthwise convolutions: every filter sees one channel.

The grid of work is (batch, plane, block, chunk of filters). A part copies one channel of its block after the other into
a strip in L1 (``strip``), whose padding stays, sums the products of all outputs there, and finishes them. With few
taps, tiles of some rows and two vectors of outputs are summed at a time, from vectors that are loaded once for all of
them, with every tap written out; what follows is done in registers where it is short. (3 x 3 windows on Neoverse-N1: 11
to 17 cycles for a vector of outputs, of which 7 are the pipes' for 9 products, bias, bounds and a store; 20 for maps of
7 x 7. With a stride of 2, 21 to 37: four vectors are read for one.)

Vectors of a row that is not made of whole ones overlap. In scratch, where rows of outputs follow each other without
gap, a vector that is longer than its row reaches into the next one, which is stored later. The order of a sum follows
from the window and, by the height of a block, from the sizes of the image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.kernels.common.block_epilogue import BlockEpilogue
from sardonyx.providers.cpu.kernels.common.epilogue import BROADCAST, Epilogue
from sardonyx.providers.cpu.kernels.common.image_block import (
    ImageBlock,
    OutputBlocks,
    RuntimeWindow,
    ScratchLayout,
    broadcast_weights,
    ceil_div,
    fma,
    layout_params,
)
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, Problem, number, of_known
from sardonyx.providers.cpu.kernels.common.window import Taps, WindowGeometry, geometry_params, sizes
from sardonyx.providers.cpu.kernels.gemm.pack import packed_b
from sardonyx.providers.cpu.kernels.gemm.vector import lanes_of
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, i64, register_dtype
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.steps import Ref, Step

TILED, HEIGHTS = 25, (7, 4)
"""Taps up to which rows of outputs are summed at a time, and how many: maps of 224 pixels that are halved have a
multiple of 7. Two vectors of each are 14 registers of sums, beside up to 7 of weights.
"""
UNROLLED = 8
"""Taps of a row up to which their code is written out."""
WIDTHS = (8, 4, 1)
"""Vectors of one row at a time: eight hide the latency of an addition, fewer take the rest."""
GRID, CHUNK = 64, 16
"""Parts of work that are wanted; filters of a part at most."""


@dataclass(frozen=True)
class DepthwiseConfig:
    """What is constant."""

    dtype: DType
    """Of the sums."""
    taps: Taps
    rows: int
    """Of outputs that are summed at a time; 0: vectors of outputs in order."""
    is_unit: bool
    """Neighbours of a row are neighbours in memory."""
    is_joined: bool
    """Rows of the result, and of what is read beside it, follow each other without gap."""
    is_direct: bool
    """What follows the sums of tiles is done in registers: it is short, and rows have vectors."""

    def layout(self, lanes: int) -> ScratchLayout:
        return ScratchLayout(self.taps, self.dtype, lanes_of(lanes, self.dtype), 1)


def steps(group: Convolution, isa: Isa, per_channel: Known) -> list[Step]:
    """``per_channel`` filters see each channel."""
    geometry, dtype = WindowGeometry.of(group), register_dtype(group.x.dtype)
    epilogue, more = geometry.epilogue(group)
    rows = _rows(geometry, isa)
    is_direct = rows > 0 and _is_direct(geometry, epilogue, lanes_of(isa.lanes, dtype))
    config = DepthwiseConfig(
        dtype, geometry.taps, rows, geometry.has_unit_stride, geometry.rows_are_contiguous, is_direct
    )
    before, weights = _weights(group, config, isa)
    room_nbytes = isa.l1_nbytes // 2
    numbers = {"filters": group.box[1], "per_channel": per_channel, "room": room_nbytes * 8 // dtype.bits}
    flops = of_known(dims.product((2 * geometry.taps.count, *group.box)))
    layout = config.layout(isa.lanes)
    scratch = layout.nbytes(1, room_nbytes)
    spec = conv_depthwise_nchw(config=config, x_dtype=group.x.dtype, epilogue=epilogue)
    args = {**geometry.args(), **layout.args(), **numbers, "w": weights, **more}
    return [
        *before,
        Step(spec, args, epilogue.writes, group.nodes, scratch, flops, geometry.nbytes, "one channel at a time"),
    ]


def _rows(geometry: WindowGeometry, isa: Isa) -> int:
    """As many as leave the fewest that are made twice."""
    rows = geometry.size[1]
    if not 1 < geometry.taps.count <= TILED:
        return 0
    if not isinstance(rows, int) or isa.registers < 32:
        return HEIGHTS[-1]
    return min((h for h in HEIGHTS if h <= rows), key=lambda h: -rows % h, default=HEIGHTS[-1])


def _is_direct(geometry: WindowGeometry, epilogue: Epilogue, lanes: int) -> bool:
    """Overlapping vectors are finished twice: nothing that may lie where the result does is read for it."""
    columns, is_alone = geometry.size[2], all(x.columns == BROADCAST for x in epilogue.extra)
    has_vectors = not isinstance(columns, int) or columns >= lanes
    return geometry.rows_are_contiguous and is_alone and has_vectors and not epilogue.is_expensive


def _weights(group: Convolution, config: DepthwiseConfig, isa: Isa) -> tuple[list[Step], Ref]:
    """The weights in the type of the sums."""
    w, count = group.w, config.taps.count
    if w.dtype is config.dtype:
        return [], Ref.of(w)
    matrix = Matrix(w.storage, w.offset, (), count, 1)
    problem = Problem(group.nodes, (), 0, count, w.shape[0], matrix, matrix, group.epilogue, (), ())
    before, panel = packed_b(problem, config.dtype, count, isa)
    return before, Ref(panel.storage)


def _params(config: DepthwiseConfig, x_dtype: DType, epilogue: Epilogue) -> Params:
    numbers = dict.fromkeys(("filters", "per_channel", "room"), i64)
    return {**geometry_params(x_dtype), **layout_params(), **numbers, "w": (config.dtype,), **epilogue.params}


@kernel(_params)
def conv_depthwise_nchw(
    k: Kernel, x: Buf, w: Buf, batch: Val, filters: Val, per_channel: Val, room: Val,
    *, config: DepthwiseConfig, x_dtype: DType, epilogue: Epilogue, **memory: Any,
) -> None:  # fmt: skip
    memory = {**memory, "is_unit": config.is_unit}
    planes, *_ = sizes(memory, "out")
    taps, lanes = RuntimeWindow(k, memory), lanes_of(k.lanes, config.dtype)
    blocks = OutputBlocks(k, taps, memory, room // taps.planes, 1, lanes)
    count = batch * planes * blocks.count
    chunks = k.max(ceil_div(filters, CHUNK), k.min(ceil_div(k.const(GRID), k.max(count, 1)), filters))
    padded = k.var(-1)
    with k.share(count * chunks) as at:
        chunk, which = at % chunks, at // chunks
        block, plane, image = which % blocks.count, which // blocks.count % planes, which // blocks.count // planes
        strip = ImageBlock(k, taps, memory, blocks, block, config.dtype, lanes, config.taps.step, is_padded=True)
        with k.when(padded.get().ne(which)):
            strip.blank()
            padded.set(which)
        is_tiled = strip.rows >= config.rows if config.rows else k.const(0).ne(0)
        if config.is_direct:
            is_tiled &= strip.columns >= lanes
        with k.when(~is_tiled):
            strip.tables()
        with k.loop(chunk * filters // chunks, (chunk + 1) * filters // chunks) as c:
            start = image * number(memory, "x_b") + c // per_channel * number(memory, "x_c")
            strip.renew(x.at(start), plane, config.taps)
            finish = _FilterEpilogue(k, epilogue, memory, strip, [image, plane], c, k.const(1), config)
            _FilterSums(k, config, strip, w.at(c * config.taps.count), finish).make(is_tiled)


@dataclass(frozen=True)
class _FilterEpilogue(BlockEpilogue):
    """What follows the sums of a filter."""

    config: DepthwiseConfig

    def put(self) -> Callable[[Val, Val], None]:
        """What finishes a vector of sums at a place of the block."""
        finish, start = self.joined()
        own = finish.of_row(self.first)
        return lambda place, sums: own.put(self.first, Tile(start + place, sums.lanes, None), sums)

    def rest(self) -> None:
        """Finish what lies in scratch."""
        strip = self.strip
        if not self.config.is_joined:
            self.row_by_row(strip.columns)
            return
        finish, place = self.joined()
        finish.tile(strip.sums, strip.sums_pitch, self.first, self.rows, place, strip.rows * strip.columns)


@dataclass(frozen=True)
class _FilterSums:
    """The sums of all outputs of a block for one filter."""

    k: Kernel
    config: DepthwiseConfig
    strip: ImageBlock
    w: Buf
    """The filter."""
    finish: _FilterEpilogue

    def make(self, is_tiled: Val) -> None:
        """All outputs of the block."""
        k, is_direct = self.k, self.config.is_direct
        if not self.config.rows:
            self.vectors(WIDTHS)
        else:
            with k.either(is_tiled) as (yes, no):
                with yes:
                    self.tiles()
                with no:
                    self.vectors(WIDTHS[1:])
                    if is_direct:
                        self.finish.rest()
        if not is_direct:
            self.finish.rest()

    def tiles(self) -> None:
        """Tiles of some rows and two vectors or one, the last of which may overlap those before.

        Sums go to their end, or into scratch. There, a vector that is longer than a row reaches into the next one,
        which is stored later.
        """
        k, strip, lanes, rows = self.k, self.strip, self.strip.lanes, self.config.rows
        columns, pair = strip.columns, 2 * lanes
        put = self.finish.put() if self.config.is_direct else strip.sums.store

        def tile(y: Val, x: Val, width: int) -> None:
            for out, vectors in enumerate(self._tile(y, x, width)):
                for j, v in enumerate(vectors):
                    put((y + out) * columns + x + j * lanes, v)

        pairs = k.select(columns >= pair, (columns + (lanes - 1)) // pair, 0)
        with k.loop(0, strip.rows, rows) as i:
            y = k.min(i, strip.rows - rows)
            with k.loop(0, pairs) as j:
                tile(y, k.min(j * pair, columns - pair), 2)
            with k.loop(pairs * pair, columns, lanes) as x:
                tile(y, k.max(k.min(x, columns - lanes), 0), 1)

    def _tile(self, y: Val, x: Val, width: int) -> list[list[Val]]:
        """Phase by phase and row by row of the strip: each of its vectors meets all outputs that see it."""
        k, strip, taps = self.k, self.strip, self.config.taps
        lanes, high, wide = strip.lanes, len(taps.phases(1)), len(taps.phases(2))
        found = [[k.zeros(self.config.dtype, lanes)] * width for _ in range(self.config.rows)]
        weights = list(broadcast_weights(k, self.w, taps.count, lanes))
        start = strip.elements.at(y * strip.pitch + x)
        for tz in range(taps.kernel[0]):
            for phase in range(high):
                rows = [(ty, ahead) for ty, (p, ahead) in enumerate(taps.places(1)) if p == phase]
                for row in range(self.config.rows + taps.reach(1)):
                    uses = [(ty, row - ahead) for ty, ahead in rows if 0 <= row - ahead < self.config.rows]
                    for tx, (p, ahead) in enumerate(taps.places(2) if uses else ()):
                        at = start.at(strip.plane * ((tz * high + phase) * wide + p) + strip.pitch * row)
                        seen = [at.load(ahead + j * lanes, lanes) for j in range(width)]
                        for ty, out in uses:
                            weight = weights[(tz * taps.kernel[1] + ty) * taps.kernel[2] + tx]
                            found[out] = [fma(k, weight, v, sums) for sums, v in zip(found[out], seen, strict=True)]
        return found

    def vectors(self, widths: tuple[int, ...]) -> None:
        """Vectors of outputs in order, with a loop over the taps."""
        k, strip, done = self.k, self.strip, self.k.const(0)
        for width in widths:
            stop = done + (strip.vectors - done) // width * width
            with k.loop(done, stop, width) as v:
                for j, sums in enumerate(self._sums(v, width)):
                    strip.sums.store(strip.packed_place(v + j), sums)
            done = stop

    def _sums(self, v: Val, width: int) -> list[Val]:
        k, strip = self.k, self.strip
        lanes = strip.lanes
        found = [k.var(k.zeros(self.config.dtype, lanes)) for _ in range(width)]
        starts = [strip.elements.at(strip.place(v + j)) for j in range(width)]
        wide = self.config.taps.kernel[2]
        inner = wide if wide <= UNROLLED else 1
        with k.loop(0, strip.taps.count, inner) as i:
            here = strip.runs.load(i)
            for t, (phase, ahead) in enumerate(self.config.taps.places(2)[:inner]):
                away, weight = here + (strip.plane * phase + ahead), k.splat(self.w.load(i + t), lanes)
                for sums, at in zip(found, starts, strict=True):
                    sums.set(fma(k, weight, at.load(away, lanes), sums.get()))
        return [sums.get() for sums in found]
