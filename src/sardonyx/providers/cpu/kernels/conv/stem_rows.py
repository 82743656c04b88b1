"""Images of few channels, plane by plane, as first layers see them: pixel by pixel, with their padding.

Each block of results (``conv.nhwc``), some neighbours of a row, has what it sees turned into scratch memory, which
stays in L1. The image is read once, and no copy of it is written. The taps of a row are neighbours there and count as
channels (``layout.nhwc_edges``): pixels of the result are as far apart as the stride, and overlap.
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
"""Numbers of a cache line, and of the longest vector."""
CHANNELS = 4
"""At most: what brings a number to its place is done once for each."""
NUMBERS = ("plane", "plane_row", "image", "rows", "columns", "above", "left", "seen")
"""How far planes, their rows and images are from each other, the sizes of a plane, the padding before it, and columns
that a result sees."""


@dataclass(frozen=True)
class StemRows:
    """The image of a first layer, and the convolution of what blocks turn of it."""

    x: View
    group: Convolution
    """The taps of a row are channels. Of its image only the strides count."""
    window: Window

    @staticmethod
    def of(group: Convolution, weights: View, high: int, pixels: int) -> StemRows:
        """Of a convolution whose ``weights`` have the taps of a row as channels, over an image that has ``high`` rows
        with its padding, in blocks of so many pixels.
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
        """Of what a block sees: the last row is written a few vectors on."""
        reach = (self.window.kernel[0] - 1) * self.window.dilations[0]
        return (int(self.group.x.strides[2]) * (reach + 1) + self.channels * LINE) * 4

    def args(self) -> dict[str, Ref | Known | float]:
        image, plane, row, _ = self.x.strides
        given = (plane, row, image, *self.x.shape[2:], *self.window.pads, self.window.kernel[1])
        return {"x": Ref.of(self.x), **dict(zip(NUMBERS, given, strict=True))}


# -- inside kernels


class RowTransposer:
    """Turns what a block of results sees."""

    def __init__(self, k: Kernel, x: Buf, to: Buf, memory: Any, channels: int) -> None:
        self.k, self.x, self.to, self.memory, self.channels = k, x, to, memory, channels
        self._before = k.var(0)

    def _n(self, name: str) -> Val:
        return number(self.memory, name)

    @property
    def rows(self) -> Buf:
        """Where the first row of the image would begin, were it there."""
        return self.to.at(-self._before.get())

    def turn(self, image: Val, y: Val, x: Val, many: Val) -> None:
        """What ``many`` pixels of a row of the result see."""
        k, pitch, step = self.k, self._n("x_y"), self._n("x_x")
        top, left = y * self._n("stride_y"), x * step // self.channels
        wide = (many - 1) * step // self.channels + self._n("seen")
        self._before.set(top * pitch + x * step)
        source = self.x.at(image * self._n("image"))
        with k.loop(0, self._n("kernel_y")) as tap:
            down = tap * self._n("dilation_y")
            line, row = self.to.at(down * pitch), top + down - self._n("above")
            with k.either((row >= 0) & (row < self._n("rows"))) as (there, beside):
                with there:
                    self._turn(source.at(row * self._n("plane_row")), line, left - self._n("left"), wide)
                with beside, k.loop(0, wide * self.channels, k.lanes) as i:
                    line.store(i, k.zeros(f32, k.lanes))

    def _turn(self, source: Buf, line: Buf, first: Val, wide: Val) -> None:
        """So many columns from ``first`` on; zeros where the image has none."""
        k, lanes, columns = self.k, self.k.lanes, self._n("columns")
        with k.loop(0, wide, lanes) as i:
            at = first + i
            mask = k.mask(columns - at, lanes) & ~k.mask(-at, lanes)
            planes = [source.at(self._n("plane") * c).load(at, lanes, mask) for c in range(self.channels)]
            for j, v in enumerate(interleaved([k.select(mask, v, 0.0) for v in planes])):
                line.store(i * self.channels + j * lanes, v)
