"""NCHW images of few channels as stem convolutions read them: NHWC, with their padding.

The rows that a block of outputs (``conv.nhwc``) reads are transposed into scratch, which stays in L1. The image is read
once, and no copy of it is written to memory. The taps of a row are contiguous there and count as channels: the input
pixels of neighbouring outputs are one stride apart, and overlap.
"""

from __future__ import annotations

from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution, View, Window
from sardonyx.providers.cpu.kernels.common.window import TapsArgs, WindowArgs
from sardonyx.providers.cpu.kernels.math.transpose import interleaved
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.program.steps import Ref
from sardonyx.records import Record, replace

LINE = 16
"""Elements of a cache line, and of the longest vector."""
MAX_ROW_CHANNELS = 4
"""Channels up to which interleaving them costs less than a copy of the image."""


class StemArgs(Arguments[M, N]):
    """The parameters of an NCHW image whose rows are transposed."""

    is_inline: ClassVar[bool] = True
    plane: N
    plane_row: N
    image: N
    """The strides of channels, rows and images."""
    rows: N
    columns: N
    above: N
    left: N
    """The padding above the image and to the left."""
    seen: N
    """Columns that an output reads."""

    @staticmethod
    def declared() -> StemArgs[Memory, DType]:
        return StemArgs(i64, i64, i64, i64, i64, i64, i64, i64)


class StemRows(Record):
    """The image of a stem convolution, and the convolution of its transposed rows."""

    x: View
    group: Convolution
    """With the taps of a row as channels. Of its image view only the strides are used."""
    window: Window

    @staticmethod
    def of(group: Convolution, weights: View, high: int, pixels: int) -> StemRows:
        """``weights``: with the taps of a row as channels. ``high``: rows of the padded image. ``pixels``: of a
        block.
        """
        window, channels = group.window, int(group.w.shape[1])
        pitch = ((pixels - 1) * window.strides[1] + window.kernel[1]) * channels
        shape = (group.x.shape[0], window.kernel[1] * channels, high, group.box[3])
        strides = (0, 1, -(-pitch // LINE) * LINE, window.strides[1] * channels)
        taps = Window((window.kernel[0], 1), (window.strides[0], 1), (window.dilations[0], 1), (0, 0))
        rows = View(group.x.storage, shape, strides, group.x.offset)
        return StemRows(group.x, replace(group, x=rows, w=weights, window=taps), window)

    @property
    def channels(self) -> int:
        return int(self.x.shape[1])

    @property
    def nbytes(self) -> int:
        """Scratch of a block's rows; the last row is written a few vectors too far."""
        reach = (self.window.kernel[0] - 1) * self.window.dilations[0]
        return (int(self.group.x.strides[2]) * (reach + 1) + self.channels * LINE) * self.x.dtype.itemsize

    @property
    def operand(self) -> StemArgs[Ref, Known]:
        image, plane, row, _ = self.x.strides
        (above, left), (rows, columns) = self.window.pads, self.x.shape[2:]
        return StemArgs(plane, row, image, rows, columns, above, left, self.window.kernel[1])


# -- inside kernels


class RowTransposer:
    """Transposes the rows that a block of outputs reads."""

    def __init__(
        self, k: Kernel, window: WindowArgs[Buf, Val], taps: TapsArgs[Buf, Val], image: StemArgs[Buf, Val], to: Buf,
        channels: int, padding: Val | float = 0.0,
    ) -> None:  # fmt: skip
        """``window`` slides over the transposed rows; its memory is the NCHW image."""
        self.k, self.window, self.taps, self.image, self.to, self.channels = k, window, taps, image, to, channels
        self.padding = k.value(padding, to.dtype, k.lanes)
        self._skipped = k.var(0)

    @property
    def rows(self) -> Buf:
        """The address of the image's first row, as if the whole image were in scratch."""
        return self.to.at(-self._skipped.get())

    def transpose(self, image: Val, y: Val, x: Val, count: Val) -> None:
        """Transpose the input of ``count`` output pixels from (y, x) on, which are in one row."""
        k, taps, pitch, step = self.k, self.taps, self.window.strides.y, self.window.strides.x
        top, left = y * taps.stride.y, x * step // self.channels
        wide = (count - 1) * step // self.channels + self.image.seen
        self._skipped.set(top * pitch + x * step)
        source = self.window.x.at(image * self.image.image)
        with k.loop(0, taps.kernel.y) as tap:
            down = tap * taps.dilation.y
            line, row = self.to.at(down * pitch), top + down - self.image.above
            with k.either((row >= 0) & (row < self.image.rows)) as (inside, outside):
                with inside:
                    self._transpose_row(source.at(row * self.image.plane_row), line, left - self.image.left, wide)
                with outside, k.loop(0, wide * self.channels, k.lanes) as i:
                    line.store(i, self.padding)

    def _transpose_row(self, source: Buf, line: Buf, first: Val, wide: Val) -> None:
        """Transpose ``wide`` columns from ``first`` on; zeros outside the image."""
        k, lanes, columns = self.k, self.k.lanes, self.image.columns
        with k.loop(0, wide, lanes) as i:
            at = first + i
            mask = k.mask(columns - at, lanes) & ~k.mask(-at, lanes)
            planes = [source.at(self.image.plane * c).load(at, lanes, mask) for c in range(self.channels)]
            for j, v in enumerate(interleaved([k.select(mask, v, self.padding) for v in planes])):
                line.store(i * self.channels + j * lanes, v)
