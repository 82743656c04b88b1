"""Max and mean pooling of NCHW images: a separable reduction, first over rows, then along a row.

The input rows that a row of outputs reads are combined, element by element, into one row in scratch memory. Its
elements are then combined along the row, outputs along the lanes, and the epilogue is applied in registers. A window of
h rows and w columns so costs h + w operations for each output instead of h * w. The row in scratch memory includes the
padding on its left and right. Long rows are cut into blocks. Narrow windows need no scratch memory
(``image.pool_rows``). A mean is the sum times the reciprocal of the number of elements that count, which is the product
of one number for each axis.

Grid: (batch, channel, plane, row block). Each output is computed by one thread, in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Pool
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.window import Taps, WindowArgs, WindowGeometry, taps_before
from sardonyx.providers.cpu.kernels.gemm.vector import lanes_of
from sardonyx.providers.cpu.kernels.image import pool_nhwc
from sardonyx.providers.cpu.kernels.image.pool_nhwc import MAX, MEAN
from sardonyx.providers.cpu.kernels.image.pool_rows import RegisterRows, is_narrow
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.math.reducers import extreme, lowest
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, i64, register_dtype
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import Record, replace

ROW = 4096
"""Elements of the combined row, at most: 16 KiB of f32."""
LINE = 16
"""Elements of a cache line. In the combined row, the image begins on one."""
MAX_ROWS_PER_PASS, MAX_UNROLLED_ROWS, MAX_UNROLLED_TAPS = 8, 32, 16
"""Input rows that one pass combines; rows of a window, and taps along a row, up to which they are unrolled."""
PREFETCH_DISTANCE = 1024
"""Elements between a load and its prefetch: rows are too short for the hardware prefetcher."""
ROW_BLOCK = 16
"""Output rows of a work item."""
MAX_UNROLLED_VECTORS = 16
"""Vectors of a row up to which they are unrolled."""


class PoolConfig(Record):
    """Compile-time configuration of ``pool_nchw``."""

    kind: str
    dtype: DType
    """The type of the accumulators."""
    taps: Taps
    has_unit_stride: bool
    """The elements of a row are adjacent in memory."""
    exceeds_cache: bool = False
    """The image is larger than a core's own cache."""
    unrolled_vectors: int = 0
    """Vectors of a row of the image, and of one of outputs, where rows are unrolled (``image.pool_rows``); 0: loops."""
    left_pad: int = 0
    """Padding on the left of an unrolled row."""

    def with_unrolled_rows(self, geometry: WindowGeometry, lanes: int) -> PoolConfig:
        """This configuration, with rows unrolled if rows of image and outputs are equally few whole vectors."""
        size, front, taps = geometry.x.shape[2:], geometry.window.pads[-1], self.taps
        width = size[-1]
        if (
            not self.stays_in_registers(lanes)
            or taps.strides[2] != 1
            or width != geometry.size[2]
            or not isinstance(front, int)
        ):
            return self
        if not isinstance(width, int) or not all(isinstance(n, int) and n > 0 for n in size):
            return self
        is_near = 0 <= front <= lanes and taps.reach(2) - front <= lanes
        is_short = width % lanes == 0 and width <= MAX_UNROLLED_VECTORS * lanes
        return replace(self, unrolled_vectors=width // lanes, left_pad=front) if is_near and is_short else self

    def stays_in_registers(self, lanes: int) -> bool:
        """Whether the combined row stays in registers instead of scratch memory."""
        return self.has_unit_stride and self.dtype.is_float and is_narrow(self.taps, lanes)

    @property
    def columns(self) -> int:
        """Output columns of a block."""
        return max(ROW // self.taps.strides[2], 1)

    def pitch(self, lanes: int) -> int:
        """Elements of a row in scratch memory, with those that a vector reads beyond its last output."""
        reach = (self.taps.kernel[2] - 1) * self.taps.dilations[2]
        return (-(-((self.columns + lanes) * self.taps.strides[2] + reach + lanes) // LINE) + 1) * LINE

    def scratch_nbytes(self, lanes: int) -> int:
        """The combined row, and for each output the columns that count and the reciprocal of its element count."""
        return 3 * self.pitch(lanes) * self.dtype.bits // 8


def supports(group: Pool, analysis: Analysis) -> Refusal | None:
    return pool_nhwc.epilogue_refusal(group)


def steps(group: Pool, analysis: Analysis) -> list[Step]:
    geometry, dtype = WindowGeometry.of(group), register_dtype(group.x.dtype)
    lanes = lanes_of(analysis.isa.lanes, dtype)
    config = PoolConfig(
        group.kind, dtype, geometry.taps, geometry.has_unit_stride, analysis.target.exceeds_cache(group.x)
    ).with_unrolled_rows(geometry, lanes)
    epilogue, operands = geometry.epilogue(group)
    epilogue = epilogue.with_non_temporal_stores(group.outputs, analysis)
    args = PoolArgs[Ref, Known](geometry.operand, group.box[1], pool_nhwc.counted_padding(group), operands)
    flops = expressible(dims.product((sum(geometry.taps.kernel), *group.box)))
    scratch = config.scratch_nbytes(lanes)
    spec = pool_nchw(config=config, x_dtype=group.x.dtype, epilogue=epilogue)
    return [Step(spec, flat(args=args), epilogue.writes, group.nodes, scratch, flops, geometry.nbytes)]


class PoolArgs(Arguments[M, N]):
    """The parameters of ``pool_nchw``."""

    is_inline: ClassVar[bool] = True
    window: WindowArgs[M, N]
    channels: N
    counted: tuple[pool_nhwc.CountedPadding[M, N], ...] | None
    """For means, the padding that counts along each axis; else None."""
    epilogue: EpilogueArgs[M, N]


def _params(config: PoolConfig, x_dtype: DType, epilogue: Epilogue) -> Params:
    counted = pool_nhwc.counted_padding_declared(config.kind)
    return {"args": PoolArgs[Memory, DType](WindowArgs.declared(x_dtype), i64, counted, epilogue.declared)}


@kernel(_params)
def pool_nchw(k: Kernel, args: PoolArgs[Buf, Val], *, config: PoolConfig, x_dtype: DType, epilogue: Epilogue) -> None:
    window, channels = args.window, args.channels
    planes, out_y, out_x = window.out
    row_blocks, blocks = ceil_div(out_y, ROW_BLOCK), ceil_div(out_x, config.columns)
    row = _Row(k, config, args)
    with k.loop(0, blocks) as block:
        left = block * config.columns
        columns = k.min(out_x - left, config.columns)
        row.begin(left, columns)
        with k.loop(*k.share_of(window.batch * channels * planes * row_blocks)) as at:
            row_block, rest = at % row_blocks, at // row_blocks
            plane, rest = rest % planes, rest // planes
            channel, image = rest % channels, rest // channels
            start = window.x.at(image * window.strides.b + channel * window.strides.c)
            first, stop = row_block * ROW_BLOCK, k.min(out_y, (row_block + 1) * ROW_BLOCK)
            _RowBlock(row, epilogue, start, image, channel, plane, left, columns).emit(first, stop)


class _RowBlock(Record):
    """Some rows of outputs of one plane, in a block of columns."""

    row: _Row
    epilogue: Epilogue
    start: Buf
    """The first element of the channel."""
    image: Val
    channel: Val
    plane: Val
    left: Val
    columns: Val

    def emit(self, first: Val, stop: Val) -> None:
        """The rows from ``first`` to ``stop``: interior ones in pairs, where that pays."""
        k, row = self.row.k, self.row
        low, high = row.interior(self.plane, first, stop) if row.is_paired else (stop, stop)
        with k.loop(0, 2 if row.is_paired else 1) as side:
            is_above = side.eq(0)
            with k.loop(k.select(is_above, first, high), k.select(is_above, low, stop)) as y:
                self._rows(y)
            if row.is_paired:
                with k.loop(low, k.select(is_above, high, low), 2) as y:
                    self._rows(y, 2)

    def _rows(self, y: Val, rows: int = 1) -> None:
        """One row of outputs, or two neighbours whose windows read no padding above or below."""
        row, is_mean, operands = self.row, self.row.config.kind == MEAN, self.row.args.epilogue
        k, out_x = row.k, row.args.window.axes.x.out
        places = ([self.image, self.plane, y + i] for i in range(rows))
        epilogues = [BoundEpilogue(k, self.epilogue, operands, out_x, place) for place in places]
        if is_mean:
            row.update_reciprocals(self.plane, y, self.columns)

        def put(i: int, t: Tile, v: Val) -> None:
            if is_mean:
                v = v * row.reciprocals.load(t.index, row.lanes)
            epilogues[i].put(self.channel, Tile(self.left + t.index, t.lanes, t.mask), v)

        if row.stays_in_registers:
            row.emit_in_registers(self.start, self.plane, y, self.columns, put, rows)
        else:
            row.combine_rows(self.start, self.plane, y)
            for t in k.tiles(self.columns, row.lanes):
                put(0, t, row.combined_along(t))


Rows = Sequence[tuple[Buf, Val | None]]
"""Input rows, and whether each is in the image; None: it is."""


class _Row:
    """Emits rows of outputs, one block of columns at a time."""

    def __init__(self, k: Kernel, config: PoolConfig, args: PoolArgs[Buf, Val]) -> None:
        self.k, self.config, self.args, self.window, self.taps = k, config, args, args.window, config.taps
        self.lanes = lanes_of(k.lanes, config.dtype)
        self.neutral = lowest(config.dtype) if config.kind == MAX else 0
        nbytes = config.pitch(self.lanes) * config.dtype.bits // 8
        self.column_counts, self.reciprocals = k.scratch(config.dtype, nbytes), k.scratch(config.dtype, 2 * nbytes)
        self.row_count = k.var(-1)
        """The number of rows that ``reciprocals`` were computed for."""
        self.stays_in_registers = config.stays_in_registers(self.lanes)

    def begin(self, left: Val, columns: Val) -> None:
        """Begin a block of columns: find which part of its row is in the image, pad the rest, count columns."""
        k, taps = self.k, self.taps
        depth, height, width = self.window.size
        *_, pad = self.window.pad
        self.first = left * taps.strides[2] - pad
        length = (columns - 1) * taps.strides[2] + ((taps.kernel[2] - 1) * taps.dilations[2] + 1)
        self.low = k.min(k.max(-self.first, 0), length)
        self.width = k.select((depth > 0) & (height > 0), width, 0)
        self.high = k.max(k.select(self.width > 0, k.min(width - self.first, length), 0), self.low)
        if not self.stays_in_registers:
            self.combined = k.scratch(self.config.dtype).at(-self.low & (LINE - 1))
            for start, stop in ((k.const(0), self.low), (self.high, length)):
                with k.loop(start, stop) as i:
                    self.combined.store(i, self.neutral)
        if self.config.kind == MEAN:
            with k.loop(0, columns) as i:
                self.column_counts.store(i, k.cast(self._count(2, left + i), self.config.dtype))
            self.row_count.set(-1)

    @property
    def is_paired(self) -> bool:
        """Whether interior rows are computed two at a time, because their windows share most input rows."""
        taps = self.taps
        return self.stays_in_registers and taps.kernel[0] == taps.strides[1] == taps.dilations[1] == 1 < taps.kernel[1]

    def interior(self, plane: Val, first: Val, stop: Val) -> tuple[Val, Val]:
        """The range of output rows, an even number, whose windows read no padding above or below."""
        k, (depth, height, _), (pad_z, pad, _) = self.k, self.window.size, self.window.pad
        z = plane * self.taps.strides[0] - pad_z
        low = k.min(k.max(first, pad), stop)
        last = k.select((z >= 0) & (z < depth), height + pad - (self.taps.kernel[1] - 1), 0)
        return low, low + ((k.max(k.min(stop, last), low) - low) & -2)

    def emit_in_registers(
        self, image: Buf, plane: Val, y: Val, columns: Val, put: Callable[[int, Tile, Val], None], count: int
    ) -> None:
        """``count`` rows of outputs, one or two, without scratch memory."""
        taps, is_pair = self.taps, count > 1
        rows = [] if is_pair else self._rows(image, plane, y)
        lines = self._interior_rows(image, plane, y) if is_pair else [row for row, _ in rows]
        new = lines[-min(taps.strides[1] * count, taps.kernel[1]) :] if self.config.exceeds_cache else []

        def combined(at: Val, mask: Val | None) -> list[Val]:
            for line in new if mask is None else ():
                line.prefetch(at + PREFETCH_DISTANCE, locality=2)
            seen = [line.load(at, self.lanes, mask) for line in lines]
            if not is_pair:
                return [self._combined(rows, seen)]
            both = reduce(self._combine, seen[1:-1])
            return [self._combine(both, seen[0]), self._combine(both, seen[-1])]

        register_rows = RegisterRows(self.k, self.taps, self.lanes, self.width, self.neutral, self._combine)
        if self.config.unrolled_vectors:
            register_rows.unrolled(combined, self.config.unrolled_vectors, self.config.left_pad, put)
        else:
            register_rows.looped(combined, self.first, columns, put)

    def combine_rows(self, image: Buf, plane: Val, y: Val) -> None:
        """Combine the input rows that a row of outputs reads into the row in scratch memory."""
        stride = self.window.strides.x
        if self.taps.kernel[0] * self.taps.kernel[1] > MAX_UNROLLED_ROWS:
            self._combine_image_rows(image.at((self.first + self.low) * stride), plane, y)
            return
        rows = self._rows(image.at((self.first + self.low) * stride), plane, y)
        for i in range(0, len(rows), MAX_ROWS_PER_PASS):
            self._combine_pass(rows[i : i + MAX_ROWS_PER_PASS], stride, is_first=i == 0)

    def _combine_image_rows(self, start: Buf, plane: Val, y: Val) -> None:
        """Combine the input rows of a large window, in a loop over those that are in the image."""
        k, taps, strides = self.k, self.taps, self.window.strides
        to = self.combined.at(self.low)
        with k.loop(0, self.high - self.low) as i:
            to.store(i, self.neutral)
        first_z, first_y = (p * s - pad for p, s, pad in zip((plane, y), taps.strides, self.window.pad, strict=False))
        planes, (low, high) = (
            [taps_before(k, taps, axis, first, limit) for limit in (0, self.window.size[axis])]
            for axis, first in enumerate((first_z, first_y))
        )
        with k.loop(*planes) as tz:
            done, at_z = low, start.at((first_z + tz * taps.dilations[0]) * strides.z)
            for count in (MAX_ROWS_PER_PASS, 1):
                stop = done + (high - done) // count * count
                with k.loop(done, stop, count) as ty:
                    places = ((first_y + (ty + i) * taps.dilations[1]) * strides.y for i in range(count))
                    self._combine_pass([(at_z.at(place), None) for place in places], strides.x, is_first=False)
                done = stop

    def _interior_rows(self, start: Buf, plane: Val, y: Val) -> list[Buf]:
        """The input rows that two neighbouring interior rows of outputs read: none of them is padding."""
        pad_z, pad_y, _ = self.window.pad
        stride_z, stride_y = self.window.strides.z, self.window.strides.y
        place = (plane * self.taps.strides[0] - pad_z) * stride_z + (y - pad_y) * stride_y
        return [start.at(place + i * stride_y) for i in range(self.taps.kernel[1] + 1)]

    def _rows(self, start: Buf, plane: Val, y: Val) -> list[tuple[Buf, Val]]:
        """The input rows that a row of outputs reads, and whether each is in the image. The address of one that is
        padding is the image's first element, so that it can be loaded.
        """
        k, taps = self.k, self.taps
        depth, height, _ = self.window.size
        pad_z, pad_y, _ = self.window.pad
        stride_z, stride_y = self.window.strides.z, self.window.strides.y
        rows: list[tuple[Buf, Val]] = []
        for tz in range(taps.kernel[0]):
            z = plane * taps.strides[0] + (tz * taps.dilations[0]) - pad_z
            for ty in range(taps.kernel[1]):
                at = y * taps.strides[1] + (ty * taps.dilations[1]) - pad_y
                is_there = (z >= 0) & (z < depth) & (at >= 0) & (at < height)
                place = k.select(is_there, z * stride_z + at * stride_y, 0)
                rows.append((start.at(place), is_there))
        return self._without_padding(rows) if self.config.kind == MAX else rows

    def _without_padding(self, rows: list[tuple[Buf, Val]]) -> list[tuple[Buf, Val]]:
        """The rows with each padding row replaced by one in the image: a duplicate does not change a maximum.

        The flag of every row is then whether any of them is in the image.
        """
        k = self.k
        there, is_any = rows[0]
        for row, is_there in rows[1:]:
            there, is_any = k.choose(is_any, there, row), is_any | is_there
        return [(k.choose(is_there, row, there), is_any) for row, is_there in rows]

    def _combine_pass(self, rows: Rows, stride: Val, *, is_first: bool) -> None:
        k, to, count = self.k, self.combined.at(self.low), self.high - self.low

        def combined(i: Val, lanes: int) -> Val:
            at = i if self.config.has_unit_stride else i * stride
            found = self._combined(rows, [row.load(at, lanes) for row, _ in rows])
            return found if is_first else self._combine(to.load(i, lanes), found)

        done = k.const(0)
        for lanes in (2 * self.lanes, self.lanes, 1) if self.config.has_unit_stride else (1,):
            stop = done + (count - done) // lanes * lanes
            with k.loop(done, stop, lanes) as i:
                to.store(i, combined(i, lanes))
            done = stop

    def _combined(self, rows: Rows, seen: list[Val]) -> Val:
        """The vectors loaded from rows, combined; those of padding rows are replaced by the neutral element."""
        k, missing = self.k, self.k.const(self.neutral, self.config.dtype, seen[0].lanes)

        def present(v: Val, is_there: Val | None) -> Val:
            return v if is_there is None else k.select(is_there, v, missing)

        if self.config.kind == MAX:
            return present(reduce(self._combine, seen), rows[0][1])
        return reduce(self._combine, (present(v, is_there) for v, (_, is_there) in zip(seen, rows, strict=True)))

    def combined_along(self, t: Tile) -> Val:
        """The outputs of a tile, from the row in scratch memory. Lanes beyond the last output are undefined."""
        k, taps = self.k, self.taps
        count, step = taps.kernel[2], taps.strides[2]
        here = self.combined.at(t.index * step)
        if count <= MAX_UNROLLED_TAPS:
            return reduce(self._combine, [self._strided(here.at(tap * taps.dilations[2])) for tap in range(count)])
        # Of the tile's outputs, the last reads the image by the lowest tap, and the first by the highest.
        first = t.index * step
        low = taps_before(k, taps, 2, first + (self.lanes - 1) * step, self.low)
        high = taps_before(k, taps, 2, first, self.high)
        found = k.var(k.const(self.neutral, self.config.dtype, self.lanes))
        with k.loop(low, high) as tap:
            found.set(self._combine(found.get(), self._strided(here.at(tap * taps.dilations[2]))))
        return found.get()

    def _strided(self, at: Buf) -> Val:
        """A vector of elements that are the window's stride apart."""
        k, lanes, step = self.k, self.lanes, self.taps.strides[2]
        if step == 1:
            return at.load(0, lanes)
        if step == 2:
            return at.load(0, lanes).shuffle(range(0, 2 * lanes, 2), at.load(lanes, lanes))
        return at.gather(k.iota(i64, lanes) * step)

    def _combine(self, a: Val, b: Val) -> Val:
        return extreme(self.k, a, b, largest=True) if self.config.kind == MAX else a + b

    def update_reciprocals(self, plane: Val, y: Val, columns: Val) -> None:
        """Store 1 / (number of elements that a mean counts) for each output of row ``y``.

        They stay as they are if the row before counts as many input rows. Multiplying by them is much faster than
        dividing, and costs at most one unit in the last place.
        """
        k = self.k
        rows = self._count(0, plane) * self._count(1, y)
        with k.when(rows.ne(self.row_count.get())):
            self.row_count.set(rows)
            for t in k.tiles(columns, self.lanes):
                self.reciprocals.store(t, 1.0 / (self.column_counts.load(t) * k.cast(rows, self.config.dtype)))

    def _count(self, axis: int, place: Val) -> Val:
        """How many taps of the output at ``place`` count along an axis."""
        taps, along = self.taps, self.window.each_axis[axis]
        assert self.args.counted is not None
        counted, first = self.args.counted[axis], place * taps.strides[axis] - along.pad
        stop = taps_before(self.k, taps, axis, first, along.size + counted.after)
        return stop - taps_before(self.k, taps, axis, first, -counted.before)
