"""Pointwise convolution of NCHW images: weights times a matrix of pixels.

A block is some pixels of all channels of a group and takes half of L2. For each tile of filters, the weights of a
K-block (in L1) are applied to all pixels of the block, whose accumulators are in scratch. The first tile of filters
reads the image, where every channel is on another page, prefetches the next line, and copies what it reads into panels
of NR pixels, the vectors of a micro-tile: [K-block][pixels / NR][channel of the K-block][NR]. What the other tiles read
in a K-block is then contiguous, and the hardware prefetcher follows it. Panels are packed per K-block and not over all
channels, because those would be multiples of 16 KiB apart and share sets of L1.

**Order of sums.** Channel by channel in K-blocks, as in ``conv.direct``; independent of blocks, tiles and threads.

The grid is (batch, group, block, chunk of filters); a thread whose next chunk has the same block reuses it.
"""

from __future__ import annotations

from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Convolution, Loop, Storage, View, Window
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs, is_cheap
from sardonyx.providers.cpu.kernels.common.image_block import LINE, MAX_SUMS
from sardonyx.providers.cpu.kernels.common.window import WindowArgs, WindowGeometry, refusal
from sardonyx.providers.cpu.kernels.conv.filter_tile import (
    MAX_SHALLOW_TERMS,
    Accumulators,
    FilterTile,
    channels_per_block,
    filter_chunks,
    is_shallow,
    packed_filters,
)
from sardonyx.providers.cpu.kernels.gemm.vector import accumulate, lanes_of
from sardonyx.providers.cpu.kernels.loops import loop
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, i64, register_dtype
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import Record, replace

MIN_FILTERS_FOR_COPY = 32
"""Filters from which on the pixels of a strided pointwise window are worth a dense copy."""
UNROLLED = 4
"""Vectors of a filter that a cheap epilogue finishes at once."""


class PointwiseConfig(Record):
    """Compile-time configuration of a pointwise convolution."""

    dtype: DType
    """The type of the accumulators."""
    shape: FilterTile
    is_register_epilogue: bool
    """There is one K-block only, and the epilogue is cheap: it is applied to registers."""

    @property
    def pitch(self) -> int:
        """Elements from filter to filter of the accumulators: an odd number of lines."""
        return (MAX_SUMS // self.shape.rows // LINE | 1) * LINE


def supports(group: Convolution, analysis: Analysis) -> Refusal | None:
    geometry = WindowGeometry.of(group)
    is_flat = geometry.is_flat_pointwise and geometry.has_unit_stride
    if not is_flat and _with_dense_copy(group, geometry) is None:
        return Refusal("the window has taps, or pixels have gaps between them")
    return refusal(group)


def _with_dense_copy(group: Convolution, geometry: WindowGeometry) -> tuple[Loop, Convolution] | None:
    """A strided pointwise convolution as a dense one of a copy of the pixels it reads, and that copy.

    None for other windows, if few filters read each pixel, or if rows of outputs or epilogue operands have gaps.
    """
    window, x, filters = group.window, group.x, dims.exact_div(group.w.shape[0], group.groups)
    is_single = {*window.kernel} == {1} and {*window.strides} != {1} and geometry.is_unpadded
    if not is_single or not isinstance(filters, int) or filters < MIN_FILTERS_FOR_COPY:
        return None
    size = (*x.shape[:2], *group.box[2:])
    apart = (expressible(dims.mul(s, n)) for s, n in zip(x.strides[2:], window.strides, strict=True))
    seen = View(x.storage, size, (*x.strides[:2], *apart), x.offset)
    copy = views.dense(Storage("temporary", x.dtype, expressible(dims.product(size))), size)
    ones = (1,) * len(window.kernel)
    made = replace(group, x=copy, window=Window(ones, ones, ones, (0,) * len(ones)))
    if not WindowGeometry.of(made).is_flat_pointwise:
        return None
    return Loop.copying(group.nodes, seen, copy), made


def steps(group: Convolution, analysis: Analysis) -> list[Step]:
    geometry = WindowGeometry.of(group)
    if geometry.is_flat_pointwise and geometry.has_unit_stride:
        return _dense_steps(group, analysis)
    found = _with_dense_copy(group, geometry)
    assert found is not None
    copy, dense = found
    return [*loop.steps(copy, analysis), *_dense_steps(dense, analysis)]


def _dense_steps(group: Convolution, analysis: Analysis) -> list[Step]:
    isa, geometry, dtype = analysis.isa, WindowGeometry.of(group), register_dtype(group.x.dtype)
    channels, filters = group.w.shape[1], expressible(dims.exact_div(group.w.shape[0], group.groups))
    is_register_epilogue = is_shallow(geometry.taps, channels) and is_cheap(group.epilogue)
    config = PointwiseConfig(dtype, FilterTile.of(isa, filters), is_register_epilogue)
    before, weights = packed_filters(group, dtype, config.shape.rows, isa)
    epilogue, operands = geometry.epilogue(group)
    room = isa.l2_nbytes // 2 * 8 // dtype.bits
    k_block = MAX_SHALLOW_TERMS if is_register_epilogue else channels_per_block(geometry.taps, channels)
    args = PointwiseArgs[Ref, Known](
        geometry.operand, weights.operand.memory, groups=group.groups, channels=channels, filters=filters,
        k_block=k_block, room=room, epilogue=operands,
    )  # fmt: skip
    flops = dims.known(dims.product((2, channels, *group.box))) or 0
    nbytes = dims.known(dims.add(geometry.nbytes, dims.mul(weights.storage.elements, dtype.bits // 8))) or 0
    spec = conv_pointwise_nchw(config=config, x_dtype=group.x.dtype, epilogue=epilogue)
    variant = f"{config.shape.rows} filters x {config.shape.vectors} vectors of {dtype}, pixels in panels"
    scratch = _scratch_nbytes(config, channels, room, lanes_of(isa.lanes, dtype))
    return [*before, Step(spec, flat(args=args), epilogue.writes, group.nodes, scratch, flops, nbytes, variant)]


def _scratch_nbytes(config: PointwiseConfig, channels: Known, room: int, lanes: int) -> Known:
    """Accumulators and panels: as many as there is room for, at least one."""
    panels = dims.maximum(room, dims.mul(channels, config.shape.vectors * lanes))
    return expressible(dims.mul(dims.add(config.shape.rows * config.pitch, panels), config.dtype.bits // 8))


class PointwiseArgs(Arguments[M, N]):
    """The parameters of ``conv_pointwise_nchw``."""

    is_inline: ClassVar[bool] = True
    window: WindowArgs[M, N]
    w: M
    groups: N
    channels: N
    filters: N
    """Channels and filters of a group."""
    k_block: N
    room: N
    """Elements that fill half of L2."""
    epilogue: EpilogueArgs[M, N]


def _params(config: PointwiseConfig, x_dtype: DType, epilogue: Epilogue) -> Params:
    window, w = WindowArgs.declared(x_dtype), Memory(config.dtype)
    return {"args": PointwiseArgs[Memory, DType](window, w, i64, i64, i64, i64, i64, epilogue.declared)}


@kernel(_params)
def conv_pointwise_nchw(
    k: Kernel, args: PointwiseArgs[Buf, Val], *, config: PointwiseConfig, x_dtype: DType, epilogue: Epilogue
) -> None:
    window, groups, channels, filters = args.window, args.groups, args.channels, args.filters
    shape, lanes = config.shape, lanes_of(k.lanes, config.dtype)
    wide, pixels = shape.vectors * lanes, window.axes.x.out
    tiles, panels = ceil_div(filters, shape.rows), ceil_div(pixels, wide)
    most = k.max(k.min(args.room // k.max(channels * wide, 1), MAX_SUMS // shape.rows // wide), 1)
    blocks = k.opaque(ceil_div(panels, most))
    each = k.opaque(ceil_div(panels, k.max(blocks, 1)) * wide)
    count = k.opaque(window.batch * groups * blocks)
    chunks, copied = filter_chunks(k, count, tiles), k.var(-1)
    with k.share(count * chunks) as at:
        chunk, which = at % chunks, at // chunks
        first, image = which % blocks * each, which // blocks
        group, image = image % groups, image // groups
        distance = window.strides.c
        source = window.x.at(image * window.strides.b + group * channels * distance + first)
        block = _Block(k, config, source, distance, channels, args.k_block, k.min(pixels - first, each))
        finish = BoundEpilogue(k, epilogue, args.epilogue, pixels, [image, k.const(0), k.const(0)])
        with k.loop(chunk * tiles // chunks, (chunk + 1) * tiles // chunks) as tile:
            own = tile * shape.rows
            rows = k.min(filters - own, shape.rows)
            weights = args.w.at((group * tiles + tile) * channels * shape.rows)
            block.multiply(weights, copied.get().ne(which), _TileEpilogue(finish, group * filters + own, rows, first))
            copied.set(which)


class _TileEpilogue(Record):
    """The epilogue of a tile of filters."""

    finish: BoundEpilogue
    filter: Val
    """The first."""
    rows: Val
    pixel: Val
    """The first of the block."""

    def put(self, sums: Accumulators, pixel: Val) -> None:
        """Finish a micro-tile in registers, from a pixel of the block on; all its rows are filters."""
        for r, row in enumerate(sums.total):
            own = self.finish.of_row(self.filter + r)
            for j, total in enumerate(row):
                at = Tile(self.pixel + pixel + j * total.lanes, total.lanes, None)
                own.put(self.filter + r, at, total.get())

    def rest(self, sums: Buf, pitch: int, pixel: Val, count: Val) -> None:
        """Finish the accumulators in scratch, from a pixel of the block on."""
        unroll = 1 if self.finish.epilogue.is_expensive else UNROLLED
        self.finish.tile(sums, pitch, self.filter, self.rows, self.pixel + pixel, count, unroll=unroll)


class _Block(Record):
    """Some pixels of all channels of a group."""

    k: Kernel
    config: PointwiseConfig
    image: Buf
    distance: Val
    """Stride of the image's channels."""
    channels: Val
    k_block: Val
    """Channels of a K-block."""
    pixels: Val

    @property
    def wide(self) -> int:
        return self.config.shape.vectors * lanes_of(self.k.lanes, self.config.dtype)

    @property
    def whole(self) -> Val:
        """The number of full panels."""
        return self.pixels // self.wide

    @property
    def sums(self) -> Buf:
        return self.k.scratch(self.config.dtype)

    def panels(self, c: Val) -> Buf:
        """The panels of the K-block that begins with channel c."""
        return self.sums.at(self.config.shape.rows * self.config.pitch).at(
            c * ceil_div(self.pixels, self.wide) * self.wide
        )

    def multiply(self, weights: Buf, is_first: Val, epilogue: _TileEpilogue) -> None:
        """Compute a tile of filters and apply the epilogue; the first tile also copies the pixels into panels."""
        k, config, shape, wide, pitch = self.k, self.config, self.config.shape, self.wide, self.config.pitch
        whole, is_full = self.whole, epilogue.rows.eq(shape.rows)
        with k.loop(0, k.max(self.channels, 1), self.k_block) as c:
            depth, part, panels = k.min(self.channels - c, self.k_block), weights.at(c * shape.rows), self.panels(c)
            image, length = self.image.at(c * self.distance), depth * wide
            with k.when(is_first):
                self._copy_rest(c, depth)
            with k.loop(0, whole) as p:
                found, panel = Accumulators(k, config.dtype, shape), panels.at(p * length)
                with k.either(is_first) as (yes, no):
                    with yes:
                        found.add(image.at(p * wide), self.distance, part, depth, copy=panel)
                    with no:
                        found.add(panel, wide, part, depth)
                into = self.sums.at(p * wide)
                if config.is_register_epilogue:
                    with k.either(is_full) as (yes, no):
                        with yes:
                            epilogue.put(found, p * wide)
                        with no:
                            accumulate(k, found.total, into, c > 0, pitch)
                else:
                    accumulate(k, found.total, into, c > 0, pitch)
            with k.loop(whole * wide, self.pixels, lanes_of(k.lanes, config.dtype)) as pixel:
                found = Accumulators(k, config.dtype, replace(shape, vectors=1))
                found.add(panels.at(whole * length + pixel - whole * wide), wide, part, depth)
                accumulate(k, found.total, self.sums.at(pixel), c > 0, pitch)
        done = k.select(is_full, whole * wide, 0) if config.is_register_epilogue else k.const(0)
        epilogue.rest(self.sums.at(done), pitch, done, self.pixels - done)

    def _copy_rest(self, c: Val, depth: Val) -> None:
        """Copy the pixels after the last full panel, for the ``depth`` channels of a K-block from channel ``c`` on."""
        k, wide, whole, lanes = self.k, self.wide, self.whole, lanes_of(self.k.lanes, self.config.dtype)
        image, panel = self.image.at(c * self.distance + whole * wide), self.panels(c).at(whole * depth * wide)
        rest = self.pixels - whole * wide
        with k.loop(0, rest, lanes) as i, k.loop(0, depth) as j:
            panel.store(j * wide + i, image.load(j * self.distance + i, lanes, k.mask(rest - i, lanes)))
