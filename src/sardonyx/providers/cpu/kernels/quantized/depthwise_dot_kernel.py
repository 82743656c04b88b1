"""The kernel of ``quantized.depthwise_dot``: a micro-tile is a few pixels of an output row by 4 vectors of channels.

Column by column, input rows are loaded and interleaved, and added to the outputs that see the column. An output whose
last column has passed is finished while the next ones are multiplied. Padding is read from a vector of zero points:
rows outside of the image have a stride of 0, columns outside of it are chosen one by one, only where they may occur.

**Registers.** The sums of the outputs that see a column (3 or 5 times 4), 4 interleaved vectors and two rows; weights
are operands in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.forks import cached_property
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.common.nhwc_window import (
    MAX_SMALL_PIXELS,
    MIN_ROWS,
    NhwcWindow,
    NhwcWindowArgs,
    NhwcWindowConfig,
    TileEpilogue,
)
from sardonyx.providers.cpu.kernels.common.window import Taps
from sardonyx.providers.cpu.kernels.math import saturating_packs
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.math.quantization import saturate
from sardonyx.providers.cpu.kernels.quantized.byte_dot import dot, flip_signs
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, f32, i8, i32, u8, u16, u64
from sardonyx.records import Record

QUAD = 4
"""Taps of a dot product, and vectors of channels of a block."""
ROW = 16
"""Bytes of a row of a register."""
ITEMS = 8
"""Work items wanted for each thread."""


def columns_of(taps: Taps, pixels: int) -> list[int]:
    """The input columns that a micro-tile of so many pixels reads, relative to its first."""
    return sorted({p * taps.strides[2] + t * taps.dilations[2] for p in range(pixels) for t in range(taps.kernel[2])})


class DepthwiseDotConfig(Record):
    """Compile-time configuration of ``conv_depthwise_dot``."""

    taps: Taps
    pixels: int
    """Outputs of a micro-tile."""
    channels: int
    to: DType
    has_zero: bool
    """Results have a zero point other than 0."""
    outside: tuple[int, ...]
    """Input columns of a micro-tile that may be outside of the image."""
    has_full_tiles: bool
    """Rows of outputs are whole micro-tiles."""

    @staticmethod
    def of(found: NhwcWindow, channels: int, to: DType, *, has_zero: bool) -> DepthwiseDotConfig:
        window, taps, pixels = found.operand.window, found.config.taps, found.config.pixels
        wide, size, pad = window.axes.x.out, window.axes.x.size, window.axes.x.pad
        columns = columns_of(taps, pixels)
        outside, is_full = tuple(columns), False
        if isinstance(wide, int) and isinstance(size, int) and isinstance(pad, int):
            last, is_full = (wide - 1) // pixels * pixels * taps.strides[2] - pad, wide % pixels == 0
            outside = tuple(c for c in columns if c < pad or last + c >= size)
        return DepthwiseDotConfig(taps, pixels, channels, to, has_zero, outside, is_full)

    @property
    def columns(self) -> list[int]:
        """The input columns of a micro-tile, relative to its first."""
        return columns_of(self.taps, self.pixels)

    @property
    def rows(self) -> list[int]:
        """The input rows of a row of outputs, relative to its first."""
        return [i * self.taps.dilations[1] for i in range(self.taps.kernel[1])]

    @cached_property
    def slots(self) -> list[tuple[int, tuple[int | None, ...]]]:
        """The input rows that are interleaved: the first of four, and which tap of the window each of them is."""
        high = self.taps.kernel[1]
        return [
            (q, tuple(q + t if q + t < high else None for t in range(QUAD))) for q in range(0, high, QUAD)
        ]  # fmt: skip

    def blocks(self, lanes: int) -> list[tuple[int, int]]:
        """Channel blocks: the first channel of each, and the lanes of its vectors."""
        whole, left = divmod(self.channels, QUAD * lanes)
        found = [(i * QUAD * lanes, lanes) for i in range(whole)]
        return [*found, (whole * QUAD * lanes, self.last_lanes(lanes))] if left else found

    def last_lanes(self, lanes: int) -> int:
        """Lanes of the vectors of the last block, if it is not whole: half as many, if these are enough."""
        left = self.channels % (QUAD * lanes)
        return lanes // 2 if lanes == 16 and left <= QUAD * lanes // 2 else lanes

    def block_nbytes(self, lanes: int) -> int:
        """Bytes of the constants of a block."""
        return (self.taps.kernel[2] * len(self.slots) + 3) * QUAD * QUAD * lanes


class DepthwiseDotArgs(Arguments[M, N]):
    """The parameters of ``conv_depthwise_dot``."""

    is_inline: ClassVar[bool] = True
    image: NhwcWindowArgs[M, N]
    w: M
    zero: M
    """The zero point of the image."""
    result_zero: M | None


def _params(config: DepthwiseDotConfig, window: NhwcWindowConfig, x_dtype: DType, epilogue: Epilogue) -> Params:
    image = NhwcWindowArgs.declared(window, x_dtype, epilogue)
    return {
        "args": DepthwiseDotArgs(image, Memory(i8), Memory(x_dtype), Memory(config.to) if config.has_zero else None)
    }


@kernel(_params)
def conv_depthwise_dot(
    k: Kernel, args: DepthwiseDotArgs[Buf, Val], *, config: DepthwiseDotConfig, window: NhwcWindowConfig,
    x_dtype: DType, epilogue: Epilogue,
) -> None:  # fmt: skip
    _DotWindow(k, args, config, window, epilogue, x_dtype).slide()


class _DotWindow:
    """The loops over images, rows and channel blocks."""

    def __init__(
        self, k: Kernel, args: DepthwiseDotArgs[Buf, Val], config: DepthwiseDotConfig, window: NhwcWindowConfig,
        epilogue: Epilogue, x_dtype: DType,
    ) -> None:  # fmt: skip
        self.k, self.args, self.config, self.window, self.epilogue = k, args, config, window, epilogue
        self.is_signed = x_dtype is i8
        self.image = args.image.window
        self.zeros = k.scratch(x_dtype)
        self.result_zero = None if args.result_zero is None else args.result_zero.load()

    def slide(self) -> None:
        k, config, image = self.k, self.config, self.image
        self.args.image.epilogue.zero_padding(k, image.batch)
        self.zeros.store(0, k.splat(self.args.zero.load(), QUAD * k.lanes))
        planes, out_y, out_x = image.out
        blocks = len(config.blocks(k.lanes))
        others = image.batch * planes * blocks
        wanted = ceil_div(k.threads * ITEMS, k.max(others, 1))
        row_blocks = k.opaque(k.max(k.min(wanted, ceil_div(out_y, MIN_ROWS)), 1))
        each, is_small = image.batch * planes * row_blocks, out_y * out_x <= MAX_SMALL_PIXELS
        with k.share(each * blocks) as at:
            block = k.select(is_small, at // each, at % blocks)
            rest = k.select(is_small, at % each, at // blocks)
            row_block, rest = rest % row_blocks, rest // row_blocks
            plane, number = rest % planes, rest // planes
            rows = row_block * out_y // row_blocks, (row_block + 1) * out_y // row_blocks
            self._by_width(block, (number, plane), rows)

    def _by_width(self, block: Val, place: tuple[Val, Val], rows: tuple[Val, Val]) -> None:
        """The rows of a channel block; the last block may have narrower vectors, and channels that do not exist."""
        k, config, lanes = self.k, self.config, self.k.lanes
        whole, left = divmod(config.channels, QUAD * lanes)
        w = self.args.w.at(block * config.block_nbytes(lanes))
        first = block * (QUAD * lanes)
        narrow = config.last_lanes(lanes)
        tail = Tile(first, QUAD * narrow, k.mask(left, QUAD * narrow) if left % (QUAD * narrow) else None)
        if not left:
            _Block(self, w, Tile(first, QUAD * lanes, None), place).make(rows)
        elif not whole:
            _Block(self, w, tail, place).make(rows)
        else:
            with k.either(block < whole) as (yes, no):
                with yes:
                    _Block(self, w, Tile(first, QUAD * lanes, None), place).make(rows)
                with no:
                    _Block(self, w, tail, place).make(rows)


class _Block:
    """A block of channels of an image."""

    def __init__(self, outer: _DotWindow, w: Buf, t: Tile, place: tuple[Val, Val]) -> None:
        self.outer, self.k, self.config, self.w, self.t = outer, outer.k, outer.config, w, t
        self.lanes = t.lanes // QUAD
        self.number, self.plane = place
        image = outer.image
        self.x = image.x.at(self.number * image.strides.b + self.plane * image.strides.z + t.index)

    def make(self, rows: tuple[Val, Val]) -> None:
        k, image, config = self.k, self.outer.image, self.config
        with k.loop(*rows) as y:
            starts = [self._row(y * config.taps.strides[1] - image.pad[1] + row) for row in config.rows]
            finish = TileEpilogue(
                k, self.outer.epilogue, self.outer.args.image, self.outer.window, [self.number, self.plane, y]
            )
            finish.hold(self.t)
            with k.loop(0, image.out[2], config.pixels) as x:
                self._tile(starts, finish, x)

    def _row(self, y: Val) -> tuple[Buf, Val]:
        """The first pixel of an input row and the distance of pixels; of a row outside, zero points."""
        k, image = self.k, self.outer.image
        is_there = k.cast(y, u64) < k.cast(image.size[1], u64)
        own = self.x.at(y * image.strides.y)
        return k.choose(is_there, own, self.outer.zeros), k.select(is_there, image.strides.x, 0)

    def _tile(self, starts: Sequence[tuple[Buf, Val]], finish: TileEpilogue, x: Val) -> None:
        """The outputs of a row from ``x`` on."""
        k, config, taps = self.k, self.config, self.config.taps
        left = x * taps.strides[2] - self.outer.image.pad[2]
        rows = [row.at(left * step) for row, step in starts]
        sums: dict[int, list[Val]] = {}
        for column in config.columns:
            seen = [(*divmod(column - i * taps.dilations[2], taps.strides[2]), i) for i in range(taps.kernel[2])]
            readers = [(pixel, i) for pixel, rest, i in seen if rest == 0 and 0 <= pixel < config.pixels]
            for slot, (first, there) in enumerate(config.slots):
                count = sum(tap is not None for tap in there)
                given = [
                    self._load(row, step, left, column)
                    for row, (_, step) in zip(rows[first : first + count], starts[first : first + count], strict=True)
                ]
                quads = interleaved(k, given)
                for pixel, i in readers:
                    if pixel not in sums:
                        sums[pixel] = [self._number(0, j, i32) for j in range(QUAD)]
                    sums[pixel] = [
                        dot(k, total, quad, self._weights(i, slot, j), u8, i8)
                        for j, (total, quad) in enumerate(zip(sums[pixel], quads, strict=True))
                    ]
            for pixel, i in readers:
                if i == taps.kernel[2] - 1:
                    self._finish(finish, x, pixel, sums.pop(pixel))

    def _load(self, row: Buf, step: Val, left: Val, column: int) -> Val:
        """The channels of an input pixel, unsigned."""
        k, pixel = self.k, row.at(step * column)
        if column in self.config.outside:
            is_there = k.cast(left + column, u64) < k.cast(self.outer.image.size[2], u64)
            pixel = k.choose(is_there, pixel, self.outer.zeros)
        seen = pixel.load(0, self.t.lanes, self.t.mask)
        return k.bitcast(flip_signs(k.bitcast(seen, i32)) if self.outer.is_signed else seen, u8)

    def _weights(self, column: int, slot: int, vector: int) -> Val:
        nbytes = QUAD * self.lanes
        at = ((column * len(self.config.slots) + slot) * QUAD + vector) * nbytes
        return self.k.bitcast(self.w.load(at, nbytes), i32)

    def _number(self, which: int, vector: int, dtype: DType) -> Val:
        """Start, factor or offset of the channels of a vector."""
        taps = self.config.taps.kernel[2] * len(self.config.slots)
        at = (taps * QUAD + which * QUAD + vector) * QUAD * self.lanes
        return self.w.at(at).as_type(dtype).load(0, self.lanes)

    def _finish(self, finish: TileEpilogue, x: Val, pixel: int, sums: Sequence[Val]) -> None:
        k = self.k

        def put() -> None:
            scaled = [
                k.fma(k.cast(total, f32), self._number(1, j, f32), self._number(2, j, f32))
                for j, total in enumerate(sums)
            ]
            finish.put(x + pixel, self.t, self._bytes(scaled))

        if self.config.has_full_tiles:
            put()
        else:
            with k.when(x + pixel < self.outer.image.out[2], likely=True):
                put()

    def _bytes(self, scaled: Sequence[Val]) -> Val:
        """Scaled sums as bytes, in the order of channels."""
        k, zero, to = self.k, self.outer.result_zero, self.config.to
        if saturating_packs.supports(k, to):
            rounded = [saturating_packs.rounded(k, v) for v in scaled]
            return saturating_packs.packed(k, rounded, zero, to)
        pairs = [a.shuffle(range(2 * self.lanes), b) for a, b in (scaled[:2], scaled[2:])]
        order = [
            vector * self.lanes + row * QUAD + i
            for row in range(self.lanes // QUAD)
            for vector in range(QUAD)
            for i in range(QUAD)
        ]
        point = 0 if zero is None else k.splat(zero, self.t.lanes)
        return saturate(k, [pairs[0].shuffle(order, pairs[1]), point], to)


def interleaved(k: Kernel, rows: Sequence[Val]) -> list[Val]:
    """Up to four vectors of bytes as 4 vectors of words with a byte of each; missing ones repeat others."""
    a, b, c, d = (*rows, *[rows[-1]] * (QUAD - len(rows)))
    near, far = ([_unpacked(k, x, y, u8, half) for half in range(2)] for x, y in ((a, b), (c, d)))
    return [k.bitcast(_unpacked(k, near[i], far[i], u16, half), i32) for i in range(2) for half in range(2)]


def _unpacked(k: Kernel, a: Val, b: Val, dtype: DType, half: int) -> Val:
    """The elements of the lower or upper halves of the rows of two registers, alternating."""
    x, y = k.bitcast(a, dtype), k.bitcast(b, dtype)
    each = ROW // dtype.itemsize
    first = half * each // 2
    order = [
        one * x.lanes + row + first + i for row in range(0, x.lanes, each) for i in range(each // 2) for one in range(2)
    ]
    return x.shuffle(order, y)
