"""Windows over images that lie pixel by pixel: the channels of a pixel are neighbours and fill the lanes.

A tile is some neighbouring pixels of a row of outputs by a vector of channels, in registers. The rows of taps that lie
in the image are a loop; the taps of a row are written out, and each vector of the image that they see is loaded once
for all outputs of the tile. Columns that are not in the image are passed over, and so is the storing of outputs that
are not in the row: branches that go the same way for all channels. What follows is done in registers.

**Order.** Each output meets its taps plane by plane, row by row and from left to right, whatever the grid is.

**Grid.** (batch, plane, band of rows, run of columns, chunk of channels). What the taps of a row of outputs see of a
chunk fills half of L1 at most, so that the next row finds all but one of its rows there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution, Pool
from sardonyx.providers.cpu.kernels.common.epilogue import BROADCAST, UNIT, Access, BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.common.image_block import ceil_div
from sardonyx.providers.cpu.kernels.common.matrices import number
from sardonyx.providers.cpu.kernels.common.window import AXES, Taps, WindowGeometry, geometry_params, nhwc_matrix, sizes
from sardonyx.providers.cpu.kernels.conv import on_tiles
from sardonyx.providers.cpu.kernels.conv.image_epilogue import SPLIT, next_params, store_parts
from sardonyx.providers.cpu.kernels.conv.packed_image import BLOCK, Padded, zero_frame
from sardonyx.providers.cpu.kernels.gemm.vector import lanes_of
from sardonyx.providers.cpu.kernels.split.bf16 import HALF
from sardonyx.providers.cpu.language.dsl import Kernel, Params
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, Var, f32, i64, register_dtype, u16, u64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.steps import Ref, Target

WIDTHS = (7, 8, 6, 5)
"""Pixels of a tile, the most liked first: enough sums to hide the latency of an addition."""
WRITTEN = 8
"""Taps of a row up to which their code is written out."""
GRID, BAND, DEPTH = 32, 4, 64
"""Parts of work that are wanted; rows of outputs and channels that a part has at least."""
RUN = 14
"""Columns of the image that are worth more than deep chunks."""
SMALL = 64
"""Pixels of results up to which threads share channels, as convolutions with more weights than pixels do."""


@dataclass(frozen=True)
class Form:
    """What is constant about a window over pixels."""

    dtype: DType
    """Of the sums."""
    taps: Taps
    pixels: int
    """Of a tile."""
    is_even: bool
    """Channels are whole vectors."""
    held: tuple[bool, ...]
    """Which further operands of what follows are the same for all pixels of an image."""
    parts: int = 0
    """Of the numbers that are written for a convolution on tiles."""
    has_rest: bool = False
    """The last block of channels that is written for it has a vector less than others."""
    is_blocked: bool = False
    """The image is one that a convolution on tiles wrote, in blocks of channels."""
    is_bits: bool = False
    """Numbers of one part pass from image to image as bits, a block at a time."""

    def lanes(self, isa: Isa) -> int:
        return lanes_of(isa.lanes, self.dtype)

    @property
    def columns(self) -> list[int]:
        """What the taps of a tile's row see, as distances from what its first tap sees; those written out."""
        taps = self.taps
        wide = taps.kernel[2] if taps.kernel[2] <= WRITTEN else 1
        seen = {p * taps.strides[2] + t * taps.dilations[2] for p in range(self.pixels) for t in range(wide)}
        return sorted(seen)


@dataclass(frozen=True)
class Pixels:
    """A group whose image and results lie pixel by pixel, with all that kernels are told of it."""

    geometry: WindowGeometry
    form: Form
    x_dtype: DType
    """In memory."""
    epilogue: Epilogue
    args: dict[str, Ref | Known | float]

    @staticmethod
    def of(group: Convolution | Pool, target: Target, *, may_turn: bool = False) -> Pixels | None:
        """None where channels are not neighbours in all that is read and written; or in the image, if results
        ``may_turn``, which are stored one by one then.
        """
        isa, images = target.isa, [target.images[v.storage] for v in group.outputs if v.storage in target.images]
        source = target.images.get(group.x.storage)
        source = None if source is None or source.is_kept else source
        geometry = WindowGeometry.of(group, collapse=not images and source is None)
        is_turned = any(v.strides[1] != 1 for v in geometry.outputs)
        if geometry.x.strides[1] != 1 or (is_turned and (not may_turn or geometry.has_unit_stride or images)):
            return None
        extra, outputs = ([nhwc_matrix(v) for v in seen] for seen in (geometry.extra, geometry.outputs))
        if images:
            epilogue, more = on_tiles.epilogue_of(group, geometry, target)
        else:
            epilogue, more = Epilogue.over(group.epilogue, extra, outputs, group.box[1], 3)
        if any(x.columns not in (UNIT, BROADCAST) for x in epilogue.extra):
            return None
        dtype, channels = register_dtype(group.x.dtype), group.box[1]
        is_even = isinstance(channels, int) and channels % lanes_of(isa.lanes, dtype) == 0
        held = tuple(all(s == 0 for s in (m.row, *m.batch[1:])) for m in extra)
        form = Form(dtype, geometry.taps, _width(geometry.size[2]), is_even, held, is_blocked=source is not None)
        if images:
            form = replace(form, parts=images[0].layout.parts, has_rest=_has_rest(images[0].layout))
        x_dtype, seen = group.x.dtype, geometry.args()
        if source is not None:
            x_dtype, strides = source.storage.dtype, source.layout.strides()
            seen |= {"x": Ref(source.storage, source.layout.at(0, 0, 0))}
            seen |= {f"x_{name}": strides[name] for name in ("b", "block", *AXES)}
        room = isa.l1_nbytes // 2 // x_dtype.itemsize
        return Pixels(geometry, form, x_dtype, epilogue, {**seen, "channels": channels, "room": room, **more})


def slides(group: Convolution | Pool, target: Target) -> bool:
    """Whether a group of one output may read one part of an image, and write its result in parts."""
    out, *others = group.outputs
    if others or group.x.dtype is not f32 or out.dtype is not f32 or target.isa.lanes != HALF:
        return False
    return Pixels.of(group, replace(target, images={})) is not None


def _has_rest(layout: Padded) -> bool:
    return layout.room - layout.channels >= HALF


def _width(columns: Known) -> int:
    """The pixels of a tile by which rows are cut with the least waste."""
    if not isinstance(columns, int):
        return WIDTHS[0]
    if columns <= max(WIDTHS):
        return max(columns, 1)
    return min(WIDTHS, key=lambda width: -columns % width)


# -- inside kernels


def pixels_params(form: Form, x_dtype: DType, epilogue: Epilogue) -> Params:
    block: Params = {"x_block": i64} if form.is_blocked else {}
    return {**geometry_params(x_dtype), **block, "channels": i64, "room": i64, **next_params(epilogue)}


class Sliding(ABC):
    """A window that slides over an image: what it does with what it sees is told by its methods."""

    def __init__(self, k: Kernel, form: Form, epilogue: Epilogue, memory: dict[str, Any]) -> None:
        self.k, self.form, self.epilogue, self.memory, self.taps = k, form, epilogue, memory, form.taps
        self.lanes = BLOCK if form.is_bits else lanes_of(k.lanes, form.dtype)
        self.size, self.out, self.pad = (sizes(memory, what) for what in ("in", "out", "pad"))
        self.stride = [number(memory, f"x_{a}") for a in AXES]

    @property
    def neutral(self) -> float:
        """What sums begin with."""
        return 0

    def weight(self, channel: Val, tap: Val) -> Val | None:
        """What a tap weighs for a vector of channels."""
        return None

    def see(self, pixel: Buf, t: Tile) -> Val:
        """Channels of a pixel of the image."""
        return pixel.load(t)

    @abstractmethod
    def add(self, total: Val, seen: Val, weight: Val | None) -> Val:
        """The sums after one more tap."""

    def counts(self, place: Sequence[Val]) -> Val | None:
        """How many taps count for the output at (z, y, x)."""
        return None

    def result(self, total: Val, counted: Val | None) -> Val:
        """What the sums of a pixel amount to."""
        return total

    def row(self, z: Val, y: Val) -> Val:
        """Where a row of the image begins, in elements."""
        return z * self.stride[0] + y * self.stride[1]

    def channels_at(self, t: Tile) -> Tile:
        """Where a pixel of the image has the channels of a tile."""
        if not self.form.is_blocked:
            return t
        block = number(self.memory, "x_block")
        return Tile(t.index // BLOCK * block + t.index % BLOCK, t.lanes, t.mask)

    def slide(self) -> None:
        """Everything, shared among threads."""
        k, memory, form, taps = self.k, self.memory, self.form, self.taps
        x, channels, room, batch = memory["x"], *(number(memory, n) for n in ("channels", "room", "batch"))
        planes, out_y, out_x = self.out
        if self.form.parts:
            zero_frame(k, memory["image"], memory, "image", batch)
        high, step = taps.kernel[0] * taps.kernel[1], taps.strides[2]
        reach = (taps.kernel[2] - 1) * taps.dilations[2]
        most = room // ((k.min(out_x * step, RUN) + reach) * high)
        others = batch * planes * ceil_div(out_y, BAND) * ceil_div(out_x * step, RUN)
        wanted = ceil_div(k.const(GRID), k.max(others, 1))
        fair = k.max(ceil_div(channels, wanted), DEPTH)
        depth = self._even(channels, k.min(most, fair), self.lanes)
        wide = self._even(out_x, (room // (depth * high) - reach) // step, form.pixels)
        chunks, runs = ceil_div(channels, depth), ceil_div(out_x, wide)
        count = batch * planes * runs * chunks
        bands = k.max(k.min(ceil_div(k.const(GRID), k.max(count, 1)), ceil_div(out_y, BAND)), 1)
        each, is_small = batch * planes * runs * bands, out_y * out_x <= SMALL
        with k.share(chunks * each) as at:
            chunk = k.select(is_small, at // each, at % chunks)
            rest = k.select(is_small, at % each, at // chunks)
            run, rest = rest % runs, rest // runs
            band, rest = rest % bands, rest // bands
            plane, image = rest % planes, rest // planes
            first, left = chunk * depth, run * wide
            end = k.min(out_x, left + wide)
            tile = Outputs(self, x.at(image * number(memory, "x_b")), (first, k.min(channels, first + depth)))
            top, bottom = band * out_y // bands, (band + 1) * out_y // bands
            with k.loop(top, bottom) as at_y, k.loop(left, end, form.pixels) as at_x:
                tile.make(image, (plane, at_y, at_x), end - at_x)

    def range(self, axis: int, start: Val, low: Operand, high: Operand) -> tuple[Val, Val]:
        """The taps that see elements from ``low`` up to ``high``, the first of all seeing the one at ``start``."""
        k, kernel, dilation = self.k, self.taps.kernel[axis], self.taps.dilations[axis]

        def below(limit: Operand) -> Val:
            return k.min((k.max(limit - start, 0) + (dilation - 1)) // dilation, kernel)

        return below(low), below(high)

    def _even(self, total: Val, most: Val, unit: int) -> Val:
        """The length of equal parts of a total, of about ``most``; a multiple of a unit."""
        k = self.k
        parts = k.max(ceil_div(total, k.max(most // unit, 1) * unit), 1)
        return k.opaque(k.max(ceil_div(ceil_div(total, parts), unit), 1) * unit)


@dataclass(frozen=True)
class Outputs:
    """Some pixels of a row of outputs."""

    window: Sliding
    image: Buf
    channels: tuple[Val, Val]
    """The first, and the one after the last."""

    def make(self, image: Val, place: tuple[Val, Val, Val], left: Val) -> None:
        """The outputs from a place on, of which ``left`` are in the row, of an image by number."""
        w, k, pixels = self.window, self.window.k, range(self.window.form.pixels)
        plane, y, x = place
        seen = _Seen(w, self.image, place)
        finish = _Ending(k, w.epilogue, w.memory, w.form, [image, plane, y])
        counted = [w.counts((plane, y, x + p)) for p in pixels]
        for t in self._vectors():
            totals = [k.var(k.const(w.neutral, w.form.dtype, w.lanes)) for _ in pixels]
            seen.add(t, totals)
            finish.hold(t)
            for p in pixels:
                with k.when(left > p, likely=True):
                    finish.put(x + p, t, w.result(totals[p].get(), counted[p]))

    def _vectors(self) -> Iterator[Tile]:
        k, lanes, (start, stop) = self.window.k, self.window.lanes, self.channels
        if self.window.form.is_even:
            with k.loop(start, stop, lanes) as c:
                yield Tile(c, lanes, None)
        else:
            for block in k.blocks(stop, lanes, start=start):
                yield from block


class _Seen:
    """What a tile sees of an image."""

    def __init__(self, window: Sliding, image: Buf, place: tuple[Val, Val, Val]) -> None:
        self.window, self.k, self.form, self.taps, self.image = window, window.k, window.form, window.taps, image
        self.starts = [p * s - pad for p, s, pad in zip(place, self.taps.strides, window.pad, strict=True)]
        self.ranges = [window.range(i, self.starts[i], 0, window.size[i]) for i in range(2)]
        self.is_there = {c: self._is_there(self.starts[2] + c) for c in self.form.columns}

    def _is_there(self, column: Val) -> Val:
        return self.k.cast(column, u64) < self.k.cast(self.window.size[2], u64)

    def add(self, t: Tile, totals: list[Var]) -> None:
        """All taps, for a vector of channels."""
        k, taps, (planes, rows), stride = self.k, self.taps, self.ranges, self.window.stride[2]
        there = self.window.channels_at(t)
        with k.loop(*planes) as tz, k.loop(*rows) as ty:
            z, y = (s + i * d for s, i, d in zip(self.starts, (tz, ty), taps.dilations, strict=False))
            row = self.image.at(self.window.row(z, y) + self.starts[2] * stride)
            tap = (tz * taps.kernel[1] + ty) * taps.kernel[2]
            if taps.kernel[2] <= WRITTEN:
                self._written(row, tap, t, there, totals)
            else:
                with k.either(self.is_inside) as (yes, no):
                    with yes:
                        self._counted(row, tap, t, there, totals, is_inside=True)
                    with no:
                        self._counted(row, tap, t, there, totals, is_inside=False)

    def _written(self, row: Buf, tap: Val, t: Tile, there: Tile, totals: list[Var]) -> None:
        """Column by column: each meets all outputs that see it."""
        window, taps = self.window, self.taps
        weights = [window.weight(t.index, tap + i) for i in range(taps.kernel[2])]
        for column, is_there in self.is_there.items():
            with self.k.when(is_there, likely=True):
                seen = window.see(row.at(window.stride[2] * column), there)
                for i, weight in enumerate(weights):
                    pixel, rest = divmod(column - i * taps.dilations[2], taps.strides[2])
                    if rest == 0 and 0 <= pixel < len(totals):
                        totals[pixel].set(window.add(totals[pixel].get(), seen, weight))

    @property
    def is_inside(self) -> Val:
        """Whether all columns are there."""
        taps, start = self.taps, self.starts[2]
        reach = (self.form.pixels - 1) * taps.strides[2] + (taps.kernel[2] - 1) * taps.dilations[2]
        return (start >= 0) & (start + reach < self.window.size[2])

    def _counted(self, row: Buf, tap: Val, t: Tile, there: Tile, totals: list[Var], *, is_inside: bool) -> None:
        """Tap by tap: a loop."""
        k, window, taps = self.k, self.window, self.taps
        with k.loop(0, taps.kernel[2]) as i:
            weight = window.weight(t.index, tap + i)
            for pixel, total in enumerate(totals):
                column = i * taps.dilations[2] + pixel * taps.strides[2]
                with nullcontext() if is_inside else k.when(self._is_there(self.starts[2] + column)):
                    seen = window.see(row.at(column * window.stride[2]), there)
                    total.set(window.add(total.get(), seen, weight))


class _Ending(BoundEpilogue):
    """What follows, with operands that all pixels share in registers."""

    def __init__(self, k: Kernel, epilogue: Epilogue, memory: Any, form: Form, place: list[Val]) -> None:
        super().__init__(k, epilogue, memory, number(memory, "channels"), place)
        extra = epilogue.names[: len(epilogue.extra)]
        self._shared = [name for name, is_held in zip(extra, form.held, strict=True) if is_held]
        self._form = form

    def hold(self, t: Tile) -> None:
        """For the channels of a tile."""
        self._held = {}  # of other channels
        self._held = {name: self._load(name, x, 0, t) for name, x in self._shared}

    def _store(self, name: str, y: Access, row: Operand, t: Tile, value: Val) -> None:
        if y.columns != SPLIT:
            super()._store(name, y, row, t, value)
            return
        k, form = self.k, self._form
        if form.is_bits:
            self._row(name, row).at(t.index // BLOCK * number(self._memory, f"{name}_col")).as_type(u16).store(0, value)
            return
        at = store_parts(self._row(name, row), self._memory, name, t, value, form.parts)
        if form.has_rest and (form.is_even or t.mask is not None):
            with k.when(t.index + HALF >= self.n):
                for part in range(form.parts):
                    at.store(part * BLOCK + HALF, k.zeros(u16, HALF))
