"""Stride-phase decomposition (space-to-depth): a strided window as unit-stride windows (``conv.implicit_gemm``).

With strides, a tile of A holds pixels of one row only, and rows of seven pixels leave half of each tile empty. A
*phase* is every stride-th pixel along both axes: a smaller image without padding, in which windows move by one, so
that a tile continues with the pixels of the next row. Taps that are a stride apart read the same phase; three taps at
stride 2 need four phases. No pixel is copied twice.

    [batch][channels / 32][y phase][x phase][y][x][32 channels]

The source is a channel-blocked packed image of one term, padding included. Pixels that no window reads stay undefined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Storage
from sardonyx.providers.cpu.kernels.common.matrices import number
from sardonyx.providers.cpu.kernels.conv.packed_image import BLOCK, PackedImageLayout
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bf16, i64, u16
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step

SAVED, LINE = 16, 8
"""Cycles of a step of a micro-tile, at least, and of a copied line."""
NO_PHASES: dict[str, Known] = dict.fromkeys(("phase_z", "phase_y", "phase_x"), 0)
"""The phase strides of an image that is not decomposed."""

_NUMBERS = (
    "x_b", "x_block", "x_y", "x_x", "y_b", "y_block", "y_plane", "y_y", "batch", "blocks", "rows", "columns",
    "phases_y", "phases_x", "stride_y", "stride_x", "seen_y", "seen_x",
)  # fmt: skip


def _params() -> Params:
    return {"x": (bf16,), "y": (bf16,), **dict.fromkeys(_NUMBERS, i64)}


@kernel(_params)
def split_stride_phases(k: Kernel, x: Buf, y: Buf, **memory: Any) -> None:
    """y = the stride phases of x, of which windows read ``seen`` pixels along each axis."""

    def n(name: str) -> Val:
        return number(memory, name)

    phases, source, target = n("phases_y") * n("phases_x"), x.as_type(u16), y.as_type(u16)
    each = n("batch") * n("blocks") * phases
    # Threads divide the rows as the step that wrote the image did.
    with k.share(n("rows") * each) as at:
        row, plane = at // each, at % each
        phase, block, image = plane % phases, plane // phases % n("blocks"), plane // phases // n("blocks")
        phase_y, phase_x = phase // n("phases_x"), phase % n("phases_x")
        line = row * n("stride_y") + phase_y
        here = source.at(image * n("x_b") + block * n("x_block") + line * n("x_y") + phase_x * n("x_x"))
        to = target.at(image * n("y_b") + block * n("y_block") + phase * n("y_plane") + row * n("y_y"))
        many = k.min(n("columns"), (n("seen_x") - phase_x + n("stride_x") - 1) // k.max(n("stride_x"), 1))
        with k.loop(0, k.select(line < n("seen_y"), many, 0)) as i:
            to.store(i * BLOCK, here.load(i * n("stride_x") * n("x_x"), BLOCK))


@dataclass(frozen=True)
class StridePhases:
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
        channels = layout.blocks * phases[0] * phases[1] * BLOCK
        image = PackedImageLayout(1, layout.batch, channels, (1, rows, columns), (0, 0, 0), (0, 0, 0))
        return StridePhases(image, (stride_y, stride_x), phases, seen)

    @property
    def blocks(self) -> int:
        return self.image.blocks // (self.counts[0] * self.counts[1])

    def pays(self, steps: int, filters: int, size: tuple[Known, ...]) -> bool:
        """Whether fewer micro-tiles outweigh the copy."""
        high, wide = (int(d) for d in size[1:])
        (_, rows, columns) = (int(d) for d in self.image.size)
        fewer = high * -(-wide // HALF) - -(-((high - 1) * columns + wide) // HALF)
        return fewer * steps * -(-filters // PANEL) * SAVED > self.image.blocks * rows * columns * LINE

    def strides_of(self) -> dict[str, Known]:
        """As ``PackedImageLayout.strides``, a block having all its phases; and the strides between phases."""
        found = self.image.strides()
        plane = found["plane"]
        across = dims.mul(plane, self.counts[1])
        strides_by_axis: dict[str, Known] = {"phase_y": expressible(across), "phase_x": plane}
        return found | {"block": expressible(dims.mul(across, self.counts[0]))} | NO_PHASES | strides_by_axis

    def step(self, source: Ref, layout: PackedImageLayout, nodes: Any) -> tuple[Step, Storage]:
        """The step that decomposes an image whose first window begins at ``source``, and its result."""
        made, (rows, columns) = Storage("temporary", bf16, self.image.elements), self.image.size[1:]
        x, y = layout.strides(), self.strides_of()
        args: dict[str, Ref | Known | float] = {
            "x": source, "x_b": x["b"], "x_block": x["block"], "x_y": x["y"], "x_x": x["x"],
            "y": Ref(made), "y_b": y["b"], "y_block": y["block"], "y_plane": y["plane"], "y_y": y["y"],
            "batch": layout.batch, "blocks": self.blocks, "rows": rows, "columns": columns,
        }  # fmt: skip
        for name, values in (("phases", self.counts), ("stride", self.strides), ("seen", self.seen)):
            args |= {f"{name}_{axis}": v for axis, v in zip("yx", values, strict=True)}
        nbytes = dims.known(dims.mul(made.elements, 4)) or 0
        why = f"{self.counts[0] * self.counts[1]} stride phases"
        return Step(split_stride_phases(), args, frozenset(("y",)), nodes, 0, 0, nbytes, why), made
