"""What follows the sums of a strip: of some filters, at the outputs of a block of rows of a plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.common.image_block import ImageBlock
from sardonyx.providers.cpu.kernels.common.window import sizes
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Val


@dataclass(frozen=True)
class BlockEpilogue:
    k: Kernel
    epilogue: Epilogue
    memory: dict[str, Any]
    strip: ImageBlock
    at: list[Val]
    """The image and the plane."""
    first: Val
    """The first of the filters."""
    rows: Val
    """How many there are."""

    def joined(self) -> tuple[BoundEpilogue, Val]:
        """Rows of results as one, and where in it the block begins."""
        k, strip, (_, out_y, out_x) = self.k, self.strip, sizes(self.memory, "out")
        finish = BoundEpilogue(k, self.epilogue, self.memory, out_y * out_x, [*self.at, k.const(0)])
        return finish, strip.top * out_x + strip.left

    def row_by_row(self, row: Val) -> None:
        """Finish what lies in scratch, where rows of sums are ``row`` numbers apart."""
        k, strip, (*_, out_x) = self.k, self.strip, sizes(self.memory, "out")
        with k.loop(0, strip.rows) as y:
            finish = BoundEpilogue(k, self.epilogue, self.memory, out_x, [*self.at, strip.top + y])
            finish.tile(strip.sums.at(y * row), strip.sums_pitch, self.first, self.rows, strip.left, strip.columns)
