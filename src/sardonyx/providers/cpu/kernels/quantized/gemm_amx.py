"""Matrix products of bytes on tiles, from a right operand in panels of fours (``quantized.pack``): tiles as they lie.

A tile of A is 16 rows of 64 elements where they lie in memory; one of B is 16 fours of 16 columns. The innermost loop
holds 2 x 2 tiles of sums, 32 rows by 32 columns, and walks along k by steps of 64. Up to 16 rows take one tile, of as
many rows as there are. Where the last 32 rows are not all there, tiles begin earlier and some rows are summed twice.

A step reads 4 KiB for four products of 16 cycles. So B is taken in runs of ``RUN`` steps, 24 KiB, which stay in L1
while the row panels of a block pass by; A comes from L2, and sums wait in scratch between runs.
"""

from __future__ import annotations

from typing import Any

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.common.matrices import Problem, batch_count, batch_indices, matrix_at, number
from sardonyx.providers.cpu.kernels.gemm.vector import RowBlocking
from sardonyx.providers.cpu.kernels.quantized.gemm import int8_args, int8_params
from sardonyx.providers.cpu.kernels.quantized.pack import QUAD
from sardonyx.providers.cpu.language.amx import LANES, ROW_NBYTES, ROWS, Tiles
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i8, i32, i64
from sardonyx.providers.cpu.program.steps import Step, Target

PANEL = 2 * ROWS
RUN = 12
MICRO_TILE = PANEL * PANEL
BLOCK = 8
"""Row panels of a block: their sums take 32 KiB."""
C, A, B = 0, 4, 6
"""The first tile of the sums, of A and of B."""


def steps(p: Problem, target: Target) -> list[Step]:
    isa, epilogue = target.isa, Epilogue.of(p)
    before, args = int8_args(p, target, PANEL)
    spec = gemm_int8_amx(a_dtype=p.a.dtype, epilogue=epilogue)
    args |= {"row_block_nbytes": isa.l2_nbytes // 2, **epilogue.args(p)}
    nbytes = dims.known(dims.mul(p.n, p.k)) or 0
    scratch = BLOCK * MICRO_TILE * 4
    return [*before, Step(spec, args, epilogue.writes, p.nodes, scratch, p.flops, nbytes, "2 x 2 tiles of bytes")]


def _params(a_dtype: DType, epilogue: Epilogue) -> Params:
    return {**int8_params(a_dtype, epilogue.batch_axes), "row_block_nbytes": i64, **epilogue.params}


@kernel(_params)
def gemm_int8_amx(
    k: Kernel, m: Val, n: Val, depth: Val, row_block_nbytes: Val, *, a_dtype: DType, epilogue: Epilogue, **memory: Any
) -> None:
    """The products of a batch. ``a`` has unit stride along k, and depth elements there, whole steps."""
    tiles, is_short = Tiles(k), m <= ROWS
    tiles.configure(k.select(is_short, k.max(m, 1), ROWS), short=MicroTile.SHORT)
    axes = epilogue.batch_axes
    panels = (n + (PANEL - 1)) // PANEL
    sums = k.scratch(i32)
    batch_size = batch_count(k, memory, axes)
    bands = RowBlocking(k, m, panels, batch_size, PANEL, BLOCK, depth, (depth + QUAD) * PANEL, row_block_nbytes)
    with bands.share() as (index, panel, top, bottom):
        batch = batch_indices(k, memory, index, axes)
        a, a_row = matrix_at(memory, "a", batch), number(memory, "a_row")
        b = matrix_at(memory, "b", batch).at((panel * (depth + QUAD) + QUAD) * PANEL)
        with k.loop(0, k.max(depth, 1), RUN * ROW_NBYTES) as start:
            length = k.min(depth - start, RUN * ROW_NBYTES)
            with k.loop(top, bottom) as at:
                micro_tile = MicroTile(tiles, sums.at((at - top) * MICRO_TILE), start > 0, a_dtype)
                rows = [a.at(first_row(k, at * PANEL + r, m) * a_row + start) for r in (0, ROWS)]
                with k.either(is_short) as (short, whole):
                    for branch, count in ((short, 1), (whole, 2)):
                        with branch:
                            micro_tile.add(rows[:count], a_row, b.at(start * PANEL), length)
        finish, columns = BoundEpilogue(k, epilogue, memory, n, batch), k.min(n - panel * PANEL, PANEL)
        with k.loop(top * PANEL, k.min(m, bottom * PANEL), ROWS) as row:
            found = sums.at((row - top * PANEL + row - first_row(k, row, m)) * PANEL)
            finish.tile(found, PANEL, row, k.min(m - row, ROWS), panel * PANEL, columns, width=PANEL, at_once=True)
    tiles.release()


def first_row(k: Kernel, row: Val, m: Val) -> Val:
    """Where a tile begins that has this row: early enough to end within the rows that there are, if these fill one."""
    return k.min(row, k.max(m - ROWS, 0))


class MicroTile:
    """Sums of 32 x 32, in scratch before and after a run."""

    SHORT = (C, C + 1, A)
    """The tiles of a square that has at most 16 rows."""

    def __init__(self, tiles: Tiles, sums: Buf, goes_on: Val, a_dtype: DType, b_dtype: DType = i8) -> None:
        self.tiles, self.sums, self.goes_on = tiles, sums, goes_on
        self.signs = a_dtype, b_dtype

    def add(self, a: list[Buf], a_row: Val, b: Buf, length: Val) -> None:
        """Add the products of one or two tiles of rows with two of columns, along ``length`` elements."""
        k, tiles = self.tiles.k, self.tiles
        places = [(C + 2 * r + c, r, c) for r in range(len(a)) for c in range(2)]
        with k.either(self.goes_on) as (later, first):
            with later:
                for t, r, c in places:
                    tiles.load(t, self._at(r, c), PANEL * 4)
            with first:
                for t, _, _ in places:
                    tiles.zero(t)
        with k.loop(0, length, ROW_NBYTES) as p:
            for c in range(2):
                tiles.load(B + c, b.at(p * PANEL + c * LANES * QUAD), PANEL * QUAD)
            for r, row in enumerate(a):
                tiles.load(A + r, row.at(p), a_row)
                for c in range(2):
                    tiles.dot_bytes(C + 2 * r + c, A + r, B + c, *self.signs)
        for t, r, c in places:
            tiles.store(t, self._at(r, c), PANEL * 4)

    def _at(self, r: int, c: int) -> Buf:
        return self.sums.at(r * ROWS * PANEL + c * LANES)
