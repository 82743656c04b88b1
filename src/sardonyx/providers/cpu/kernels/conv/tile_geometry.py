"""A convolution's window over a packed image (``conv.packed_image``)."""

from __future__ import annotations

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution, Storage
from sardonyx.providers.cpu.kernels.common.window import PerAxis, TapsArgs, WindowGeometry
from sardonyx.providers.cpu.kernels.conv.image_epilogue import ImageEpilogueArgs
from sardonyx.providers.cpu.kernels.conv.implicit_gemm import SecondImageArgs, TileConvArgs
from sardonyx.providers.cpu.kernels.conv.packed_image import (
    OVERRUN,
    ImageFormat,
    PackedImageLayout,
    PackedStrides,
    most_compact,
    window_tiles,
)
from sardonyx.providers.cpu.kernels.conv.stride_phases import NO_PHASES, StridePhases
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, k_block_steps
from sardonyx.providers.cpu.language.values import bf16
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref
from sardonyx.records import Record

KC_STEPS = {1: 12, 2: 6, 3: 4}
"""Most steps of a K-block, by terms: 24 KiB of weights."""
STREAMING_KC_STEPS = 16
"""Most steps of a K-block of one term whose pixels bypass L1 (``Geometry.is_non_temporal``)."""
MAX_RESIDENT_STEPS = 2
"""Most steps whose weights stay in tile registers, two tiles for each."""


class Geometry(Record):
    """A convolution's window over a packed image."""

    layout: PackedImageLayout
    start: Known
    """The element of the first pixel that the first window sees."""
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    size: tuple[Known, ...]
    """The spatial sizes of the result."""
    phases: StridePhases | None = None
    """The phases of the image, if they are what is read."""
    second: Geometry | None = None
    """Single pixels of a second image."""
    flags: Storage | None = None
    """One for each row of the image, which is up where a number is not finite."""

    @property
    def steps(self) -> int:
        return self.own_steps + (self.second.own_steps if self.second else 0)

    @property
    def own_steps(self) -> int:
        return window_tiles(self.layout, self.kernel, self.dilations)

    @property
    def image(self) -> PackedImageLayout:
        """The layout that tiles read: that of the image, or of its stride phases."""
        return self.phases.image if self.phases else self.layout

    @property
    def moves(self) -> tuple[int, ...]:
        """The distance from window to window along each axis, in pixels of ``image``."""
        return (1, 1, 1) if self.phases else self.strides

    @property
    def is_dense(self) -> bool:
        """Whether the first pixels of successive windows are successive pixels of ``image``, also from row to row."""
        return self.moves == (1, 1, 1) and self.image.has_no_padding

    @property
    def k_block(self) -> int:
        """Steps of each K-block except the last."""
        return k_block_steps(self.steps, STREAMING_KC_STEPS if self.is_non_temporal else KC_STEPS[self.layout.terms])

    @property
    def is_non_temporal(self) -> bool:
        """Whether tile loads of pixels bypass L1: with one term, if a single tap reads each pixel."""
        is_once = self.kernel[:2] == (1, 1) and self.spans[0] == 1
        return self.layout.terms == 1 and is_once and self.steps > MAX_RESIDENT_STEPS

    @property
    def last_k_block(self) -> int:
        return self.steps - (-(-self.steps // self.k_block) - 1) * self.k_block

    @property
    def spans(self) -> tuple[int, int]:
        """How many contiguous spans of a channel block a row of taps reads, and the length of each in numbers."""
        return self.layout.spans(self.kernel[2], self.dilations[2])

    def operand(
        self, filters: int, k_block: int, epilogue: ImageEpilogueArgs[Ref, Known],
        second: SecondImageArgs[Ref, Known] | None = None,
    ) -> TileConvArgs[Ref, Known]:  # fmt: skip
        z, y, x = self.size
        phase_strides, strides = self.strides if self.phases else (1, 1, 1), self.moves
        deep, row, (spans, wide) = self.image.deep, self.image.row, self.spans
        if strides == (1, 1, 1) and (self.second is None or (self.is_dense and self.second.is_dense)):
            length = dims.total((dims.mul(dims.sub(z, 1), deep), dims.mul(dims.sub(y, 1), row), x))
            lines: Known = 1
        else:
            length, lines, row, deep = x, expressible(dims.mul(z, y)), x, expressible(dims.mul(y, x))
        taps = TapsArgs[Ref, Known](
            PerAxis(self.kernel[0], self.kernel[1], spans), PerAxis(*self.dilations), PerAxis(*strides)
        )
        return TileConvArgs(
            *self._strides, batch=self.layout.batch, blocks=self.layout.blocks, filters=filters, lines=lines,
            length=expressible(dims.maximum(length, 0)), wide=wide, pitch_z=deep, pitch_y=row, k_block=k_block,
            taps=taps, out=PerAxis(*self.size), phase=PerAxis(*phase_strides), second=second, epilogue=epilogue,
        )  # fmt: skip

    @property
    def second_operand(self) -> SecondImageArgs[Ref, Known]:
        """The kernel's parameters of this geometry as that of a second image."""
        strides, _ = self._strides
        along = zip((strides.z, strides.y, strides.x), self.moves, strict=True)
        z, y, x = (expressible(dims.mul(stride, n)) for stride, n in along)
        return SecondImageArgs(strides.b, strides.block, z, y, x, self.own_steps)

    @property
    def _strides(self) -> tuple[PackedStrides[Ref, Known], PerAxis[Ref, Known]]:
        return self.phases.strides_of() if self.phases else (self.layout.strides, NO_PHASES)


def geometry(group: Convolution, frame: WindowGeometry, fmt: ImageFormat) -> Geometry:
    """The window over a packed image in a layout for this convolution alone.

    The layout is channel-blocked, or compact if windows then read fewer tiles; int8 slices have no compact layout.
    """
    window, size = frame.window, frame.size
    reach = [(n - 1) * d for n, d in zip(window.kernel, window.dilations, strict=True)]
    pads = [p for p in window.pads if isinstance(p, int)]
    back: list[Known] = []
    for i in range(3):
        last = dims.add(dims.mul(dims.sub(size[i], 1), window.strides[i]), reach[i] + 1)
        back.append(expressible(dims.maximum(dims.sub(last, dims.add(frame.x.shape[2 + i], pads[i])), 0)))
    back[2] = expressible(dims.maximum(back[2], dims.sub(size[2], frame.x.shape[4])))  # a line holds its results
    channels, image = int(group.w.shape[1]), tuple(frame.x.shape[2:])
    overrun = max(HALF * window.strides[2], OVERRUN)
    layout = PackedImageLayout(fmt, frame.x.shape[0], channels, image, tuple(pads), tuple(back), overrun=overrun)
    if fmt.dtype is bf16 or fmt.is_quantized:
        layout = most_compact(layout, [(window.kernel, window.dilations)])
    return Geometry(layout, layout.at(*(-p for p in pads)), window.kernel, window.strides, window.dilations, size)
