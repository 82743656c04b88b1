"""The epilogue of an image block: some filters, at the outputs of a block of rows of one plane."""

from __future__ import annotations

from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.image_block import ImageBlock
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val
from sardonyx.records import Record


class BlockEpilogue(Record):
    """Applies an epilogue to the accumulators of an image block, which lie in its scratch memory."""

    k: Kernel
    epilogue: Epilogue
    operands: EpilogueArgs[Buf, Val]
    block: ImageBlock
    at: list[Val]
    """The image and the plane, by number."""
    first: Val
    """The first filter."""
    rows: Val
    """The number of filters."""

    def as_one_row(self) -> tuple[BoundEpilogue, Val]:
        """The epilogue with all rows of a plane as a single row, and the block's first column in that row."""
        k, block, (_, out_y, out_x) = self.k, self.block, self.block.window.out
        finish = BoundEpilogue(k, self.epilogue, self.operands, out_y * out_x, [*self.at, k.const(0)])
        return finish, block.top * out_x + block.left

    def row_by_row(self, row: Val) -> None:
        """Finish the sums in scratch memory, row of outputs by row; these are ``row`` elements apart."""
        k, block, (*_, out_x) = self.k, self.block, self.block.window.out
        with k.loop(0, block.rows) as y:
            finish = BoundEpilogue(k, self.epilogue, self.operands, out_x, [*self.at, block.top + y])
            finish.tile(block.sums.at(y * row), block.sums_pitch, self.first, self.rows, block.left, block.columns)
