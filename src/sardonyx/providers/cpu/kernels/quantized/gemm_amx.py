"""int8 matrix products on AMX tiles, from panels of B in quads of k (``quantized.pack``).

A tile of A is 16 rows of 64 elements, loaded from the unpacked operand; a tile of B is 16 quads of 16 columns. A
micro-tile is 2 x 2 tiles of sums, 32 rows by 32 columns, and advances along k by 64. A product of at most 16 rows takes
one tile of as many rows. Where the last micro-tile lacks rows, its tiles begin earlier and some rows are computed
twice.

A step loads 4 KiB for four tile products. So B is K-blocked: a K-block of 24 KiB stays in L1 for all row panels of a
block, which prefetch the next one between them. A comes from L2, and sums are kept in scratch memory between K-blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.common.matrices import Problem
from sardonyx.providers.cpu.kernels.gemm.vector import RowBlocking
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.quantized.gemm import Int8GemmArgs, int8_args
from sardonyx.providers.cpu.kernels.quantized.pack import QUAD
from sardonyx.providers.cpu.language.amx import LANES, ROW_NBYTES, ROWS, Tiles
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i8, i32
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import Refusal

PANEL = 2 * ROWS
KC = 12 * ROW_NBYTES
"""Elements of a K-block."""
MICRO_TILE = PANEL * PANEL
BLOCK = 8
"""Row panels of a block: their sums take 32 KiB."""
LINES = 8
"""Lines of the next K-block that a step prefetches, at least."""
C, A, B = 0, 4, 6
"""The first tile of the sums, of A and of B."""


def supports(p: Problem, analysis: Analysis) -> Refusal | None:
    if p.b.dtype is not i8:
        return Refusal("not of 8-bit integers")
    return None if analysis.isa.amx else Refusal(f"no tiles on {analysis.isa.name}")


def steps(p: Problem, analysis: Analysis) -> list[Step]:
    epilogue = Epilogue.of(p)
    before, args = int8_args(p, analysis, PANEL)
    spec = gemm_int8_amx(a_dtype=p.a.dtype, epilogue=epilogue)
    nbytes = dims.known(dims.mul(p.n, p.k)) or 0
    scratch = BLOCK * MICRO_TILE * 4
    return [
        *before,
        Step(spec, flat(args=args), epilogue.writes, p.nodes, scratch, p.flops, nbytes, "2 x 2 AMX tiles, int8"),
    ]


def _params(a_dtype: DType, epilogue: Epilogue) -> Params:
    return {"args": Int8GemmArgs.declared(a_dtype, epilogue)}


@kernel(_params)
def gemm_int8_amx(k: Kernel, args: Int8GemmArgs[Buf, Val], *, a_dtype: DType, epilogue: Epilogue) -> None:
    """A batch of products. Rows of ``a`` are contiguous and have ``depth`` elements, a multiple of 64."""
    m, n, depth = args.m, args.n, args.depth
    tiles, is_short = Tiles(k), m <= ROWS
    tiles.configure(k.select(is_short, k.max(m, 1), ROWS), short=MicroTile.SHORT)
    panels = (n + (PANEL - 1)) // PANEL
    sums = k.scratch(i32)
    batch_size = args.batch.count(k)
    grid = RowBlocking(k, m, panels, batch_size, PANEL, BLOCK, depth, (depth + QUAD) * PANEL, args.row_block_nbytes)
    with grid.share() as (index, panel, top, bottom):
        batch = args.batch.indices(index)
        a, a_row = args.a.at(batch), args.a.row
        b = args.b.at(batch).at((panel * (depth + QUAD) + QUAD) * PANEL)
        with k.loop(0, k.max(depth, 1), KC) as start:
            length = k.min(depth - start, KC)
            here, lines = b.at(start * PANEL), ceil_div(k.const(PANEL), k.max(bottom - top, 1))
            with k.loop(top, bottom) as at:
                micro_tile = MicroTile(tiles, sums.at((at - top) * MICRO_TILE), start > 0, a_dtype)
                rows = [a.at(first_row(k, at * PANEL + r, m) * a_row + start) for r in (0, ROWS)]
                with k.either(is_short) as (short, whole):
                    for branch, count in ((short, 1), (whole, 2)):
                        with branch:
                            ahead = here.at(KC * PANEL + (at - top) * lines * length)
                            micro_tile.add(rows[:count], a_row, here, length, ahead, lines)
        finish, columns = BoundEpilogue(k, epilogue, args.epilogue, n, batch), k.min(n - panel * PANEL, PANEL)
        with k.loop(top * PANEL, k.min(m, bottom * PANEL), ROWS) as row:
            found = sums.at((row - top * PANEL + row - first_row(k, row, m)) * PANEL)
            finish.tile(found, PANEL, row, k.min(m - row, ROWS), panel * PANEL, columns, width=PANEL, at_once=True)
    tiles.release()


def first_row(k: Kernel, row: Val, m: Val) -> Val:
    """The first row of the tile that holds ``row``: a last tile begins early enough to be full, if m allows it."""
    return k.min(row, k.max(m - ROWS, 0))


class MicroTile:
    """A micro-tile of 32 x 32 sums, which are kept in scratch memory between K-blocks."""

    SHORT = (C, C + 1, A)
    """The tile registers of a micro-tile of at most 16 rows."""

    def __init__(self, tiles: Tiles, sums: Buf, accumulates: Val, a_dtype: DType, b_dtype: DType = i8) -> None:
        self.tiles, self.sums, self.accumulates = tiles, sums, accumulates
        self.signs = a_dtype, b_dtype

    def add(
        self,
        a: list[Buf],
        a_row: Val,
        b: Buf,
        length: Val,
        ahead: Buf | None = None,
        lines: Val | None = None,
        between: Callable[[], None] | None = None,
    ) -> None:
        """Add the products of one or two tiles of rows with two of columns, along ``length`` elements.

        A step prefetches ``lines`` lines from ``ahead`` on, and emits what ``between`` does.
        """
        k, tiles = self.tiles.k, self.tiles
        places = [(C + 2 * r + c, r, c) for r in range(len(a)) for c in range(2)]
        with k.either(self.accumulates) as (later, first):
            with later:
                for t, r, c in places:
                    tiles.load(t, self._at(r, c), PANEL * 4)
            with first:
                for t, _, _ in places:
                    tiles.zero(t)
        with k.loop(0, length, ROW_NBYTES) as p:
            if ahead is not None and lines is not None:
                near = ahead.at(p * lines)
                for i in range(LINES):
                    near.prefetch(i * ROW_NBYTES)
                with k.loop(LINES, lines) as line:
                    near.prefetch(line * ROW_NBYTES)
            for c in range(2):
                tiles.load(B + c, b.at(p * PANEL + c * LANES * QUAD), PANEL * QUAD)
            for r, row in enumerate(a):
                tiles.load(A + r, row.at(p), a_row)
                for c in range(2):
                    tiles.dot_bytes(C + 2 * r + c, A + r, B + c, *self.signs)
            if between is not None:
                between()
        for t, r, c in places:
            tiles.store(t, self._at(r, c), PANEL * 4)

    def _at(self, r: int, c: int) -> Buf:
        return self.sums.at(r * ROWS * PANEL + c * LANES)
