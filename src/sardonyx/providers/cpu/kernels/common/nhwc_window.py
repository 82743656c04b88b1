"""Windows that slide over NHWC images (depthwise convolution, pooling): channels along the lanes.

A micro-tile is a few neighbouring pixels of an output row by one vector of channels, in registers. Rows of taps are a
loop; the taps of a row are unrolled, and each input vector they read is loaded once for all outputs of the tile. Input
columns in the padding and outputs beyond the end of the row are skipped by branches that are the same for all channels.
The epilogue is applied in registers.

**Order of sums.** Each output adds its taps plane by plane, row by row and from left to right, whatever the grid is.

**Grid.** (batch, plane, row block, column block, channel block). What one row of outputs reads of a channel block fills
at most half of L1, so the next row finds all but one of its input rows there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import field
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import CentredConvolution, Convolution, Pool
from sardonyx.providers.cpu.kernels.common.epilogue import BROADCAST, UNIT, Access, BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.common.window import Taps, WindowArgs, WindowGeometry, nhwc_matrix, taps_before
from sardonyx.providers.cpu.kernels.conv import on_tiles
from sardonyx.providers.cpu.kernels.conv.image_epilogue import PACKED, ImageEpilogueArgs, packed_pixels
from sardonyx.providers.cpu.kernels.conv.packed_image import BLOCK, BYTES, PackedImageLayout
from sardonyx.providers.cpu.kernels.gemm.vector import lanes_of
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import HALF
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, named
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, Var, f32, i64, register_dtype, u16, u64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref
from sardonyx.records import Record, replace

WIDTHS = (7, 8, 6, 5)
"""Pixels of a micro-tile, in order of preference: enough accumulators to hide the latency of an addition."""
MAX_UNROLLED_TAPS = 8
"""Taps of a row up to which they are unrolled."""
GRID, MIN_ROWS, MIN_CHANNELS = 32, 4, 64
"""Work items wanted; output rows and channels of a work item, at least."""
MIN_COLUMNS = 14
"""Input columns that a work item keeps before its channel block grows."""
MAX_SMALL_PIXELS = 64
"""Output pixels up to which threads divide the channels, as convolutions with more weights than pixels do."""


class NhwcWindowConfig(Record):
    """Compile-time configuration of a sliding window over an NHWC image."""

    dtype: DType
    """The type of the accumulators."""
    taps: Taps
    pixels: int
    """Pixels of a micro-tile."""
    has_full_vectors: bool
    """The number of channels is a multiple of the lanes."""
    is_pixel_invariant: tuple[bool, ...]
    """Whether each further operand of the epilogue is the same for all pixels of an image."""
    terms: int = 0
    """bf16 terms of the packed image that is written for an AMX convolution; 0: none is."""
    has_half_block: bool = False
    """The last channel block of that packed image is only half full."""
    is_blocked: bool = False
    """The input is channel-blocked: an AMX convolution packed it."""
    compares_bits: bool = False
    """Max pooling of one bf16 term compares bit patterns as integers, a channel block at a time."""

    def lanes(self, isa: Isa) -> int:
        return lanes_of(isa.lanes, self.dtype)

    @property
    def columns(self) -> list[int]:
        """The input columns that the unrolled taps of a micro-tile read, relative to the first."""
        taps = self.taps
        wide = taps.kernel[2] if taps.kernel[2] <= MAX_UNROLLED_TAPS else 1
        seen = {p * taps.strides[2] + t * taps.dilations[2] for p in range(self.pixels) for t in range(wide)}
        return sorted(seen)


class NhwcWindow(Record):
    """A group whose input and outputs are NHWC, with its kernel's configuration and arguments."""

    geometry: WindowGeometry
    config: NhwcWindowConfig
    x_dtype: DType
    """In memory."""
    epilogue: Epilogue
    operand: NhwcWindowArgs[Ref, Known]

    @staticmethod
    def of(group: Convolution | Pool, analysis: Analysis, *, allow_nchw_output: bool = False) -> NhwcWindow | None:
        """None where the input or an output is not NHWC. With ``allow_nchw_output`` outputs may be NCHW; they are then
        stored element by element.
        """
        isa, images = analysis.isa, [analysis.images[v.storage] for v in group.outputs if v.storage in analysis.images]
        source = analysis.images.get(group.x.storage)
        source = None if source is None or source.has_unpacked else source
        geometry = WindowGeometry.of(group, collapse=not images and source is None)
        is_nchw_output = any(v.strides[1] != 1 for v in geometry.outputs)
        if geometry.x.strides[1] != 1 or (
            is_nchw_output and (not allow_nchw_output or geometry.has_unit_stride or images)
        ):
            return None
        extra, outputs = ([nhwc_matrix(v) for v in seen] for seen in (geometry.extra, geometry.outputs))
        if images:
            epilogue, operands = on_tiles.epilogue_of(group, geometry, analysis)
        else:
            epilogue, alone = Epilogue.over(group.epilogue, extra, outputs, group.box[1], 3)
            operands = ImageEpilogueArgs(None, None, alone, (None,) * len(alone.views))
        if any(x.columns not in (UNIT, BROADCAST) for x in epilogue.extra):
            return None
        dtype = f32 if isinstance(group, CentredConvolution) else register_dtype(group.x.dtype)
        channels = group.box[1]
        has_full_vectors = isinstance(channels, int) and channels % lanes_of(isa.lanes, dtype) == 0
        invariant = tuple(all(s == 0 for s in (m.row, *m.batch[1:])) for m in extra)
        config = NhwcWindowConfig(
            dtype, geometry.taps, _width(geometry.size[2]), has_full_vectors, invariant, is_blocked=source is not None
        )
        if images:
            config = replace(config, terms=images[0].layout.terms, has_half_block=_has_half_block(images[0].layout))
        x_dtype, window, block = group.x.dtype, geometry.operand, None
        if source is not None:
            x_dtype, s, block = source.storage.dtype, source.layout.strides, source.layout.strides.block
            image = Ref(source.storage, source.layout.at(0, 0, 0))
            window = replace(window, x=image, strides=replace(window.strides, b=s.b, z=s.z, y=s.y, x=s.x))
        room = isa.l1_nbytes // 2 // x_dtype.itemsize
        args = NhwcWindowArgs(window, block, channels=channels, room=room, epilogue=operands)
        return NhwcWindow(geometry, config, x_dtype, epilogue, args)


def supports_packed_images(group: Convolution | Pool, analysis: Analysis) -> bool:
    """Whether a group of one output may pack its result, of f32 or bytes; and may read, if it reads f32, a packed image
    of one bf16 term.
    """
    out, *others = group.outputs
    is_quantized = out.dtype in BYTES
    if others or not (is_quantized or (group.x.dtype is f32 and out.dtype is f32)) or analysis.isa.lanes != HALF:
        return False
    return NhwcWindow.of(group, replace(analysis, images={})) is not None


def _has_half_block(layout: PackedImageLayout) -> bool:
    return not layout.format.is_quantized and layout.room - layout.channels >= HALF


def _width(columns: Known) -> int:
    """The micro-tile width that leaves the fewest unused pixels at the end of a row."""
    if not isinstance(columns, int):
        return WIDTHS[0]
    if columns <= max(WIDTHS):
        return max(columns, 1)
    return min(WIDTHS, key=lambda width: -columns % width)


# -- inside kernels


class NhwcWindowArgs(Arguments[M, N]):
    """The parameters of a window over an NHWC image."""

    is_inline: ClassVar[bool] = True
    window: WindowArgs[M, N]
    block: N | None = field(metadata=named("x_block"))
    """The stride of channel blocks, if the input is channel-blocked."""
    channels: N
    room: N
    """Elements that fill half of L1."""
    epilogue: ImageEpilogueArgs[M, N]

    @staticmethod
    def declared(config: NhwcWindowConfig, x_dtype: DType, epilogue: Epilogue) -> NhwcWindowArgs[Memory, DType]:
        block = i64 if config.is_blocked else None
        return NhwcWindowArgs(WindowArgs.declared(x_dtype), block, i64, i64, ImageEpilogueArgs.declared(epilogue))


class SlidingWindow(ABC):
    """A window that slides over an image. Subclasses say what it accumulates."""

    def __init__(self, k: Kernel, config: NhwcWindowConfig, epilogue: Epilogue, args: NhwcWindowArgs[Buf, Val]) -> None:
        self.k, self.config, self.epilogue, self.args, self.taps = k, config, epilogue, args, config.taps
        self.lanes = BLOCK if config.compares_bits else lanes_of(k.lanes, config.dtype)
        self.size, self.out, self.pad = args.window.size, args.window.out, args.window.pad
        self.stride = args.window.strides.axes

    @property
    def neutral(self) -> float:
        """The initial value of an accumulator."""
        return 0

    def weight(self, channel: Val, tap: Val) -> Val | None:
        """The weights of a tap for a vector of channels; None: unweighted."""
        return None

    def load(self, pixel: Buf, t: Tile) -> Val:
        """A vector of channels of an input pixel."""
        return pixel.load(t)

    @abstractmethod
    def add(self, total: Val, seen: Val, weight: Val | None) -> Val:
        """The accumulator ``total`` after one more tap, which reads the vector ``seen``."""

    def counts(self, place: Sequence[Val]) -> Val | None:
        """The number of elements of which the output at (z, y, x) is the mean; None for other kinds of windows."""
        return None

    def result(self, total: Val, counted: Val | None) -> Val:
        """The output for an accumulator; ``counted`` is what ``counts`` returned."""
        return total

    def row(self, z: Val, y: Val) -> Val:
        """The offset of a row of the image, in elements."""
        return z * self.stride[0] + y * self.stride[1]

    def channels_at(self, t: Tile) -> Tile:
        """The channels of ``t`` as a tile of offsets within an input pixel, which may be packed in channel blocks."""
        block = self.args.block
        if block is None:
            return t
        return Tile(t.index // BLOCK * block + t.index % BLOCK, t.lanes, t.mask)

    def slide(self) -> None:
        """Emit all outputs, shared among threads."""
        k, args, config, taps = self.k, self.args, self.config, self.taps
        channels, room, batch = args.channels, args.room, args.window.batch
        planes, out_y, out_x = self.out
        args.epilogue.zero_padding(k, batch)
        high, step = taps.kernel[0] * taps.kernel[1], taps.strides[2]
        reach = (taps.kernel[2] - 1) * taps.dilations[2]
        most = room // ((k.min(out_x * step, MIN_COLUMNS) + reach) * high)
        others = batch * planes * ceil_div(out_y, MIN_ROWS) * ceil_div(out_x * step, MIN_COLUMNS)
        wanted = ceil_div(k.const(GRID), k.max(others, 1))
        fair = k.max(ceil_div(channels, wanted), MIN_CHANNELS)
        depth = self._block_length(channels, k.min(most, fair), self.lanes)
        wide = self._block_length(out_x, (room // (depth * high) - reach) // step, config.pixels)
        channel_blocks, column_blocks = ceil_div(channels, depth), ceil_div(out_x, wide)
        count = batch * planes * column_blocks * channel_blocks
        row_blocks = k.max(k.min(ceil_div(k.const(GRID), k.max(count, 1)), ceil_div(out_y, MIN_ROWS)), 1)
        each, is_small = batch * planes * column_blocks * row_blocks, out_y * out_x <= MAX_SMALL_PIXELS
        with k.share(channel_blocks * each) as at:
            channel_block = k.select(is_small, at // each, at % channel_blocks)
            rest = k.select(is_small, at % each, at // channel_blocks)
            column_block, rest = rest % column_blocks, rest // column_blocks
            row_block, rest = rest % row_blocks, rest // row_blocks
            plane, image = rest % planes, rest // planes
            first, left = channel_block * depth, column_block * wide
            end = k.min(out_x, left + wide)
            source = args.window.x.at(image * args.window.strides.b)
            tile = OutputTile(self, source, (first, k.min(channels, first + depth)))
            top, bottom = row_block * out_y // row_blocks, (row_block + 1) * out_y // row_blocks
            with k.loop(top, bottom) as at_y, k.loop(left, end, config.pixels) as at_x:
                tile.make(image, (plane, at_y, at_x), end - at_x)

    def range(self, axis: int, start: Val, low: Operand, high: Operand) -> tuple[Val, Val]:
        """The first tap along ``axis`` that reads element ``low`` or a later one, and the first that reads ``high`` or
        a later one.

        Tap 0 reads element ``start``.
        """
        k, taps = self.k, self.taps
        return taps_before(k, taps, axis, start, low), taps_before(k, taps, axis, start, high)

    def _block_length(self, total: Val, most: Val, unit: int) -> Val:
        """The length of equal blocks of a total: at most about ``most``, a multiple of ``unit``."""
        k = self.k
        blocks = k.max(ceil_div(total, k.max(most // unit, 1) * unit), 1)
        return k.opaque(k.max(ceil_div(ceil_div(total, blocks), unit), 1) * unit)


class OutputTile(Record):
    """A micro-tile of outputs: some pixels of a row, all channels of a block."""

    window: SlidingWindow
    image: Buf
    channels: tuple[Val, Val]
    """The first, and the one after the last."""

    def make(self, image: Val, place: tuple[Val, Val, Val], left: Val) -> None:
        """Compute and store the outputs of image number ``image`` from ``place`` (plane, y, x) on.

        ``left`` outputs are left in the row; those of the tile beyond are not stored.
        """
        w, k, pixels = self.window, self.window.k, range(self.window.config.pixels)
        plane, y, x = place
        seen = _InputTile(w, self.image, place)
        finish = TileEpilogue(k, w.epilogue, w.args, w.config, [image, plane, y])
        counted = [w.counts((plane, y, x + p)) for p in pixels]
        for t in self._vectors():
            totals = [k.var(k.const(w.neutral, w.config.dtype, w.lanes)) for _ in pixels]
            seen.add(t, totals)
            finish.hold(t)
            for p in pixels:
                with k.when(left > p, likely=True):
                    finish.put(x + p, t, w.result(totals[p].get(), counted[p]))

    def _vectors(self) -> Iterator[Tile]:
        k, lanes, (start, stop) = self.window.k, self.window.lanes, self.channels
        if self.window.config.has_full_vectors:
            with k.loop(start, stop, lanes) as c:
                yield Tile(c, lanes, None)
        else:
            for block in k.blocks(stop, lanes, start=start):
                yield from block


class _InputTile:
    """The input pixels that a micro-tile reads."""

    def __init__(self, window: SlidingWindow, image: Buf, place: tuple[Val, Val, Val]) -> None:
        self.window, self.k, self.config, self.taps, self.image = window, window.k, window.config, window.taps, image
        self.starts = [p * s - pad for p, s, pad in zip(place, self.taps.strides, window.pad, strict=True)]
        self.ranges = [window.range(i, self.starts[i], 0, window.size[i]) for i in range(2)]
        self.is_there = {c: self._is_there(self.starts[2] + c) for c in self.config.columns}

    def _is_there(self, column: Val) -> Val:
        return self.k.cast(column, u64) < self.k.cast(self.window.size[2], u64)

    def add(self, t: Tile, totals: list[Var]) -> None:
        """Accumulate all taps, for a vector of channels."""
        k, taps, (planes, rows), stride = self.k, self.taps, self.ranges, self.window.stride[2]
        there = self.window.channels_at(t)
        with k.loop(*planes) as tz, k.loop(*rows) as ty:
            z, y = (s + i * d for s, i, d in zip(self.starts, (tz, ty), taps.dilations, strict=False))
            row = self.image.at(self.window.row(z, y) + self.starts[2] * stride)
            tap = (tz * taps.kernel[1] + ty) * taps.kernel[2]
            if taps.kernel[2] <= MAX_UNROLLED_TAPS:
                self._unrolled(row, tap, t, there, totals)
            else:
                with k.either(self.is_inside) as (yes, no):
                    with yes:
                        self._looped(row, tap, t, there, totals, is_inside=True)
                    with no:
                        self._looped(row, tap, t, there, totals, is_inside=False)

    def _unrolled(self, row: Buf, tap: Val, t: Tile, there: Tile, totals: list[Var]) -> None:
        """The taps of a row, column by column: each input vector is loaded once for all outputs that read it.

        ``tap`` is the row's first tap, ``there`` the channels as offsets within an input pixel.
        """
        window, taps = self.window, self.taps
        weights = [window.weight(t.index, tap + i) for i in range(taps.kernel[2])]
        for column, is_there in self.is_there.items():
            with self.k.when(is_there, likely=True):
                seen = window.load(row.at(window.stride[2] * column), there)
                for i, weight in enumerate(weights):
                    pixel, rest = divmod(column - i * taps.dilations[2], taps.strides[2])
                    if rest == 0 and 0 <= pixel < len(totals):
                        totals[pixel].set(window.add(totals[pixel].get(), seen, weight))

    @property
    def is_inside(self) -> Val:
        """Whether all columns that the taps of the tile read are in the image."""
        taps, start = self.taps, self.starts[2]
        reach = (self.config.pixels - 1) * taps.strides[2] + (taps.kernel[2] - 1) * taps.dilations[2]
        return (start >= 0) & (start + reach < self.window.size[2])

    def _looped(self, row: Buf, tap: Val, t: Tile, there: Tile, totals: list[Var], *, is_inside: bool) -> None:
        """The taps of a row, in a loop; ``is_inside`` tells that none of them reads padding."""
        k, window, taps = self.k, self.window, self.taps
        low, high = k.const(0), k.const(taps.kernel[2])
        if not is_inside:  # the last pixel reads the image by the lowest tap, and the first by the highest
            last = self.starts[2] + (self.config.pixels - 1) * taps.strides[2]
            low, _ = window.range(2, last, 0, window.size[2])
            _, high = window.range(2, self.starts[2], 0, window.size[2])
        with k.loop(low, high) as i:
            weight = window.weight(t.index, tap + i)
            for pixel, total in enumerate(totals):
                column = i * taps.dilations[2] + pixel * taps.strides[2]
                with nullcontext() if is_inside else k.when(self._is_there(self.starts[2] + column)):
                    seen = window.load(row.at(column * window.stride[2]), there)
                    total.set(window.add(total.get(), seen, weight))


class TileEpilogue(BoundEpilogue):
    """The epilogue of a micro-tile. Operands that all its pixels share stay in registers."""

    def __init__(
        self, k: Kernel, epilogue: Epilogue, args: NhwcWindowArgs[Buf, Val], config: NhwcWindowConfig, place: list[Val]
    ) -> None:
        super().__init__(k, epilogue, args.epilogue.operands, args.channels, place)
        extra = epilogue.names[: len(epilogue.extra)]
        self._shared = [
            name for name, is_invariant in zip(extra, config.is_pixel_invariant, strict=True) if is_invariant
        ]
        self._config, self._packed = config, packed_pixels(epilogue, args.epilogue, config.terms)
        self._room = args.channels if args.epilogue.layout is None else args.epilogue.layout.room

    def hold(self, t: Tile) -> None:
        """Load the operands that all pixels of the tile share, for the channels of ``t``."""
        self._held = {}  # those of the channels before
        self._held = {name: self._load(name, x, 0, t) for name, x in self._shared}

    def _store(self, name: str, y: Access, row: Operand, t: Tile, value: Val) -> None:
        if y.columns != PACKED:
            super()._store(name, y, row, t, value)
            return
        k, config = self.k, self._config
        if config.compares_bits:
            self._row(name, row).at(t.index // BLOCK * self._operands[name].col).as_type(u16).store(0, value)
            return
        at = self._packed[name].store(self._row(name, row), self._room, t, value)
        if config.has_half_block and (config.has_full_vectors or t.mask is not None):
            with k.when(t.index + HALF >= self.n):
                for term in range(config.terms):
                    at.store(term * BLOCK + HALF, k.zeros(u16, HALF))
