"""Convolutions of bytes: panels of outputs, made where they are used, by rows of weights.

A panel is NR neighbouring outputs of an image by all the elements under a window, by fours as ``quantized.pack`` lays
out
the right operand of a product; the weights, [filters][channels][taps] as they are, are its left operand. Panels are
made from a strip: the rows of the image that a block of outputs sees, padded, columns ordered by their rest when
divided by the stride, so that the elements that neighbouring outputs see of one tap are neighbours. Images under
windows of one tap are read where they lie. Nothing but a few panels, which stay in L1 or L2 while the filters pass by,
holds an element once for each tap.

Blocks are rows of outputs, as many as ``ROOM`` bytes of strip allow, at least one; where blocks are few, the filters
are cut into chunks, for the threads that there are: sums are exact in any order. The grid is (batch, group, plane,
block, chunk).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.errors import NotImplemented
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Apply, IntegerConvolution, Storage
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.common.image_block import ceil_div
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, Problem, number, of_known
from sardonyx.providers.cpu.kernels.common.window import Taps, WindowGeometry, geometry_params, sizes
from sardonyx.providers.cpu.kernels.gemm.pack import COLUMNS
from sardonyx.providers.cpu.kernels.gemm.vector import MicroTileShape
from sardonyx.providers.cpu.kernels.quantized.byte_dot import FLIP, offset, other_sign
from sardonyx.providers.cpu.kernels.quantized.gemm import Int8MicroTile, put
from sardonyx.providers.cpu.kernels.quantized.gemm_amx import MICRO_TILE, PANEL, MicroTile, first_row
from sardonyx.providers.cpu.kernels.quantized.pack import QUAD, QuadPacker, depth_of, padded_a
from sardonyx.providers.cpu.language.amx import ROWS, Tiles
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bool_, i8, i32, i64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.prepack import aligned
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step, Target

Array = np.ndarray[Any, Any]
ROOM, PANELS, PARTS, CHUNK = 128 << 10, 4, 4, 4
"""Bytes of a strip; panels that meet a tile of filters together; parts of work that are wanted for each thread of
several; tiles of filters that are worth panels of their own."""


@dataclass(frozen=True)
class Int8ConvConfig:
    """What is constant about a convolution of bytes."""

    x_dtype: DType
    taps: Taps
    shape: MicroTileShape
    is_unit: bool
    """Neighbours of a row are neighbours in memory."""
    in_place: bool
    """Windows are one element, and all of them one row, which is read where it lies."""
    is_joined: bool
    """Rows of the result, and of what is read beside it, follow each other without gap."""

    def nr(self, isa: Isa) -> int:
        return PANEL if isa.amx else self.shape.columns(isa, i32)

    def panel_dtype(self, isa: Isa) -> DType:
        """What a panel holds: the image's bytes, or those of the sign that the chip multiplies with signed weights."""
        return self.x_dtype if isa.amx else other_sign(isa)

    def strip_nbytes(self, channels: Known, out_x: Known) -> Known:
        """At least ``ROOM``, and what one row of outputs needs."""
        if self.in_place:
            return 0
        taps = self.taps
        rows = taps.kernel[0] * (1 + (taps.kernel[1] - 1) * taps.dilations[1])
        row = dims.mul(len(taps.phases(2)), dims.add(out_x, taps.reach(2)))
        return of_known(dims.maximum(ROOM, dims.product((channels, rows, row))))


def steps(group: IntegerConvolution, target: Target) -> list[Step]:
    if not all(isinstance(step, Apply) for step in group.epilogue.steps):
        raise NotImplemented("a reduction follows the sums", where=group.nodes[0].op_type)
    isa, geometry = target.isa, WindowGeometry.of(group)
    channels, filters = group.w.shape[1], of_known(dims.exact_div(group.w.shape[0], group.groups))
    in_place = geometry.is_flat_pointwise and geometry.has_unit_stride
    shape = MicroTileShape.of(
        isa, i32, geometry.size[2] if in_place else dims.known(dims.mul(*geometry.size[1:])) or 1 << 20
    )
    config = Int8ConvConfig(
        group.x.dtype, geometry.taps, shape, geometry.has_unit_stride, in_place, geometry.rows_are_contiguous
    )
    depth = of_known(dims.product((geometry.taps.count, channels)))
    before, w = _weights(group, isa, depth)
    more_before, w_sums = _weight_sums(group, w, of_known(depth_of(depth, isa)), config, isa)
    epilogue, more = geometry.epilogue(group)
    padded, nr = depth_of(depth, isa), config.nr(isa)
    strip = config.strip_nbytes(channels, geometry.size[2])
    args = {
        **geometry.args(), "w": Ref(w.storage, w.offset), "w_sums": w_sums, "zero": Ref.of(group.zero),
        "groups": group.groups, "channels": channels, "filters": filters, "depth": padded, "strip_nbytes": strip,
        **more,
    }  # fmt: skip
    panels = dims.mul(padded, PANELS * nr + QUAD)
    scratch = dims.total((_Scratch.fixed_nbytes(config, isa), strip, panels))
    flops = dims.known(dims.product((2 * geometry.taps.count, channels, *group.box))) or 0
    nbytes = dims.known(dims.add(geometry.nbytes, w.storage.elements)) or 0
    variant = "tiles of bytes" if isa.amx else f"{shape.rows} filters x {shape.vectors} vectors of fours of bytes"
    spec = conv_int8(config=config, epilogue=epilogue)
    return [
        *before,
        *more_before,
        Step(spec, args, epilogue.writes, group.nodes, of_known(scratch), flops, nbytes, variant),
    ]


def _weights(group: IntegerConvolution, isa: Isa, depth: Known) -> tuple[list[Step], Matrix]:
    """The weights as rows of whole steps: as they are, made so once, or at each run."""
    w = group.w
    rows = Matrix(w.storage, w.offset, (), depth, 1)
    padded, tensor = depth_of(depth, isa), w.storage.tensor
    if depth == padded or tensor is None:
        return padded_a(Problem(group.nodes, (), w.shape[0], 0, depth, rows, rows, group.epilogue, (), ()), isa)
    count, width, whole = int(w.shape[0]), int(depth), int(padded)

    def make() -> Array:
        out = aligned(count * whole, i8).reshape(count, whole)
        out[:, width:] = 0
        first = int(w.offset)
        out[:, :width] = tensor.peek().reshape(-1)[first : first + count * width].reshape(count, width)
        return out.reshape(-1)

    key = ("rows of bytes", identity(tensor), w.offset, count, width, whole)
    made = Packed("constant", i8, count * whole, w.storage.value, key=key, make=make)
    return [], Matrix(made, 0, (), padded, 1)


def _weight_sums(
    group: IntegerConvolution, w: Matrix, depth: Known, config: Int8ConvConfig, isa: Isa
) -> tuple[list[Step], Ref]:
    """The sum of each row of weights, where panels hold bytes of the other sign; else anything."""
    count, tensor = group.w.shape[0], group.w.storage.tensor
    if not offset(config.x_dtype, config.panel_dtype(isa)):
        return [], Ref(Packed("constant", i32, 1, key=("no sums",), make=lambda: np.zeros(1, np.int32)))
    if tensor is None:
        to = Storage("temporary", i32, count)
        args: dict[str, Ref | Known | float] = {
            "w": Ref(w.storage, w.offset), "sums": Ref(to), "rows": count, "depth": depth
        }  # fmt: skip
        return [Step(sum_weight_rows(), args, frozenset(("sums",)), group.nodes, variant="sums of weights")], Ref(to)
    first, width = int(group.w.offset), int(of_known(dims.product(group.w.shape[1:])))

    def make() -> Array:
        content = tensor.peek().reshape(-1)[first : first + int(count) * width].reshape(int(count), width)
        return np.asarray(content.sum(1, dtype=np.int32))

    key = ("sums of rows", identity(tensor), first, count, width)
    return [], Ref(Packed("constant", i32, count, group.w.storage.value, key=key, make=make))


@kernel(w=(i8,), sums=(i32,), rows=i64, depth=i64)
def sum_weight_rows(k: Kernel, w: Buf, sums: Buf, rows: Val, depth: Val) -> None:
    """The sum of each row of weights."""
    with k.share(rows) as r:
        total = k.var(k.zeros(i32, k.lanes))
        for t in k.tiles(depth):
            total += k.cast(w.at(r * depth).load(t), i32)
        sums.store(r, total.sum())


# -- the kernel


class _Scratch:
    """A thread's memory: sums, offsets of the elements under a window, panels, and a strip.

    The last row of a panel is written too far, into the space in front of the next one, which nobody needs here.
    """

    def __init__(self, k: Kernel, config: Int8ConvConfig, depth: Val) -> None:
        nr = config.nr(k.isa)
        self.sums = k.scratch(i32)
        at = k.const(self.sums_nbytes(config, k.isa))
        self.offsets = k.scratch(i32, at)
        at = at + depth * 4
        self.panel_nbytes = (depth + QUAD) * nr
        self.panels = k.scratch(i8, at)
        self.strip = k.scratch(i8, at + self.panel_nbytes * PANELS + QUAD * nr)

    @staticmethod
    def sums_nbytes(config: Int8ConvConfig, isa: Isa) -> int:
        return MICRO_TILE * 4 if isa.amx else config.shape.rows * config.nr(isa) * 4

    @staticmethod
    def fixed_nbytes(config: Int8ConvConfig, isa: Isa) -> int:
        """Without what grows with depth and strip; the strip is read a little too far."""
        return _Scratch.sums_nbytes(config, isa) + (PANELS + 2) * QUAD * config.nr(isa)


def _params(config: Int8ConvConfig, epilogue: Epilogue) -> Params:
    numbers = dict.fromkeys(("groups", "channels", "filters", "depth", "strip_nbytes"), i64)
    return {
        **geometry_params(config.x_dtype),
        "w": (i8,),
        "w_sums": (i32,),
        "zero": (config.x_dtype,),
        **numbers,
        **epilogue.params,
    }


@kernel(_params)
def conv_int8(
    k: Kernel, x: Buf, w: Buf, w_sums: Buf, zero: Buf, batch: Val, groups: Val, channels: Val, filters: Val, depth: Val,
    strip_nbytes: Val, *, config: Int8ConvConfig, epilogue: Epilogue, **memory: Any,
) -> None:  # fmt: skip
    nr, (planes, out_y, out_x) = config.nr(k.isa), sizes(memory, "out")
    scratch = _Scratch(k, config, depth)
    strip = _ImageBlock(k, config, memory, channels, scratch, strip_nbytes)
    multiply = (_AmxProduct if k.isa.amx else _VectorProduct)(k, config, filters, depth, scratch)
    tiles = ceil_div(filters, multiply.rows)
    high = strip.rows
    blocks = ceil_div(out_y, high)
    panels = ceil_div(high * out_x, nr)
    if config.in_place:  # one row, in blocks of few panels
        panels = k.max(k.min(k.const(8), ceil_div(out_x, nr)), 1)
        blocks = ceil_div(out_x, panels * nr)
    count = batch * groups * planes * blocks
    wanted = k.select(k.threads > 1, k.threads * PARTS, 1)
    chunks = k.max(k.min(ceil_div(wanted, k.max(count, 1)), tiles // CHUNK), 1)
    filled = k.var(-1)
    with k.share(count * chunks) as at:
        chunk, which = at % chunks, at // chunks
        image, block = which // blocks, which % blocks
        plane, image = image % planes, image // planes
        group, image = image % groups, image // groups
        start = x.at(image * number(memory, "x_b") + group * channels * number(memory, "x_c"))
        weights = w.at(group * filters * depth)
        if not config.in_place:
            with k.when(filled.ne(which)):
                strip.fill(start, plane, block * high, zero.load())
                filled.set(which)
        top, y_count = block * high, k.min(out_y - block * high, high)
        total = k.min(out_x - block * panels * nr, panels * nr) if config.in_place else y_count * out_x
        with k.loop(0, total, PANELS * nr) as first:
            end = k.min(total, first + PANELS * nr)
            with k.loop(first, end, nr) as at:
                panel = scratch.panels.at((at - first) // nr * scratch.panel_nbytes)
                if config.in_place:
                    pixel = block * panels * nr + at
                    columns = k.min(out_x - pixel, nr)
                    source = QuadPacker(
                        k, start.at(pixel), number(memory, "x_c"), k.const(1), channels, columns, nr,
                        flips=multiply.offset != 0,
                    )  # fmt: skip
                    source.fill(panel.at(nr * QUAD), depth // QUAD, COLUMNS)
                else:
                    strip.panel(panel, at, k.min(total - at, nr), depth, flips=multiply.offset != 0)
            before = block * panels * nr if config.in_place else top * out_x
            with k.loop(chunk * tiles // chunks, (chunk + 1) * tiles // chunks) as tile, k.loop(first, end, nr) as at:
                panel = scratch.panels.at((at - first) // nr * scratch.panel_nbytes)
                ending = _PanelEpilogue(
                    k, config, epilogue, memory, [image, plane], group * filters, before + at, k.min(total - at, nr)
                )
                rows = k.min(filters - tile * multiply.rows, multiply.rows)
                multiply.tile(weights, w_sums.at(group * filters), panel, tile * multiply.rows, rows, ending)
    multiply.end()


@dataclass(frozen=True)
class _PanelEpilogue:
    """What follows the sums of some filters at some outputs of a plane."""

    k: Kernel
    config: Int8ConvConfig
    epilogue: Epilogue
    memory: dict[str, Any]
    at: list[Val]
    """The image and the plane."""
    first: Val
    """The first filter of the group."""
    pixel: Val
    """The number of the first output in its plane."""
    columns: Val

    def put(self, sums: Buf, row: Val, rows: Val) -> None:
        k, nr, (_, out_y, out_x) = self.k, self.config.nr(self.k.isa), sizes(self.memory, "out")
        pixel, columns = self.pixel, self.columns
        if self.config.is_joined:
            finish = BoundEpilogue(k, self.epilogue, self.memory, out_y * out_x, [*self.at, k.const(0)])
            finish.tile(sums, nr, self.first + row, rows, pixel, columns, width=nr, at_once=True)
            return
        done = k.var(0)
        with k.loop_while(lambda: done.get() < columns):
            y, left = (pixel + done.get()) // out_x, (pixel + done.get()) % out_x
            here = k.min(columns - done.get(), out_x - left)
            finish = BoundEpilogue(k, self.epilogue, self.memory, out_x, [*self.at, y])
            finish.tile(sums.at(done.get()), nr, self.first + row, rows, left, here)
            done.set(done.get() + here)


class _VectorProduct:
    """A tile of filters by a panel in registers."""

    def __init__(self, k: Kernel, config: Int8ConvConfig, filters: Val, depth: Val, scratch: _Scratch) -> None:
        self.k, self.config, self.depth, self.scratch = k, config, depth, scratch
        self.rows = config.shape.rows
        self.offset = offset(config.x_dtype, config.panel_dtype(k.isa))

    def tile(self, weights: Buf, sums: Buf, panel: Buf, first: Val, rows: Val, ending: _PanelEpilogue) -> None:
        k, shape, nr = self.k, self.config.shape, self.config.nr(self.k.isa)
        tile = Int8MicroTile(k, shape, i8, self.config.panel_dtype(k.isa))
        for low, high in zip((0, *shape.heights), shape.heights, strict=False):
            with k.when((rows > low) & (rows <= high)):
                at = [first + k.min(rows - 1, r) for r in range(high)]
                start = None
                if self.offset:
                    start = [k.splat(sums.load(r) * self.offset, k.lanes) for r in at]
                given = [weights.at(r * self.depth) for r in at]
                put(tile.sums(given, panel, self.depth, start), self.scratch.sums, nr)
        ending.put(self.scratch.sums, first, rows)

    def end(self) -> None:
        pass


class _AmxProduct:
    """32 filters by a panel in tile registers."""

    rows, offset = PANEL, 0

    def __init__(self, k: Kernel, config: Int8ConvConfig, filters: Val, depth: Val, scratch: _Scratch) -> None:
        self.k, self.config, self.filters, self.depth, self.scratch = k, config, filters, depth, scratch
        self.tiles, self.is_short = Tiles(k), filters <= ROWS
        self.tiles.configure(k.select(self.is_short, k.max(filters, 1), ROWS), short=MicroTile.SHORT)

    def tile(self, weights: Buf, _: Buf, panel: Buf, first: Val, rows: Val, ending: _PanelEpilogue) -> None:
        k, sums = self.k, self.scratch.sums
        micro_tile = MicroTile(self.tiles, sums, k.const(False, bool_), i8, self.config.x_dtype)
        given = [weights.at(first_row(k, first + r, self.filters) * self.depth) for r in (0, ROWS)]
        with k.either(self.is_short) as (short, whole):
            for branch, count in ((short, 1), (whole, 2)):
                with branch:
                    micro_tile.add(given[:count], self.depth, panel.at(QUAD * PANEL), self.depth)
        with k.loop(first, first + rows, ROWS) as row:
            found = sums.at((row - first + row - first_row(k, row, self.filters)) * PANEL)
            ending.put(found, row, k.min(self.filters - row, ROWS))

    def end(self) -> None:
        self.tiles.release()


class _ImageBlock:
    """Padded rows of an image: [channel][plane of taps][row][phase of columns][outputs and reach]."""

    def __init__(
        self,
        k: Kernel,
        config: Int8ConvConfig,
        memory: dict[str, Any],
        channels: Val,
        scratch: _Scratch,
        strip_nbytes: Val,
    ) -> None:
        self.k, self.config, self.memory, self.channels, self.scratch = k, config, memory, channels, scratch
        taps, (_, out_y, self.out_x) = config.taps, sizes(memory, "out")
        self.pitch = self.out_x + taps.reach(2)
        self.row = self.pitch * len(taps.phases(2))
        across, (sy, dy, ky) = taps.kernel[0], (taps.strides[1], taps.dilations[1], taps.kernel[1])
        self.extra = (ky - 1) * dy
        """Rows that the taps of one output span, less one."""
        if config.in_place:
            self.rows = k.const(1)
            return
        fitting = (strip_nbytes // k.max(channels * across * self.row, 1) - self.extra - 1) // sy + 1
        least = ceil_div(k.const(config.nr(k.isa)), k.max(self.out_x, 1))
        self.rows = k.max(k.min(k.min(fitting, k.max(least, 8)), out_y), 1)
        """Rows of outputs of a block."""
        self.high = (self.rows - 1) * sy + self.extra + 1
        self.plane = self.high * self.row
        self._tables(channels)

    def _tables(self, channels: Val) -> None:
        """Where each element under a window lies; what fills the last four lies anywhere."""
        k, taps, at = self.k, self.config.taps, self.k.var(0)
        places = taps.phase_offsets(2)
        with k.loop(0, channels) as c, k.loop(0, taps.kernel[0]) as tz, k.loop(0, taps.kernel[1]) as ty:
            row = (c * taps.kernel[0] + tz) * self.plane + ty * (taps.dilations[1] * self.row)
            for phase, ahead in places:
                self.scratch.offsets.store(at.get(), k.cast(row + self.pitch * phase + ahead, i32))
                at.set(at.get() + 1)
        for t in range(QUAD - 1):
            self.scratch.offsets.store(at.get() + t, 0)

    def fill(self, x: Buf, plane: Val, top: Val, zero: Val) -> None:
        """The rows that outputs from row ``top`` of a plane on see, in every channel."""
        k, taps = self.k, self.config.taps
        (in_z, in_y, in_x), pads = sizes(self.memory, "in"), sizes(self.memory, "pad")
        strides = [number(self.memory, f"x_{name}") for name in ("c", "z", "y", "x")]
        with k.loop(0, self.channels) as c, k.loop(0, taps.kernel[0]) as tz, k.loop(0, self.high) as r:
            z = plane * taps.strides[0] + tz * taps.dilations[0] - pads[0]
            y = top * taps.strides[1] + r - pads[1]
            to = self.scratch.strip.at((c * taps.kernel[0] + tz) * self.plane + r * self.row)
            exists = (z >= 0) & (z < in_z) & (y >= 0) & (y < in_y)
            source = x.at(c * strides[0] + z * strides[1] + y * strides[2])
            for number_, phase in enumerate(taps.phases(2)):
                self._row(to.at(self.pitch * number_), source, exists, phase, pads[2], in_x, strides[3], zero)

    def _row(
        self, to: Buf, source: Buf, exists: Val, phase: int, pad: Val, in_x: Val, stride: Val, zero: Val
    ) -> None:  # fmt: skip
        """Element i of a phase is element i * stride + phase - pad of the row."""
        k, s = self.k, self.config.taps.strides[2]
        to = to.as_type(self.config.x_dtype)
        first = k.min(k.max((pad - phase + (s - 1)) // s, 0), self.pitch)
        first = k.select(pad - phase > 0, first, 0)
        behind = in_x + pad - phase
        last = k.select(exists & (behind > 0), k.max(k.min((behind + (s - 1)) // s, self.pitch), first), first)
        with k.loop(0, first) as i:
            to.store(i, zero)
        done, wide = first, k.lanes * QUAD
        if s == 1 and self.config.is_unit:
            done = first + (last - first) // wide * wide
            with k.loop(first, done, wide) as i:
                to.store(i, source.load(i + phase - pad, wide))
        with k.loop(done, last) as i:
            to.store(i, source.load((i * s + phase - pad) * stride))
        with k.loop(last, self.pitch) as i:
            to.store(i, zero)

    def panel(self, panel: Buf, first: Val, columns: Val, depth: Val, *, flips: bool) -> None:
        """Outputs from number ``first`` of the block on, four elements of each at a time.

        A row of outputs is written whole vectors long: what is too much is written over by the next one.
        """
        k, nr, sy = self.k, self.config.nr(self.k.isa), self.config.taps.strides[1]
        y, left = first // self.out_x, first % self.out_x
        pair = [i // 2 + i % 2 * nr for i in range(2 * nr)]
        four = [i // 4 * 2 + i % 2 + i % 4 // 2 * 2 * nr for i in range(4 * nr)]
        used = k.min(depth, ceil_div(self.channels * self.config.taps.count, QUAD) * QUAD)
        with k.loop(0, used, QUAD) as p:
            starts = [self.scratch.strip.at(k.cast(self.scratch.offsets.load(p + t), i64)) for t in range(QUAD)]
            to = panel.at((p + QUAD) * nr)
            row, at, done = k.var(y * (sy * self.row)), k.var(left), k.var(0)
            with k.loop_while(lambda: done.get() < columns):
                here = row.get() + at.get()
                a, b, c, d = (s.load(here, nr) for s in starts)
                fours = k.bitcast(a.shuffle(pair, b).shuffle(four, c.shuffle(pair, d)), i32)
                to.store(done.get() * QUAD, k.bitcast(fours ^ FLIP if flips else fours, i8))
                done.set(done.get() + self.out_x - at.get())
                row.set(row.get() + sy * self.row)
                at.set(0)
        with k.loop(used * nr, depth * nr, k.lanes * QUAD) as i:
            panel.store(i + QUAD * nr, k.zeros(i8, k.lanes * QUAD))
