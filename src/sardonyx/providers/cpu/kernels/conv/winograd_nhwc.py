"""Winograd convolution F(2x2, 3x3) of NHWC images.

The transforms are those of ``conv.winograd_nchw``. Channels are the lanes while V is computed, and filters from then
on: 16 matrix products, whose rows are the Winograd tiles of a block, whose columns the filters of a panel, with k the
channels. The micro-kernel is that of ``gemm.vector``. V of a block fills part of L2. Panel by panel, the 16 products
are computed, then the output transform and the epilogue. The grid is (batch, block, chunk of panels).

**Order of sums** and **f32 fallback** are those of ``conv.winograd_nchw``, but here only the outputs of a few
neighbouring tiles are recomputed where one of them is not finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.image_block import LINE
from sardonyx.providers.cpu.kernels.common.window import WindowArgs, WindowGeometry
from sardonyx.providers.cpu.kernels.conv import nhwc, winograd_nchw
from sardonyx.providers.cpu.kernels.conv.nhwc import Lines
from sardonyx.providers.cpu.kernels.conv.winograd_nchw import (
    ELEMENTS,
    K_BLOCK,
    input_transform,
    inverse_weight_transform,
    output_transform,
)
from sardonyx.providers.cpu.kernels.gemm.vector import CHAINS, MicroTileShape, accumulate, micro_kernel, prefetch_pace
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import Record

MIN_CHANNELS = 16
"""Channels and filters from which on fewer products outweigh the transforms."""
MIN_BLOCK, MAX_BLOCK = 56, 96
"""Winograd tiles of a block: fewer would read the weights too often, the sums of more would leave the cache."""
MIN_TILES = 32
"""Winograd tiles of all images: with fewer, reading the weights dominates, which are 16 numbers in place of 9."""
SEGMENT = 8
"""Winograd tiles of a row that are transformed and finished at once."""
CHUNKS = 2
"""Work items of a thread, at least; panels are divided too where blocks are few."""


def supports(group: Convolution, analysis: Analysis) -> Refusal | None:
    return nhwc.supports(group, analysis) or winograd_nchw.transform_refusal(group, analysis)


def pays(group: Convolution, analysis: Analysis) -> Refusal | None:
    size = group.box[0], *WindowGeometry.of(group, collapse=False).size[1:]
    if not all(isinstance(d, int) and d >= MIN_CHANNELS for d in group.w.shape[:2]):
        return Refusal("too few channels or filters")
    if not all(isinstance(d, int) for d in size):
        return None
    batch, high, wide = (int(d) for d in size)
    tile_count = -(-high // 2) * -(-wide // 2)
    if batch * tile_count < MIN_TILES or 9 * high * wide < winograd_nchw.MIN_GAIN * ELEMENTS * tile_count:
        return Refusal("too few tiles, or too many wasted outputs in them")
    return None


def steps(group: Convolution, analysis: Analysis) -> list[Step]:
    isa, geometry, lines = analysis.isa, WindowGeometry.of(group, collapse=False), Lines.of(group)
    assert lines is not None
    filters, channels = (int(d) for d in group.w.shape[:2])
    shape = MicroTileShape.fitted(isa, f32, filters)
    extra, outputs = ([lines.matrix(v, filters) for v in seen] for seen in (group.extra, group.outputs))
    epilogue, operands = Epilogue.over(group.epilogue, extra, outputs, filters, 3)
    weights = winograd_nchw.packed(group, shape.columns(isa, f32))
    args = WinogradNhwcArgs[Ref, Known](
        geometry.operand, Ref(weights), channels=channels, filters=filters, most=_most(channels, shape, isa),
        distance=_distance(channels), lines=lines.count, epilogue=operands,
    )  # fmt: skip
    flops = dims.known(dims.product((2 * 9, channels, *group.box))) or 0
    nbytes = dims.known(dims.add(geometry.nbytes, dims.mul(weights.elements, 4))) or 0
    spec = conv_winograd_nhwc(shape=shape, epilogue=epilogue)
    variant = f"Winograd F(2x2, 3x3), {shape.rows} tiles x {shape.vectors} vectors of f32, NHWC"
    scratch = _scratch_nbytes(channels, shape, isa)
    return [Step(spec, flat(args=args), epilogue.writes, group.nodes, scratch, flops, nbytes, variant)]


# -- scratch memory: sums of products, outputs of a segment, V


def _distance(channels: int) -> int:
    """Elements from tile to tile of V: an odd number of lines."""
    return (-(-channels // LINE) | 1) * LINE


def _rows(shape: MicroTileShape, tile_count: int = MAX_BLOCK) -> int:
    """Winograd tiles of a block, rounded up to whole micro-tiles."""
    return -(-tile_count // shape.rows) * shape.rows


def _most(channels: int, shape: MicroTileShape, isa: Isa) -> int:
    """Winograd tiles of a block: as many as let V fill half of L2, within limits."""
    room = isa.l2_nbytes // 2 // (ELEMENTS * _distance(channels) * 4)
    return _rows(shape, max(min(room, MAX_BLOCK), MIN_BLOCK))


def _scratch_nbytes(channels: int, shape: MicroTileShape, isa: Isa) -> int:
    seen = ELEMENTS * _most(channels, shape, isa) * _distance(channels)
    return ((ELEMENTS * _rows(shape) + 4 * SEGMENT) * shape.columns(isa, f32) + seen) * 4


class WinogradNhwcArgs(Arguments[M, N]):
    """The parameters of ``conv_winograd_nhwc``."""

    is_inline: ClassVar[bool] = True
    window: WindowArgs[M, N]
    u: M
    channels: N
    filters: N
    most: N
    """Winograd tiles of a block."""
    distance: N
    """Elements from tile to tile of V."""
    lines: N
    epilogue: EpilogueArgs[M, N]


def _params(shape: MicroTileShape, epilogue: Epilogue) -> Params:
    window = WindowArgs.declared(f32)
    return {"args": WinogradNhwcArgs[Memory, DType](window, Memory(f32), i64, i64, i64, i64, i64, epilogue.declared)}


@kernel(_params)
def conv_winograd_nhwc(
    k: Kernel, args: WinogradNhwcArgs[Buf, Val], *, shape: MicroTileShape, epilogue: Epilogue
) -> None:
    window, u, channels, filters, lines = args.window, args.u, args.channels, args.filters, args.lines
    (_, out_y, out_x), nr, batch = window.out, shape.vectors * k.lanes, window.batch
    high, wide = ceil_div(out_y, 2), k.opaque(ceil_div(out_x, 2))
    tile_count, panels = k.opaque(high * wide), k.opaque(ceil_div(filters, nr))
    tiles, wanted = k.opaque(ceil_div(tile_count, shape.rows)), k.threads * CHUNKS
    parts = k.max(ceil_div(tile_count, args.most), ceil_div(wanted, k.max(batch * panels, 1)))
    even = ceil_div(parts, k.threads) * k.threads
    parts = k.opaque(k.max(k.min(k.select(parts * batch >= k.threads, even, parts), tiles), 1))
    count = k.opaque(batch * parts)
    chunks = k.opaque(k.max(k.min(ceil_div(wanted, k.max(count, 1)), panels), 1))
    known = k.var(-1)
    with k.share(count * chunks) as at:
        chunk, which = at % chunks, at // chunks
        image, part = which // parts, which % parts
        begin, end = part * tiles // parts * shape.rows, k.min((part + 1) * tiles // parts * shape.rows, tile_count)
        source = window.x.at(image * window.strides.b)
        block = _Block(k, args, shape, source, wide, begin, end - begin)
        with k.when(known.ne(which)):
            block.transform()
            known.set(which)
        with k.loop(chunk * panels // chunks, (chunk + 1) * panels // chunks) as panel:
            columns, weights = k.min(filters - panel * nr, nr), u.at(panel * channels * nr)
            block.multiply(weights, panels * channels * nr)
            for top, left, length in block.segments():
                with k.when(block.outputs(top, left, length), likely=False):
                    block.f32_fallback(weights, panels * channels * nr, top, left, length)
                with k.loop(0, k.min(out_y - top * 2, 2)) as y:
                    line, first = top * 2 + y, left * 2
                    is_one = lines.eq(1)
                    place = [image, k.const(0), k.select(is_one, 0, line)]
                    finish = BoundEpilogue(k, epilogue, args.epilogue, filters, place)
                    row = first + k.select(is_one, line * out_x, 0)
                    made = k.min(length * 2, out_x - first)
                    finish.tile(block.out.at(y * (2 * SEGMENT * nr)), nr, row, made, panel * nr, columns, width=nr)


class _Block(Record):
    """Some Winograd tiles of an image, in row-major order."""

    k: Kernel
    args: WinogradNhwcArgs[Buf, Val]
    shape: MicroTileShape
    x: Buf
    """The image."""
    wide: Val
    """Winograd tiles of a row."""
    begin: Val
    count: Val

    @property
    def lanes(self) -> int:
        return self.k.lanes

    @property
    def nr(self) -> int:
        return self.shape.vectors * self.lanes

    @property
    def kind(self) -> int:
        """Elements from the sums of one of the 16 products to those of the next."""
        return _rows(self.shape) * self.nr

    @property
    def sums(self) -> Buf:
        """Sums of products as [16][tile][filter]."""
        return self.k.scratch(f32)

    @property
    def out(self) -> Buf:
        """Outputs of a segment as [2][pixel][filter]."""
        return self.sums.at(ELEMENTS * self.kind)

    @property
    def seen(self) -> Buf:
        """V as [16][tile][channel]."""
        return self.out.at(4 * SEGMENT * self.nr)

    def transform(self) -> None:
        """Compute V of all channels."""
        k, lanes = self.k, self.lanes
        window, channels = self.args.window, self.args.channels
        (_, in_y, in_x), (_, pad_y, pad_x) = window.size, window.pad
        down, right = window.strides.y, window.strides.x
        with k.loop(0, self.count) as f:
            tile_number, to = self.begin + f, self.seen.at(f * self.args.distance)
            y, x = tile_number // self.wide * 2 - pad_y, tile_number % self.wide * 2 - pad_x
            corner = self.x.at(y * down + x * right)
            is_inside = (y >= 0) & (x >= 0) & (y + 4 <= in_y) & (x + 4 <= in_x)
            with k.either(is_inside) as (inside, outside):
                with inside:
                    for t in k.tiles(channels, lanes):
                        pixels = [[corner.at(i * down + j * right).load(t) for j in range(4)] for i in range(4)]
                        self._store(pixels, to.at(t.index))
                with outside, k.loop(0, channels, lanes) as c:
                    rows = [(y + i >= 0) & (y + i < in_y) for i in range(4)]
                    columns = [(x + j >= 0) & (x + j < in_x) for j in range(4)]
                    left = [[k.select(a & b, channels - c, 0) for b in columns] for a in rows]
                    pixels = [
                        [corner.at(i * down + j * right).load(c, lanes, k.mask(left[i][j], lanes)) for j in range(4)]
                        for i in range(4)
                    ]
                    self._store(pixels, to.at(c))

    def _store(self, pixels: list[list[Val]], to: Buf) -> None:
        across = [input_transform(row) for row in pixels]
        for j, column in enumerate(zip(*across, strict=True)):
            for i, value in enumerate(input_transform(column)):
                to.store((i * 4 + j) * self.args.most * self.args.distance, value)

    def multiply(self, weights: Buf, kind: Val) -> None:
        """Compute the 16 products of V with a panel of U, whose 16 matrices are ``kind`` elements apart."""
        k, args, rows, nr = self.k, self.args, self.shape.rows, self.nr
        tiles = ceil_div(self.count, rows)
        pace, heights = prefetch_pace(k, tiles, nr), (-(-CHAINS // self.shape.vectors), rows)
        with k.loop(0, ELEMENTS) as i, k.loop(0, args.channels, K_BLOCK) as c:
            depth = k.min(args.channels - c, K_BLOCK)
            these = i * kind + c * nr
            is_last = c + depth >= args.channels
            following = k.select(is_last, k.min(i + 1, ELEMENTS - 1) * kind, these + depth * nr)
            with k.loop(0, tiles) as tile:
                first = tile * rows
                seen = self.seen.at((i * args.most + first) * args.distance + c)
                into, left = self.sums.at(i * self.kind + first * nr), k.min(self.count - first, rows)
                ahead = weights.at(following + tile * depth * pace)
                for low, height in zip((0, *heights), heights, strict=False):
                    with k.when((left > low) & (left <= height)):
                        a = [seen.at(r * args.distance) for r in range(height)]
                        found = micro_kernel(k, a, weights.at(these), depth, f32, self.shape, ahead, pace)
                        accumulate(k, found, into, c > 0)

    def segments(self) -> Iterator[tuple[Val, Val, Val]]:
        """Loops over segments, which are up to ``SEGMENT`` neighbouring Winograd tiles of a row.

        Gives the row of tiles, the segment's first tile in it, and the number of its tiles.
        """
        k, end = self.k, self.begin + self.count
        with k.loop(self.begin // self.wide, ceil_div(end, self.wide)) as y:
            start, stop = k.max(self.begin - y * self.wide, 0), k.min(end - y * self.wide, self.wide)
            with k.loop(start, stop, SEGMENT) as x:
                yield y, x, k.min(stop - x, SEGMENT)

    def outputs(self, y: Val, x: Val, count: Val) -> Val:
        """Transform the sums of a segment into its outputs (``out``): ``count`` Winograd tiles from tile ``x`` of tile
        row ``y`` on. Returns whether an output is not finite.
        """
        k, lanes, nr = self.k, self.lanes, self.nr
        not_finite, place = k.var(k.zeros(f32, lanes)), y * self.wide + x - self.begin
        with k.loop(0, count) as i, k.loop(0, nr, lanes) as j:
            here = self.sums.at((place + i) * nr + j)
            sums = [[here.load((down * 4 + right) * self.kind, lanes) for right in range(4)] for down in range(4)]
            ends = [output_transform(column) for column in zip(*sums, strict=True)]
            for down, row in enumerate(zip(*ends, strict=True)):
                left, right = output_transform(row)
                not_finite.set(not_finite.get() + (left + right) * 0.0)
                for at, value in enumerate((left, right)):
                    self.out.store((down * 2 * SEGMENT + i * 2 + at) * nr + j, value)
        return not_finite.get().ne(0.0).any()

    def f32_fallback(self, weights: Buf, kind: Val, y: Val, x: Val, count: Val) -> None:
        """Recompute the outputs of a segment (``outputs``) directly; the 16 matrices of U are ``kind`` elements
        apart.
        """
        k, lanes, window = self.k, self.lanes, self.args.window
        (_, in_y, in_x), (_, pad_y, pad_x) = window.size, window.pad
        with k.loop(0, 2) as down, k.loop(0, count * 2) as i, k.loop(0, self.nr, lanes) as j:
            total = k.var(k.zeros(f32, lanes))
            with k.loop(0, self.args.channels) as c:
                own = weights.at(c * self.nr + j)
                sums = [[own.load(kind * (a * 4 + b), lanes) for b in range(4)] for a in range(4)]
                across = [inverse_weight_transform(row) for row in sums]
                for tap_x, column in enumerate(zip(*across, strict=True)):
                    for tap_y, w in enumerate(inverse_weight_transform(column)):
                        at_y, at_x = y * 2 + down + tap_y - pad_y, x * 2 + i + tap_x - pad_x
                        with k.when((at_y >= 0) & (at_y < in_y) & (at_x >= 0) & (at_x < in_x)):
                            place = at_y * window.strides.y + at_x * window.strides.x + c
                            total.set(k.multiply_add(k.splat(self.x.load(place), lanes), w, total.get()))
            self.out.store((down * 2 * SEGMENT + i) * self.nr + j, total.get())
