"""Stride-phase decomposition (space-to-depth): a strided window as unit-stride windows (``conv.implicit_gemm``).

With strides, a tile of A holds pixels of one row only, and rows of seven pixels leave half of each tile empty. A
*phase* is every stride-th pixel along both axes: a smaller image without padding, in which windows move by one, so
that a tile continues with the pixels of the next row. Taps that are a stride apart read the same phase; three taps at
stride 2 need four phases. No pixel is copied twice.

    [batch][channels / 32][y phase][x phase][y][x][32 channels]

The source is a channel-blocked packed image of one term, padding included. Pixels that no window reads stay undefined.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Storage
from sardonyx.providers.cpu.kernels.common.window import PerAxis
from sardonyx.providers.cpu.kernels.conv.packed_image import PackedImageLayout, PackedStrides, block_of
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat, named
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bf16, i64, u16
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.records import Record, replace

SAVED, LINE = 16, 8
"""Cycles of a step of a micro-tile, at least, and of a copied line."""
NO_PHASES = PerAxis[Ref, Known](0, 0, 0)
"""The phase strides of an image that is not decomposed."""


class PlaneAxes(Arguments[M, N]):
    """A number for each axis of a plane."""

    y: N
    x: N


class SourceStrides(Arguments[M, N]):
    """The strides of the image that is decomposed."""

    b: N
    block: N
    y: N
    x: N


class PhaseStrides(Arguments[M, N]):
    """The strides of the decomposed image."""

    b: N
    block: N
    plane: N
    """The stride from phase to phase."""
    y: N


class StridePhasesArgs(Arguments[M, N]):
    """The parameters of ``split_stride_phases``."""

    is_inline: ClassVar[bool] = True
    x: M
    y: M
    source: SourceStrides[M, N] = field(metadata=named("x"))
    target: PhaseStrides[M, N] = field(metadata=named("y"))
    batch: N
    blocks: N
    rows: N
    columns: N
    """Rows and columns of a phase."""
    phases: PlaneAxes[M, N]
    stride: PlaneAxes[M, N]
    seen: PlaneAxes[M, N]
    """Pixels that windows read, with the padding in front."""


def _params(dtype: DType) -> Params:
    axes = PlaneAxes[Memory, DType](i64, i64)
    args = StridePhasesArgs(
        Memory(dtype), Memory(dtype), SourceStrides(i64, i64, i64, i64), PhaseStrides(i64, i64, i64, i64),
        i64, i64, i64, i64, axes, axes, axes,
    )  # fmt: skip
    return {"args": args}


@kernel(_params)
def split_stride_phases(k: Kernel, args: StridePhasesArgs[Buf, Val], *, dtype: DType) -> None:
    """y = the stride phases of the packed image x."""
    stride, x, y = args.stride, args.source, args.target
    bits, line = u16 if dtype is bf16 else dtype, block_of(dtype)
    phases, source, target = args.phases.y * args.phases.x, args.x.as_type(bits), args.y.as_type(bits)
    each = args.batch * args.blocks * phases
    # Threads divide the rows as the step that wrote the image did.
    with k.share(args.rows * each) as at:
        row, plane = at // each, at % each
        phase, block, image = plane % phases, plane // phases % args.blocks, plane // phases // args.blocks
        phase_y, phase_x = phase // args.phases.x, phase % args.phases.x
        source_row = row * stride.y + phase_y
        here = source.at(image * x.b + block * x.block + source_row * x.y + phase_x * x.x)
        to = target.at(image * y.b + block * y.block + phase * y.plane + row * y.y)
        count = k.min(args.columns, (args.seen.x - phase_x + stride.x - 1) // k.max(stride.x, 1))
        with k.loop(0, k.select(source_row < args.seen.y, count, 0)) as i:
            to.store(i * line, here.load(i * stride.x * x.x, line))


class StridePhases(Record):
    """The stride phases of a packed image."""

    image: PackedImageLayout
    """Phases are blocks of it."""
    strides: tuple[int, int]
    counts: tuple[int, int]
    seen: tuple[int, int]
    """Pixels along y and x, with the padding in front."""

    @staticmethod
    def of(
        layout: PackedImageLayout, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...],
        size: tuple[Known, ...],
    ) -> StridePhases | None:  # fmt: skip
        """For windows without dilation over 2-D images of known size; None where strides are 1 or the layout is
        unsuitable."""
        (depth, *taps), (_, *steps), (deep, *out) = kernel, strides, size
        is_flat = (depth, deep, layout.size[0]) == (1, 1, 1)
        if layout.terms > 1 or layout.compact or not is_flat or max(steps) == 1 or max(dilations) > 1:
            return None
        if not all(isinstance(d, int) and d > 0 for d in out):
            return None
        (height, width), (stride_y, stride_x), (high, wide) = taps, steps, (int(d) for d in out)
        phases = min(stride_y, height), min(stride_x, width)
        rows, columns = high + (height - 1) // stride_y, wide + (width - 1) // stride_x
        seen = (high - 1) * stride_y + height, (wide - 1) * stride_x + width
        channels = layout.blocks * phases[0] * phases[1] * layout.block
        image = PackedImageLayout(layout.format, layout.batch, channels, (1, rows, columns), (0, 0, 0), (0, 0, 0))
        return StridePhases(image, (stride_y, stride_x), phases, seen)

    @property
    def blocks(self) -> int:
        return self.image.blocks // (self.counts[0] * self.counts[1])

    def pays(self, steps: int, filters: int, size: tuple[Known, ...]) -> bool:
        """Whether having fewer micro-tiles saves more time than the copy costs."""
        high, wide = (int(d) for d in size[1:])
        (_, rows, columns) = (int(d) for d in self.image.size)
        fewer = high * -(-wide // HALF) - -(-((high - 1) * columns + wide) // HALF)
        return fewer * steps * -(-filters // PANEL) * SAVED > self.image.blocks * rows * columns * LINE

    def strides_of(self) -> tuple[PackedStrides[Ref, Known], PerAxis[Ref, Known]]:
        """The strides of the decomposed image, in which a channel block has all its phases; and the strides from phase
        to phase along each axis.
        """
        plane = self.image.plane_stride
        across = dims.mul(plane, self.counts[1])
        block = expressible(dims.mul(across, self.counts[0]))
        return replace(self.image.strides, block=block), PerAxis(0, expressible(across), plane)

    def step(self, source: Ref, layout: PackedImageLayout, nodes: Any) -> tuple[Step, Storage]:
        """The step that decomposes an image whose first window begins at ``source``, and its result."""
        dtype = layout.format.dtype
        made, (rows, columns) = Storage("temporary", dtype, self.image.elements), self.image.size[1:]
        x, (y, _) = layout.strides, self.strides_of()
        args = StridePhasesArgs[Ref, Known](
            source, Ref(made), SourceStrides(x.b, x.block, x.y, x.x),
            PhaseStrides(y.b, y.block, self.image.plane_stride, y.y), batch=layout.batch, blocks=self.blocks, rows=rows,
            columns=columns, phases=PlaneAxes(*self.counts), stride=PlaneAxes(*self.strides),
            seen=PlaneAxes(*self.seen),
        )  # fmt: skip
        nbytes = dims.known(dims.mul(made.elements, 2 * dtype.itemsize)) or 0
        why = f"{self.counts[0] * self.counts[1]} stride phases"
        return Step(
            split_stride_phases(dtype=dtype), flat(args=args), frozenset(("y",)), nodes, 0, 0, nbytes, why
        ), made
