"""One int8 matrix product on AMX tiles, with a software-pipelined epilogue.

The micro-tile, its operands and the K-blocks are those of ``gemm_amx``. Macro-tiles and their order are those of bf16
products (``gemm.macro_tile``): each step along k also finishes a row or a few of the macro-tile before. What follows
quantized sums takes about as long as the products, and other units of the core.
"""

from __future__ import annotations

from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue, EpilogueArgs, operands_of
from sardonyx.providers.cpu.kernels.common.matrices import MatrixArgs, Problem
from sardonyx.providers.cpu.kernels.gemm.macro_tile import Blocking, MacroTiles, PipelinedEpilogue
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import TileEpilogue
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.quantized import gemm_amx
from sardonyx.providers.cpu.kernels.quantized.gemm_amx import KC, PANEL, MicroTile, first_row
from sardonyx.providers.cpu.kernels.quantized.pack import QUAD, depth_of, packed_b, padded_a
from sardonyx.providers.cpu.language.amx import ROW_NBYTES, ROWS, Tiles
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i8, i32, i64
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal

PACES = (1, 2, 4, 8, 16)
"""Rows that a step finishes, none of which cross from one tile to the next."""


class Int8PipelinedArgs(Arguments[M, N]):
    """The parameters of ``gemm_int8_pipelined``."""

    is_inline: ClassVar[bool] = True
    a: MatrixArgs[M, N]
    b: M
    m: N
    n: N
    depth: N
    macro_rows: N
    macro_columns: N
    """Row panels and column panels of a macro-tile, at most."""
    epilogue: EpilogueArgs[M, N]


def supports(p: Problem, analysis: Analysis) -> Refusal | None:
    return gemm_amx.supports(p, analysis) or (Refusal("a batch of products") if p.batch else None)


def steps(p: Problem, analysis: Analysis) -> list[Step]:
    """The steps of a product without batch axes."""
    isa, epilogue, blocking = analysis.isa, Epilogue.of(p), Blocking.of(1, p.k, analysis.isa)
    before_a, a = padded_a(p, isa)
    before_b, b = packed_b(p, PANEL, isa)
    args = Int8PipelinedArgs[Ref, Known](
        a.operand, Ref(b.storage, b.offset), p.m, p.n, depth_of(p.k, isa), blocking.rows, blocking.columns,
        operands_of(p.extra, p.outputs),
    )  # fmt: skip
    nbytes = dims.known(dims.mul(p.n, p.k)) or 0
    spec = gemm_int8_pipelined(a_dtype=p.a.dtype, epilogue=epilogue)
    scratch, why = blocking.scratch_nbytes(0), "2 x 2 AMX tiles, int8, pipelined epilogue"
    return [*before_a, *before_b, Step(spec, flat(args=args), epilogue.writes, p.nodes, scratch, p.flops, nbytes, why)]


class _Epilogue(PipelinedEpilogue):
    """Tiles at the end of the matrix begin earlier: their rows lie that much further on in scratch memory."""

    def drain(self) -> None:
        with self.k.loop_while(self.is_open):
            self._next(self.k.const(ROWS))

    def _sums(self, row: Val) -> Buf:
        start = row - row % ROWS
        return self.scratch.at(self.sums.get() + (start - first_row(self.k, start, self.m)) * PANEL)


def _params(a_dtype: DType, epilogue: Epilogue) -> Params:
    matrix = MatrixArgs.declared(a_dtype, 0)
    return {"args": Int8PipelinedArgs(matrix, Memory(i8), i64, i64, i64, i64, i64, epilogue.declared)}


@kernel(_params)
def gemm_int8_pipelined(k: Kernel, args: Int8PipelinedArgs[Buf, Val], *, a_dtype: DType, epilogue: Epilogue) -> None:
    """Rows of ``a`` are contiguous and have ``depth`` elements, a multiple of 64."""
    m, n, depth = args.m, args.n, args.depth
    tiles, is_short = Tiles(k), m <= ROWS
    tiles.configure(k.select(is_short, k.max(m, 1), ROWS), short=MicroTile.SHORT)
    scratch = k.scratch(i32)
    done = _Epilogue(k, scratch, m, n)
    done.finish = TileEpilogue(k, epilogue, args.epilogue, n, (), 0)
    macros = MacroTiles(k, done, ceil_div(m, PANEL), ceil_div(n, PANEL), args.macro_rows, args.macro_columns, spare=0)
    pace = k.const(PACES[-1])
    for rows in reversed(PACES):
        pace = k.select(depth >= PANEL // rows * ROW_NBYTES, rows, pace)
    panel_nbytes = (depth + QUAD) * PANEL
    with macros.each() as macro, k.loop(0, k.max(depth, 1), KC) as start, k.loop(0, macro.columns) as c:
        length, lines = k.min(depth - start, KC), ceil_div(k.const(PANEL), k.max(macro.rows, 1))
        b = args.b.at((macro.column + c) * panel_nbytes + QUAD * PANEL + start * PANEL)
        following = k.select(args.macro_columns > 1, panel_nbytes, KC * PANEL)
        with k.loop(0, macro.rows) as r:
            micro_tile = MicroTile(tiles, scratch.at(macro.slot(r, c)), start > 0, a_dtype)
            top = (macro.row + r) * PANEL
            tops = [args.a.memory.at(first_row(k, top + half, m) * args.a.row + start) for half in (0, ROWS)]
            ahead = b.at(following + r * lines * length)
            with k.either(is_short) as (short, whole):
                for branch, count in ((short, 1), (whole, 2)):
                    with branch:
                        micro_tile.add(tops[:count], args.a.row, b, length, ahead, lines, lambda: done.advance(pace))
    tiles.release()
