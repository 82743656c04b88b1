"""Matrix products of int8 slices on AMX: f32 results from exact integer sums.

An int8 tile product covers 64 numbers along k in the time in which a bf16 one covers 32. So the eight products of
slices (``split.int8_micro_kernel``) take two thirds of the time of six products of bf16 terms (``gemm.amx``), and a
number of B takes 3 bytes instead of 6.

**Order of sums.** The sums of a K-block are integers, exact in any order. They are combined, multiplied by both scales
and added to the f32 sums, one K-block after the other. Results do not depend on rows, threads or blocking.

Blocking and the pipelined epilogue are those of ``gemm.amx`` (``gemm.macro_tile``).
"""

from __future__ import annotations

from typing import ClassVar

from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue, EpilogueArgs, operands_of
from sardonyx.providers.cpu.kernels.common.matrices import MatrixArgs, Problem
from sardonyx.providers.cpu.kernels.gemm import amx
from sardonyx.providers.cpu.kernels.gemm.amx import with_packed_panels
from sardonyx.providers.cpu.kernels.gemm.f32_fallback import (
    SCRATCH_NBYTES,
    F32Fallback,
    ProductOperands,
    any_flag_set,
)
from sardonyx.providers.cpu.kernels.gemm.macro_tile import MICRO_TILE, Blocking, MacroTiles, PipelinedEpilogue
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import TileEpilogue, rows_to_fetch
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL, FlagsArgs
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import SUMS, TILES, A
from sardonyx.providers.cpu.kernels.split.deferred_accumulation import rows_per_step
from sardonyx.providers.cpu.kernels.split.int8_micro_kernel import (
    PRODUCTS,
    ROUNDS,
    SIDES,
    SliceAccumulator,
    level_sums,
    multiply,
    multiply_fourth,
)
from sardonyx.providers.cpu.kernels.split.int8_slices import (
    SLICES,
    STEP,
    TILE,
    SlicesArgs,
    block_steps,
    decode_panel,
    scales_of,
    sliced_constant,
    sliced_rows,
    slices_key,
)
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i8, i32, i64
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal

TERMS = 3
"""bf16 terms of results that are packed for other products."""
SPARE = 1
"""Micro-tiles of scratch memory for the four level sums of 16 x 16 results."""
LEAST_DEPTH = 96
"""Numbers of a sum that fill three quarters of a step; shorter ones fill more of bf16 terms, in steps of 32."""


def supports(p: Problem, analysis: Analysis) -> Refusal | None:
    if found := amx.supports(p, analysis):
        return found
    if amx.terms(p, analysis) != TERMS or not analysis.isa.amx:
        return Refusal(f"the precision {analysis.precision} takes fewer terms")
    if p.weight is None or p.batch:
        return Refusal("B is not constant, or the products are a batch")
    if p.a.dtype is not f32 or p.b.dtype is not f32 or p.a.column != 1:
        return Refusal("of other types than f32, or rows of A are not contiguous")
    return Refusal("slices cannot represent a weight") if slices_key(p.weight) in analysis.unrepresentable else None


def pays(p: Problem, analysis: Analysis) -> Refusal | None:
    if amx.is_in_panels(p, analysis):
        return Refusal("rows may be few: B stays in panels, which one row reads too")
    return Refusal(f"sums of {p.k} products") if int(p.k) < LEAST_DEPTH else amx.pays(p, analysis)


def steps(p: Problem, analysis: Analysis) -> list[Step]:
    made, p = [y.storage for y in p.outputs], with_packed_panels(p, analysis)
    epilogue, blocking = Epilogue.of(p), Blocking.of(SLICES, p.k, analysis.isa)
    before, rows = sliced_rows(p, analysis)
    b = sliced_constant(p, analysis.isa)
    args = SliceGemmArgs[Ref, Known](
        rows.operand, Ref(b), p.a.operand, p.m, p.n, p.k, blocking.rows, blocking.columns, block_steps(int(p.k)),
        2 * rows.k_blocks, rows.flags.elements, operands_of(p.extra, p.outputs),
    )  # fmt: skip
    why = f"{analysis.precision}: {PRODUCTS} products of {SLICES} slices on tiles"
    why += "".join(f"; {analysis.packed_operands[s].description}" for s in made if s in analysis.packed_operands)
    scratch = SCRATCH_NBYTES + blocking.scratch_nbytes(SPARE)
    spec = gemm_int8_slices(epilogue=epilogue)
    return [*before, Step(spec, flat(args=args), epilogue.writes, p.nodes, scratch, p.flops, b.elements, why)]


class SliceGemmArgs(Arguments[M, N]):
    """The parameters of ``gemm_int8_slices``."""

    is_inline: ClassVar[bool] = True
    a: SlicesArgs[M, N]
    b: M
    a_source: MatrixArgs[M, N]
    m: N
    n: N
    depth: N
    macro_rows: N
    macro_columns: N
    """Row panels and column panels of a macro-tile, at most."""
    k_block: N
    a_flags_panel: N
    """Flags of a row panel."""
    a_flags_count: N
    epilogue: EpilogueArgs[M, N]


def _params(epilogue: Epilogue) -> Params:
    sizes = i64, i64, i64, i64, i64, i64, i64, i64
    source = MatrixArgs.declared(f32, 0)
    return {"args": SliceGemmArgs(SlicesArgs.declared(), Memory(i8), source, *sizes, epilogue.declared)}


@kernel(_params)
def gemm_int8_slices(k: Kernel, args: SliceGemmArgs[Buf, Val], *, epilogue: Epilogue) -> None:
    """One product of A in slices with a constant."""
    tiles, m, n, depth, k_block = Tiles(k), args.m, args.n, args.depth, args.k_block
    tiles.configure(k.select(m <= HALF, k.max(m, 1), HALF), short=(*SUMS, A), count=TILES)
    row_panels, column_panels, steps = ceil_div(m, PANEL), ceil_div(n, PANEL), ceil_div(depth, STEP)
    is_odd, scratch = any_flag_set(k, [(args.a.flags, args.a_flags_count)]), k.scratch(f32, SCRATCH_NBYTES)
    done = PipelinedEpilogue(k, scratch, m, n)
    done.finish = TileEpilogue(k, epilogue, args.epilogue, n, (), TERMS)
    product = _Product(k, tiles, scratch, args, steps)
    fetched_rows = rows_to_fetch(k, m, n, product.k_blocks)
    flags = FlagsArgs(args.a.flags, args.a_flags_panel, args.a_flags_count, ())
    operands = ProductOperands(args.a.memory, flags, args.b, None, args.a_source, None)
    f32_fallback = _SlicedFallback(
        k, operands, m, n, depth, steps, TERMS, False, k.scratch(f32), k.var(-1), STEP, k_block
    )
    macros = MacroTiles(k, done, row_panels, column_panels, args.macro_rows, args.macro_columns, spare=SPARE)
    with macros.each() as macro:
        row, rows, column = macro.row, macro.rows, macro.column
        stride = k.select(args.macro_columns > 1, steps, k_block)
        lines = k.max(ceil_div(k.const(SLICES * 2 * TILE // LINE_NBYTES), k.max(rows * 4, 1)), 1)
        with k.loop(0, k.max(steps, 1), k_block) as step, k.loop(0, macro.columns) as c, k.loop(0, rows) as r:
            slot = macro.slot(r, c)
            is_f32 = k.var(0)
            with k.when(is_odd, likely=False):
                is_f32.set(k.cast(f32_fallback.is_block_flagged(row + r, step), i64))
                with k.when(is_f32.get().ne(0)):
                    product.accumulator.drain()
                    f32_fallback.multiply(scratch.at(slot), row + r, column + c, step, k.min(k_block, steps - step))
            with k.loop(0, k.min(ceil_div(m - (row + r) * PANEL, HALF), 2)) as half:
                done.finish.fetch_some(row + r, half, column + c, m, step // k_block, fetched_rows)
                with k.when(is_f32.get().eq(0), likely=True), k.loop(0, SIDES) as side:
                    product.add((row + r) * 2 + half, column + c, side, step, slot + half * (MICRO_TILE // 2), done,
                                stride * (SLICES * 2 * TILE), (r * 2 + half) * 2 + side, lines)  # fmt: skip
            with k.when(step + k_block >= steps):
                done.finish.begin(row + r, column + c)
        product.accumulator.drain()
    tiles.release()


class _Product:
    """The product inside the kernel."""

    def __init__(self, k: Kernel, tiles: Tiles, scratch: Buf, args: SliceGemmArgs[Buf, Val], steps: Val) -> None:
        self.k, self.tiles, self.args, self.steps, self.k_block = k, tiles, args, steps, args.k_block
        self.row_tiles, self.k_blocks = ceil_div(args.m, HALF), ceil_div(steps, args.k_block)
        scales = scales_of(args.b, ceil_div(args.n, PANEL), steps)
        self.accumulator = SliceAccumulator(
            k, scratch.as_type(i32), scratch, lambda at, r: args.a.scales.load(at + r), scales
        )
        self.pace = k.const(HALF)  # rows that a step finishes, so that the steps of a macro-tile finish the one before
        for count, rows in ((1, 4), (2, 2), (4, 1)):
            self.pace = k.select(steps >= count, rows, self.pace)

    def add(
        self,
        tile: Val,
        column: Val,
        side: Val,
        step: Val,
        slot: Val,
        done: PipelinedEpilogue,
        stride: Val,
        number_of_side: Val,
        lines: Val,
    ) -> None:
        """Add a K-block to the sums of 16 rows and one side of 32 columns.

        The next K-block of B is ``stride`` bytes further. Each side of each half micro-tile, numbered by
        ``number_of_side``, prefetches ``lines`` lines of it in each step.
        """
        k, accumulator = self.k, self.accumulator
        count, number = k.min(self.k_block, self.steps - step), step // self.k_block
        b = self.args.b.at((column * self.steps + step) * (SLICES * 2 * TILE))
        a = self.args.a.memory.at((tile * self.steps + step) * (SLICES * TILE))
        rest = self.args.a.memory.at((self.row_tiles * self.steps * SLICES + tile * self.steps + step) * TILE)
        has_fourth, columns = self.args.a.fourth.load(tile * self.k_blocks + number).ne(0), b.at(side * TILE)
        pace = rows_per_step(k, count)
        for level, products in ROUNDS:
            with level_sums(self.tiles, accumulator.levels, level):
                with k.loop(0, count) as s:
                    slices = [a.at((s * SLICES + index) * TILE) for index in range(SLICES)]
                    multiply(self.tiles, slices, columns.at(s * (SLICES * 2 * TILE)), products)
                    if level:
                        accumulator.advance(pace)
                        ahead = b.at(stride + (number_of_side * count + s) * (lines * LINE_NBYTES))
                        with k.loop(0, lines) as i:
                            ahead.prefetch(i * LINE_NBYTES, locality=2)
                    else:
                        done.advance(self.pace)
                if level:
                    with k.when(has_fourth), k.loop(0, count) as s:
                        multiply_fourth(self.tiles, rest.at(s * TILE), columns.at(s * (SLICES * 2 * TILE)))
        scales = (column * self.k_blocks + number) * PANEL + side * HALF
        accumulator.start(slot + side * HALF, (tile * self.k_blocks + number) * HALF, scales, step.eq(0))


class _SlicedFallback(F32Fallback):
    """The fallback of single K-blocks."""

    k_block: Val

    def is_block_flagged(self, row: Val, step: Val) -> Val:
        """Whether a K-block of one of both tiles of a row panel is flagged."""
        k, flags = self.k, self.at.a_flags
        assert flags is not None
        tiles = [k.min(row * 2 + half, ceil_div(self.m, HALF) - 1) for half in range(2)]
        k_blocks = ceil_div(self.steps, self.k_block)
        upper, lower = (flags.memory.load(tile * k_blocks + step // self.k_block) for tile in tiles)
        return (upper | lower).ne(0)

    def _decode_columns(self, to: Buf, column: Val, step: Val, count: Val, length: Val) -> None:
        k, b, panels = self.k, self.at.b, ceil_div(self.n, PANEL)
        number = column * ceil_div(self.steps, self.k_block) + step // self.k_block
        scales = scales_of(b, panels, self.steps).at(number * PANEL)
        decode_panel(k, b.at((column * self.steps + step) * (SLICES * 2 * TILE)), scales, count, to)
