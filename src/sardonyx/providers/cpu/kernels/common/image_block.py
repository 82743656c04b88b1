"""Image blocks: the part of an image that a block of outputs reads, copied into scratch memory with its padding.

``OutputBlocks`` cuts the outputs of a plane into blocks of rows. ``ImageBlock`` holds, for each channel, the elements
that the windows of one block touch. A strided window is decomposed into stride phases (``Taps.phases``), one plane of
the block each. Whatever stride, dilation and padding are, the outputs of a row then read neighbouring elements for each
tap, at an offset that depends only on the tap. Nothing is stored once per tap, as im2col would.

Vectors of outputs take one of two layouts, whichever wastes fewer lanes: rows follow each other at the pitch of the
block's rows, which wastes the window's reach at the end of each row; or every row begins with a new vector. Lanes
without an output compute values that are never stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.kernels.common.window import PerAxis, Taps, WindowArgs
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref
from sardonyx.records import Record

MIN_COLUMNS = 64
"""Columns of a block, at least, even if they exceed the room."""
MAX_SUMS = 4096
"""Accumulators of a block: 16 KiB of f32, in L1."""
LINE = 16
"""Elements of a cache line. Channels are an odd number of lines apart, so that they do not share a set of L1."""


class ScratchLayout(Record):
    """The layout of the scratch memory of an image block, in bytes."""

    taps: Taps
    dtype: DType
    """The type of the elements and the accumulators."""
    lanes: int
    rows: int
    """Filters that are accumulated at a time: rows of accumulators."""
    channels: int = 1
    """Channels whose taps are in the table of tap offsets."""

    @property
    def pitch(self) -> int:
        """Elements from one row of accumulators to the next."""
        return (MAX_SUMS // self.rows + max(self.taps.reach(2), self.lanes) + 3 * LINE) // LINE * LINE + LINE

    @property
    def places_at(self) -> int:
        return -(-self.taps.count * self.channels * 8 // 64) * 64

    @property
    def sums_at(self) -> int:
        return self.places_at + -(-(self.pitch // self.lanes + 1) * 16 // 64) * 64

    @property
    def block_at(self) -> int:
        return self.sums_at + self.rows * self.pitch * self.dtype.bits // 8

    @property
    def operand(self) -> ScratchArgs[Ref, Known]:
        taps = self.taps
        return ScratchArgs(
            PerAxis(*taps.kernel), PerAxis(*taps.strides), PerAxis(*taps.dilations),
            PerAxis(*(taps.period(i) for i in range(3))),
            ScratchPlaces(self.pitch, self.places_at, self.sums_at, self.block_at, self.channels),
        )  # fmt: skip

    def nbytes(self, channels: Known, room_nbytes: int) -> Known:
        """Scratch bytes in all, for an image block of ``channels`` channels and ``room_nbytes`` bytes.

        The image block takes more if the smallest possible one needs it; rounding is included.
        """
        size, high = self.dtype.bits // 8, self.taps.phase_planes * (1 + self.taps.reach(1))
        least = dims.mul(channels, high * (MIN_COLUMNS + self.taps.reach(2)) * size)
        slack = dims.mul(channels, (high + 2 * self.taps.phase_planes + 2) * LINE * size)
        return expressible(dims.total((self.block_at + 4 * LINE * size, dims.maximum(room_nbytes, least), slack)))


class ScratchPlaces(Arguments[M, N]):
    """The parameters of a scratch layout, in bytes but for the pitch."""

    pitch: N
    places_at: N
    sums_at: N
    block_at: N
    channels: N

    @staticmethod
    def declared() -> ScratchPlaces[Memory, DType]:
        return ScratchPlaces(i64, i64, i64, i64, i64)


class ScratchArgs(Arguments[M, N]):
    """The parameters of a window and of its scratch layout: run-time numbers, so that one kernel serves all windows."""

    is_inline: ClassVar[bool] = True
    kernel: PerAxis[M, N]
    stride: PerAxis[M, N]
    dilation: PerAxis[M, N]
    period: PerAxis[M, N]
    layout: ScratchPlaces[M, N]

    @staticmethod
    def declared() -> ScratchArgs[Memory, DType]:
        axes = PerAxis.declared()
        return ScratchArgs(axes, axes, axes, axes, ScratchPlaces.declared())


class ImageBlockArgs(Arguments[M, N]):
    """The parameters of an image that is read block by block."""

    is_inline: ClassVar[bool] = True
    window: WindowArgs[M, N]
    scratch: ScratchArgs[M, N]

    @staticmethod
    def declared(dtype: DType) -> ImageBlockArgs[Memory, DType]:
        return ImageBlockArgs(WindowArgs.declared(dtype), ScratchArgs.declared())


class ImageBlockConfig(Record):
    """Compile-time configuration of image blocks."""

    dtype: DType
    """The type of the elements and the accumulators."""
    lanes: int
    step: int
    """The stride along x: 1, 2, or 0 for any other."""
    has_unit_stride: bool
    """Elements of an image row are adjacent in memory."""
    is_padded: bool = False
    """Every row begins with a new vector."""


class RuntimeWindow:
    """A window whose kernel size, strides and dilations are run-time numbers."""

    def __init__(self, k: Kernel, args: ScratchArgs[Buf, Val]) -> None:
        self.k, self._periods = k, args.period.each
        self.kernel, self.strides, self.dilations = args.kernel.each, args.stride.each, args.dilation.each
        self.count = self.kernel[0] * self.kernel[1] * self.kernel[2]
        self.reach = [k.opaque((self.kernel[i] - 1) * self.dilations[i] // self.strides[i]) for i in range(3)]
        """The offset of the last tap within its phase along each axis, in outputs."""
        self.phases = [k.opaque(k.min(self.kernel[i], self._periods[i])) for i in range(3)]
        self.phase_planes = self.kernel[0] * self.phases[1] * self.phases[2]

    def phase(self, axis: int, i: Val) -> Val:
        """The remainder, modulo the stride, of the positions that phase ``i`` holds."""
        return i * self.dilations[axis] % self.strides[axis]

    def phase_offset(self, axis: int, tap: Val) -> tuple[Val, Val]:
        """The number of a tap's phase and its offset within that phase, in outputs."""
        return tap % self._periods[axis], tap * self.dilations[axis] // self.strides[axis]


class OutputBlocks:
    """The outputs of one plane in blocks of equal numbers of rows; rows that are too long are cut as well."""

    def __init__(
        self, k: Kernel, taps: RuntimeWindow, window: WindowArgs[Buf, Val], room: Val, rows: int, lanes: int
    ) -> None:
        """``room``: elements of a phase plane of a block; ``rows``: filters that are accumulated at a time."""
        _, high, wide = taps.reach
        _, self.out_y, self.out_x = window.out
        widest = k.min(k.max(room // (high + 1) - wide, MIN_COLUMNS), MAX_SUMS // rows)
        column_blocks = ceil_div(self.out_x, widest)
        self.columns = k.select(
            column_blocks <= 1, self.out_x, ceil_div(ceil_div(self.out_x, k.max(column_blocks, 1)), LINE) * LINE
        )
        self.columns = k.opaque(self.columns)
        self.column_blocks = k.opaque(ceil_div(self.out_x, k.max(self.columns, 1)))
        held = room // k.max(self.columns + wide, 1) - high
        summed = k.const(MAX_SUMS // rows) // (self.columns + k.max(wide, lanes))
        most = k.select(self.column_blocks > 1, 1, k.max(k.min(held, summed), 1))
        self.row_blocks = ceil_div(self.out_y, most)
        self.rows = k.opaque(ceil_div(self.out_y, k.max(self.row_blocks, 1)))
        self.count = self.row_blocks * self.column_blocks


class ImageBlock:
    """The part of the image that one block of outputs reads, in scratch memory."""

    def __init__(
        self,
        k: Kernel,
        taps: RuntimeWindow,
        args: ImageBlockArgs[Buf, Val],
        blocks: OutputBlocks,
        block: Val,
        config: ImageBlockConfig,
    ) -> None:
        self.k, self.taps, self.window, self.config = k, taps, args.window, config
        lanes, layout = config.lanes, args.scratch.layout
        self.top = block // blocks.column_blocks * blocks.rows
        self.left = block % blocks.column_blocks * blocks.columns
        self.rows = k.opaque(k.min(blocks.rows, blocks.out_y - self.top))
        self.columns = k.opaque(k.min(blocks.columns, blocks.out_x - self.left))
        self.pitch = k.opaque(self.columns + taps.reach[2])
        self.high = self.rows + taps.reach[1]
        self.plane = k.opaque(self.high * self.pitch)
        self.channel = k.opaque(odd_lines(self.plane * taps.phase_planes))
        padded = ceil_div(self.columns, lanes) * lanes
        dense = ceil_div((self.rows - 1) * self.pitch + self.columns, lanes)
        self.is_padded = (self.rows * padded <= dense * lanes) | config.is_padded
        self.row = k.opaque(k.select(self.is_padded, padded, self.pitch))
        self.vectors = k.opaque(k.select(self.is_padded, self.rows * padded // lanes, dense))
        self.tap_offsets, self.vector_offsets = k.scratch(i64), k.scratch(i64, layout.places_at)
        self.sums = k.scratch(config.dtype, layout.sums_at)
        self.sums_pitch = layout.pitch
        self.elements = k.scratch(config.dtype, layout.block_at)
        self._table_channels = layout.channels

    @property
    def lanes(self) -> int:
        return self.config.lanes

    def vector_offset(self, v: Val) -> Val:
        """The offset in the block of the elements that vector ``v`` of outputs reads for the first tap."""
        return self.vector_offsets.load(v * 2)

    def output_offset(self, v: Val) -> Val:
        """The index of vector ``v``'s first output in a block whose rows follow each other without gaps."""
        return self.vector_offsets.load(v * 2 + 1)

    def fill(self, x: Buf, plane: Val, channels: Val, padding: float) -> None:
        """Copy ``channels`` channels of the image, the first of which begins at ``x``."""
        k, taps = self.k, self.taps
        with k.loop(0, channels) as c:
            self._channel(x.at(self.window.strides.c * c), self.elements.at(c * self.channel), plane, padding)
            end = self.elements.at(c * self.channel + self.plane * taps.phase_planes)
            for i in range(0, LINE, self.lanes):
                end.store(i, k.zeros(self.config.dtype, self.lanes))

    def _channel(self, image: Buf, to: Buf, plane: Val, padding: float) -> None:
        k, taps = self.k, self.taps
        (depth, height, _), (pad_z, pad_y, _) = self.window.size, self.window.pad
        stride_z, stride_y, _ = self.window.strides.axes
        with k.loop(0, taps.kernel[0]) as tz:
            z = plane * taps.strides[0] + tz * taps.dilations[0] - pad_z
            with k.loop(0, taps.phases[1]) as py, k.loop(0, taps.phases[2]) as px:
                first = taps.phase(1, py) - pad_y + self.top * taps.strides[1]
                part = (tz * taps.phases[1] + py) * taps.phases[2] + px
                target = to.at(part * self.plane)
                row = _Row(self, taps.phase(2, px), padding)
                with k.loop(0, self.high) as j:
                    y = first + j * taps.strides[1]
                    is_there = (z >= 0) & (z < depth) & (y >= 0) & (y < height)
                    with k.either(is_there) as (yes, no):
                        with yes:
                            row.copy(image.at(z * stride_z + y * stride_y), target.at(j * self.pitch))
                        with no:
                            row.fill(target.at(j * self.pitch))

    def clear(self) -> None:
        """Zero one channel of the block, and the line after it."""
        with self.k.loop(0, self.plane * self.taps.phase_planes + LINE, self.lanes) as i:
            self.elements.store(i, self.k.zeros(self.config.dtype, self.lanes))

    def refill(self, image: Buf, plane: Val, taps: Taps) -> None:
        """Copy another channel of the image into the block's single channel. Its padding is left as it is.

        Rows are read in memory order, whatever phase they belong to, so that the hardware prefetcher follows.
        """
        k, stride, high, across = self.k, taps.strides[1], taps.phases(1), taps.phases(2)
        (depth, height, _), (pad_z, pad_y, _) = self.window.size, self.window.pad
        stride_z, stride_y, _ = self.window.strides.axes
        rows: Sequence[_Row | _TwoPhaseRow] = [_Row(self, k.const(phase), 0.0) for phase in across]
        if across == [0, 1] and self.config.step == 2 and self.config.has_unit_stride:
            rows = [_TwoPhaseRow(self)]
        first = self.top * stride - pad_y
        low, stop = k.max(-first, 0), k.max(k.min(height - first, self.high * stride), 0)
        for tz in range(taps.kernel[0]):
            z = plane * taps.strides[0] + (tz * taps.dilations[0] - pad_z)
            to = self.elements.at(self.plane * (tz * len(high) * len(across)))
            with k.loop(low, k.select((z >= 0) & (z < depth), stop, low)) as y:
                source, phase = image.at(z * stride_z + (first + y) * stride_y), y % stride
                if high != list(range(stride)):
                    numbers = {at: number for number, at in enumerate(high)}
                    phase = k.table([numbers.get(i, -1) for i in range(stride)], i64).load(phase)
                with k.when(phase >= 0, likely=True):
                    target = to.at(self.plane * (phase * len(across)) + y // stride * self.pitch)
                    for px, row in enumerate(rows):
                        row.inside(source, target.at(self.plane * px))

    def tables(self) -> None:
        """Fill the tables of tap offsets and vector offsets."""
        k, taps, (deep, high, wide) = self.k, self.taps, self.taps.kernel
        with k.loop(0, deep) as tz, k.loop(0, high) as ty:
            py, down = taps.phase_offset(1, ty)
            row = (tz * taps.phases[1] + py) * taps.phases[2] * self.plane + down * self.pitch
            with k.loop(0, wide) as tx:
                px, ahead = (k.const(0), tx * taps.dilations[2]) if self.config.step == 1 else taps.phase_offset(2, tx)
                offset, table = row + px * self.plane + ahead, self.tap_offsets.at((tz * high + ty) * wide + tx)
                with k.loop(0, self._table_channels) as c:
                    table.store(c * taps.count, c * self.channel + offset)
        with k.either(self.is_padded) as (yes, no):
            with yes:
                each_row = self.row // self.lanes
                with k.loop(0, self.rows) as y, k.loop(0, each_row) as v:
                    at, x = (y * each_row + v) * 2, v * self.lanes
                    self.vector_offsets.store(at, y * self.pitch + x)
                    self.vector_offsets.store(at + 1, y * self.columns + x)
            with no, k.loop(0, self.vectors) as v:
                self.vector_offsets.store(v * 2, v * self.lanes)


class _Row:
    """Copies rows of one phase. Their elements from ``low`` to ``high`` are in the image, the others are padding."""

    def __init__(self, block: ImageBlock, phase: Val, padding: float) -> None:
        k, self.block, self.padding = block.k, block, padding
        self.k, step = k, block.config.step
        stride = self.stride = k.const(step) if step else block.taps.strides[2]
        width, pad = block.window.axes.x.size, block.window.axes.x.pad
        self.first = block.left * stride + phase - pad
        low = ceil_div(k.max(-self.first, 0), stride)
        self.low = k.min(low, block.pitch)
        self.high = k.max(k.min(ceil_div(k.max(width - self.first, 0), stride), block.pitch), self.low)

    def fill(self, to: Buf) -> None:
        for t in self.k.tiles(self.block.pitch, self.block.lanes):
            to.store(t, self.padding)

    def copy(self, row: Buf, to: Buf) -> None:
        k = self.k
        with k.loop(0, self.low) as i:
            to.store(i, self.padding)
        self.inside(row, to)
        with k.loop(self.high, self.block.pitch) as i:
            to.store(i, self.padding)

    def inside(self, row: Buf, to: Buf) -> None:
        """Copy the elements that are in the image."""
        stride = self.block.window.strides.x
        source = row.at((self.first + self.low * self.stride) * stride)
        self._elements(source, to.at(self.low), self.high - self.low, stride)

    def _elements(self, source: Buf, to: Buf, count: Val, stride: Val) -> None:
        """Copy whole vectors, the last of which may overlap the one before; rows below one vector by elements."""
        k, lanes, step = self.k, self.block.lanes, self.block.config.step
        if not step or not self.block.config.has_unit_stride:
            apart = k.opaque(stride * self.stride)
            with k.loop(0, count) as i:
                to.store(i, source.load(i * apart))
            return
        with k.either(count >= lanes) as (yes, no):
            with yes:
                with k.loop(0, count - lanes, lanes) as i:
                    to.store(i, self._vector(source, i, is_last=False))
                to.store(count - lanes, self._vector(source, count - lanes, is_last=True))
            with no, k.loop(0, count) as i:
                to.store(i, source.load(i * step))

    def _vector(self, source: Buf, i: Val, *, is_last: bool) -> Val:
        """A vector of elements from element ``i`` of the phase on: every one of the image row at stride 1, every second
        at 2.

        ``is_last``: nothing after the last of these elements is read.
        """
        lanes = self.block.lanes
        if self.block.config.step == 1:
            return source.load(i, lanes)
        back = int(is_last)
        one, two = source.load(i * 2, lanes), source.load(i * 2 + lanes - back, lanes)
        return one.shuffle([*range(0, lanes, 2), *range(lanes + back, 2 * lanes, 2)], two)


class _TwoPhaseRow:
    """Copies a row into its two phases at once, for stride 2: even elements of the image go to one phase, odd ones to
    the other.
    """

    def __init__(self, block: ImageBlock) -> None:
        k, self.block = block.k, block
        width, pad = block.window.axes.x.size, block.window.axes.x.pad
        first = block.left * 2 - pad
        self.start = k.max(first, 0)
        self.count = k.opaque(k.max(k.min(width - self.start, first + block.pitch * 2 - self.start), 0))
        ahead = [self.start - first + e for e in (0, 1)]
        self.offsets = [k.opaque(at % 2 * block.plane + at // 2) for at in ahead]

    def inside(self, row: Buf, to: Buf) -> None:
        """Copy whole vectors, the last of which may overlap the one before; rows below one vector by elements."""
        k, lanes, half = self.block.k, self.block.lanes, self.count >> 1
        source, targets = row.at(self.start), [to.at(offset) for offset in self.offsets]

        def copy(i: Val, lanes: int) -> None:
            pairs = source.load(i * 2, 2 * lanes)
            for e, target in enumerate(targets):
                target.store(i, pairs.shuffle(range(e, 2 * lanes, 2)))

        with k.either(half >= lanes) as (yes, no):
            with yes:
                with k.loop(0, half - lanes, lanes) as i:
                    copy(i, lanes)
                copy(half - lanes, lanes)
            with no, k.loop(0, half) as i:
                for e, target in enumerate(targets):
                    target.store(i, source.load(i * 2 + e))
        with k.when(self.count > half * 2):
            targets[0].store(half, source.load(half * 2))


def broadcast_weights(k: Kernel, w: Buf, count: int, lanes: int) -> Iterator[Val]:
    """Neighbouring weights, each broadcast to all lanes.

    NEON multiplies by a lane of a register, so weights are loaded as vectors there. Elsewhere they are loaded on
    demand, to keep few registers live.
    """
    whole = count // lanes * lanes if k.isa.name == "neon" else 0
    vectors = [w.load(i, lanes) for i in range(0, whole, lanes)]
    yield from (v.shuffle([i] * lanes) for v in vectors for i in range(lanes))
    yield from (k.splat(w.load(i), lanes) for i in range(whole, count))


def odd_lines(elements: Val) -> Val:
    """The elements of the least odd number of cache lines that hold ``elements``."""
    return (ceil_div(elements, LINE) | 1) * LINE
