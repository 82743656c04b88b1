"""The scratch memory of ``quantized.conv``: padded input rows of a block of outputs, and the panels packed from them.

Columns of a row are grouped by stride phase, so that neighbouring outputs read neighbouring elements for each tap.
"""

from __future__ import annotations

from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.kernels.common.epilogue import EpilogueArgs
from sardonyx.providers.cpu.kernels.common.window import Taps, WindowArgs
from sardonyx.providers.cpu.kernels.gemm.vector import MicroTileShape
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.quantized.byte_dot import flip_signs, partner_dtype
from sardonyx.providers.cpu.kernels.quantized.gemm_amx import MICRO_TILE, PANEL
from sardonyx.providers.cpu.kernels.quantized.pack import QUAD, interleaved_quads
from sardonyx.providers.cpu.language.arguments import Arguments, M, N
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i8, i32, i64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.records import Record

BLOCK_NBYTES = 128 << 10
"""Bytes of an image block, unless one row of outputs needs more."""
PANELS = 4
"""Panels that are packed at a time and multiplied by all filters of a chunk."""
MIN_BLOCK_ROWS = 8
"""Rows of an output block, where they fit."""


class Int8ConvConfig(Record):
    """Compile-time configuration of ``conv_int8``."""

    x_dtype: DType
    taps: Taps
    shape: MicroTileShape
    has_unit_stride: bool
    """The elements of a row are adjacent in memory."""
    is_pointwise: bool
    """The window is one element and all pixels are one row: panels are packed from the image, without a block."""
    rows_are_contiguous: bool
    """Rows of outputs and of epilogue operands follow each other without gaps."""

    def nr(self, isa: Isa) -> int:
        return PANEL if isa.amx else self.shape.columns(isa, i32)

    def panel_dtype(self, isa: Isa) -> DType:
        """The type of a panel: the image's own, or the one that the chip multiplies with signed weights."""
        return self.x_dtype if isa.amx else partner_dtype(isa)

    def block_nbytes(self, channels: Known, out_x: Known) -> Known:
        """Bytes of the image block: ``BLOCK_NBYTES``, or more if one row of outputs needs more."""
        if self.is_pointwise:
            return 0
        taps = self.taps
        rows = taps.kernel[0] * (1 + (taps.kernel[1] - 1) * taps.dilations[1])
        row = dims.mul(len(taps.phases(2)), dims.add(out_x, taps.reach(2)))
        return expressible(dims.maximum(BLOCK_NBYTES, dims.product((channels, rows, row))))


class Int8ConvArgs(Arguments[M, N]):
    """The parameters of ``conv_int8``."""

    is_inline: ClassVar[bool] = True
    window: WindowArgs[M, N]
    w: M
    w_sums: M
    zero: M
    groups: N
    channels: N
    filters: N
    """Channels and filters of a group."""
    depth: N
    """Elements under a window, rounded up to whole steps of k."""
    block_nbytes: N
    """Bytes of the image block."""
    epilogue: EpilogueArgs[M, N]


class Int8ConvScratch:
    """A thread's scratch memory: sums, offsets of the elements under a window, panels, and the image block.

    Packing a panel's last row overruns it into the column sums in front of the next panel, which are not used here.
    """

    def __init__(self, k: Kernel, config: Int8ConvConfig, depth: Val) -> None:
        nr = config.nr(k.isa)
        self.sums = k.scratch(i32)
        at = k.const(self.sums_nbytes(config, k.isa))
        self.offsets = k.scratch(i32, at)
        at = at + depth * 4
        self.panel_nbytes = (depth + QUAD) * nr
        self.panels = k.scratch(i8, at)
        self.block = k.scratch(i8, at + self.panel_nbytes * PANELS + QUAD * nr)

    @staticmethod
    def sums_nbytes(config: Int8ConvConfig, isa: Isa) -> int:
        return MICRO_TILE * 4 if isa.amx else config.shape.rows * config.nr(isa) * 4

    @staticmethod
    def fixed_nbytes(config: Int8ConvConfig, isa: Isa) -> int:
        """Everything but panels, offsets and the image block, and the slack that is read beyond that block."""
        return Int8ConvScratch.sums_nbytes(config, isa) + (PANELS + 2) * QUAD * config.nr(isa)


class Int8ImageBlock:
    """Padded input rows in scratch memory: [channel][tap along z][row][stride phase][outputs and reach]."""

    def __init__(
        self, k: Kernel, config: Int8ConvConfig, args: Int8ConvArgs[Buf, Val], scratch: Int8ConvScratch
    ) -> None:
        self.k, self.config, self.window, self.channels, self.scratch = k, config, args.window, args.channels, scratch
        taps, (_, out_y, self.out_x) = config.taps, args.window.out
        self.pitch = self.out_x + taps.reach(2)
        self.row = self.pitch * len(taps.phases(2))
        across, (sy, dy, ky) = taps.kernel[0], (taps.strides[1], taps.dilations[1], taps.kernel[1])
        self.extra = (ky - 1) * dy
        """Input rows that the taps of one output span, less one."""
        if config.is_pointwise:
            self.rows = k.const(1)
            return
        fitting = (args.block_nbytes // k.max(self.channels * across * self.row, 1) - self.extra - 1) // sy + 1
        least = ceil_div(k.const(config.nr(k.isa)), k.max(self.out_x, 1))
        self.rows = k.max(k.min(k.min(fitting, k.max(least, MIN_BLOCK_ROWS)), out_y), 1)
        """Rows of outputs of a block."""
        self.high = (self.rows - 1) * sy + self.extra + 1
        self.plane = self.high * self.row
        self._tables()

    def _tables(self) -> None:
        """Store the offset in the block of each element under a window. The rest of the last quad may be any."""
        k, taps, at = self.k, self.config.taps, self.k.var(0)
        places = taps.phase_offsets(2)
        with k.loop(0, self.channels) as c, k.loop(0, taps.kernel[0]) as tz, k.loop(0, taps.kernel[1]) as ty:
            row = (c * taps.kernel[0] + tz) * self.plane + ty * (taps.dilations[1] * self.row)
            for phase, ahead in places:
                self.scratch.offsets.store(at.get(), k.cast(row + self.pitch * phase + ahead, i32))
                at.set(at.get() + 1)
        for t in range(QUAD - 1):
            self.scratch.offsets.store(at.get() + t, 0)

    def fill(self, x: Buf, plane: Val, top: Val, zero: Val) -> None:
        """Copy the input rows that outputs from row ``top`` of a plane on read, of all channels."""
        k, taps = self.k, self.config.taps
        (in_z, in_y, in_x), pads, strides = self.window.size, self.window.pad, self.window.strides
        with k.loop(0, self.channels) as c, k.loop(0, taps.kernel[0]) as tz, k.loop(0, self.high) as r:
            z = plane * taps.strides[0] + tz * taps.dilations[0] - pads[0]
            y = top * taps.strides[1] + r - pads[1]
            to = self.scratch.block.at((c * taps.kernel[0] + tz) * self.plane + r * self.row)
            exists = (z >= 0) & (z < in_z) & (y >= 0) & (y < in_y)
            source = x.at(c * strides.c + z * strides.z + y * strides.y)
            for i, phase in enumerate(taps.phases(2)):
                self._copy_phase(to.at(self.pitch * i), source, exists, phase, pads[2], in_x, strides.x, zero)

    def _copy_phase(
        self, to: Buf, source: Buf, exists: Val, phase: int, pad: Val, in_x: Val, stride: Val, zero: Val
    ) -> None:  # fmt: skip
        """Copy one stride phase of a row: its element i is element i * stride + phase - pad of the row."""
        k, s = self.k, self.config.taps.strides[2]
        to = to.as_type(self.config.x_dtype)
        first = k.min(k.max((pad - phase + (s - 1)) // s, 0), self.pitch)
        first = k.select(pad - phase > 0, first, 0)
        right = in_x + pad - phase
        last = k.select(exists & (right > 0), k.max(k.min((right + (s - 1)) // s, self.pitch), first), first)
        with k.loop(0, first) as i:
            to.store(i, zero)
        done, wide = first, k.lanes * QUAD
        if s == 1 and self.config.has_unit_stride:
            done = first + (last - first) // wide * wide
            with k.loop(first, done, wide) as i:
                to.store(i, source.load(i + phase - pad, wide))
        with k.loop(done, last) as i:
            to.store(i, source.load((i * s + phase - pad) * stride))
        with k.loop(last, self.pitch) as i:
            to.store(i, zero)

    def pack_panel(self, panel: Buf, first: Val, columns: Val, depth: Val, *, flips: bool) -> None:
        """Pack ``columns`` outputs of the block from number ``first`` on, one quad of k after the other.

        A row of outputs is stored in whole vectors; the next row overwrites what is beyond its end.
        """
        k, nr, sy = self.k, self.config.nr(self.k.isa), self.config.taps.strides[1]
        y, left = first // self.out_x, first % self.out_x

        used = k.min(depth, ceil_div(self.channels * self.config.taps.count, QUAD) * QUAD)
        with k.loop(0, used, QUAD) as p:
            starts = [self.scratch.block.at(k.cast(self.scratch.offsets.load(p + t), i64)) for t in range(QUAD)]
            to = panel.at((p + QUAD) * nr)
            row, at, done = k.var(y * (sy * self.row)), k.var(left), k.var(0)
            with k.loop_while(lambda: done.get() < columns):
                here = row.get() + at.get()
                quads = k.bitcast(interleaved_quads([s.load(here, nr) for s in starts]), i32)
                to.store(done.get() * QUAD, k.bitcast(flip_signs(quads) if flips else quads, i8))
                done.set(done.get() + self.out_x - at.get())
                row.set(row.get() + sy * self.row)
                at.set(0)
        with k.loop(used * nr, depth * nr, k.lanes * QUAD) as i:
            panel.store(i + QUAD * nr, k.zeros(i8, k.lanes * QUAD))
