"""NCHW images of few channels as stem convolutions read them: NHWC, with their padding.

The rows that a block of outputs (``conv.nhwc``) reads are transposed into scratch, which stays in L1. The image is read
once, and no copy of it is written to memory. The taps of a row are contiguous there and count as channels: the input
pixels of neighbouring outputs are one stride apart, and overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution, View, Window
from sardonyx.providers.cpu.kernels.common.matrices import number
from sardonyx.providers.cpu.kernels.math.transpose import interleaved
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32
from sardonyx.providers.cpu.program.steps import Ref

LINE = 16
"""Elements of a cache line, and of the longest vector."""
MAX_ROW_CHANNELS = 4
"""Channels up to which interleaving them costs less than a copy of the image."""
NUMBERS = ("plane", "plane_row", "image", "rows", "columns", "above", "left", "seen")
"""The strides of channels, rows and images, the height and width of the image, the padding above and to the left, and
the columns that an output reads."""


@dataclass(frozen=True)
class StemRows:
    """The image of a stem convolution, and the convolution of its transposed rows."""

    x: View
    group: Convolution
    """With the taps of a row as channels. Of its image view only the strides are used."""
    window: Window

    @staticmethod
    def of(group: Convolution, weights: View, high: int, pixels: int) -> StemRows:
        """``weights`` have the taps of a row as channels. ``high`` rows with padding, ``pixels``: of a block."""
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
        return (int(self.group.x.strides[2]) * (reach + 1) + self.channels * LINE) * 4

    def args(self) -> dict[str, Ref | Known | float]:
        image, plane, row, _ = self.x.strides
        given = (plane, row, image, *self.x.shape[2:], *self.window.pads, self.window.kernel[1])
        return {"x": Ref.of(self.x), **dict(zip(NUMBERS, given, strict=True))}


# -- inside kernels


class RowTransposer:
    """Transposes the rows that a block of outputs reads."""

    def __init__(self, k: Kernel, x: Buf, to: Buf, memory: Any, channels: int) -> None:
        self.k, self.x, self.to, self.memory, self.channels = k, x, to, memory, channels
        self._skipped = k.var(0)

    def _n(self, name: str) -> Val:
        return number(self.memory, name)

    @property
    def rows(self) -> Buf:
        """The address of the image's first row, as if the whole image were in scratch."""
        return self.to.at(-self._skipped.get())

    def transpose(self, image: Val, y: Val, x: Val, many: Val) -> None:
        """Transpose the input of ``many`` pixels of an output row."""
        k, pitch, step = self.k, self._n("x_y"), self._n("x_x")
        top, left = y * self._n("stride_y"), x * step // self.channels
        wide = (many - 1) * step // self.channels + self._n("seen")
        self._skipped.set(top * pitch + x * step)
        source = self.x.at(image * self._n("image"))
        with k.loop(0, self._n("kernel_y")) as tap:
            down = tap * self._n("dilation_y")
            line, row = self.to.at(down * pitch), top + down - self._n("above")
            with k.either((row >= 0) & (row < self._n("rows"))) as (inside, outside):
                with inside:
                    self._transpose_row(source.at(row * self._n("plane_row")), line, left - self._n("left"), wide)
                with outside, k.loop(0, wide * self.channels, k.lanes) as i:
                    line.store(i, k.zeros(f32, k.lanes))

    def _transpose_row(self, source: Buf, line: Buf, first: Val, wide: Val) -> None:
        """Transpose ``wide`` columns from ``first`` on; zeros outside the image."""
        k, lanes, columns = self.k, self.k.lanes, self._n("columns")
        with k.loop(0, wide, lanes) as i:
            at = first + i
            mask = k.mask(columns - at, lanes) & ~k.mask(-at, lanes)
            planes = [source.at(self._n("plane") * c).load(at, lanes, mask) for c in range(self.channels)]
            for j, v in enumerate(interleaved([k.select(mask, v, 0.0) for v in planes])):
                line.store(i * self.channels + j * lanes, v)
