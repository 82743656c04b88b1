"""Matrix products of int8 slices on AMX: f32 results from exact integer sums.

An int8 tile product covers 64 numbers along k in the time in which a bf16 one covers 32. So the eight products of
slices (``split.int8_micro_kernel``) take two thirds of the time of six products of bf16 terms (``gemm.amx``), and a
number of B takes 3 bytes instead of 6.

**Order of sums.** The sums of a K-block are integers, exact in any order. They are combined, multiplied by both scales
and added to the f32 sums, one K-block after the other. Results do not depend on rows, threads or blocking.

Blocking and the pipelined epilogue are those of ``gemm.amx`` (``gemm.macro_tile``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.common.matrices import Problem, matrix_params
from sardonyx.providers.cpu.kernels.gemm import amx
from sardonyx.providers.cpu.kernels.gemm.amx import with_packed_panels
from sardonyx.providers.cpu.kernels.gemm.f32_fallback import F32Fallback, any_flag_set
from sardonyx.providers.cpu.kernels.gemm.macro_tile import MICRO_TILE, Blocking, MacroTiles, PipelinedEpilogue
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import TileEpilogue, rows_to_fetch
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL
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
    block_steps,
    load_column,
    scales_of,
    sliced_constant,
    sliced_rows,
    slices_key,
)
from sardonyx.providers.cpu.language.amx import Tiles
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
    args = {
        **rows.args(), **p.a.args("a_source"), "b": Ref(b), "m": p.m, "n": p.n, "depth": p.k,
        "macro_rows": blocking.rows, "macro_columns": blocking.columns, "k_block": block_steps(int(p.k)),
        **epilogue.args(p),
    }  # fmt: skip
    why = f"{analysis.precision}: {PRODUCTS} products of {SLICES} slices on tiles"
    why += "".join(f"; {analysis.packed_operands[s].description}" for s in made if s in analysis.packed_operands)
    scratch = blocking.scratch_nbytes(SPARE)
    spec = gemm_int8_slices(epilogue=epilogue)
    return [*before, Step(spec, args, epilogue.writes, p.nodes, scratch, p.flops, b.elements, why)]


def _params(epilogue: Epilogue) -> Params:
    numbers = ("m", "n", "depth", "macro_rows", "macro_columns", "k_block", "a_flags_panel", "a_flags_count")
    memory = {"a": (i8,), "a_scales": (f32,), "a_fourth": (i32,), "a_flags": (i32,), "b": (i8,)}
    return {**memory, **matrix_params("a_source", f32, 0), **dict.fromkeys(numbers, i64), **epilogue.params}


@kernel(_params)
def gemm_int8_slices(
    k: Kernel, m: Val, n: Val, depth: Val, macro_rows: Val, macro_columns: Val, k_block: Val,
    *, epilogue: Epilogue, **memory: Any,
) -> None:  # fmt: skip
    """One product of A in slices with a constant."""
    tiles = Tiles(k)
    tiles.configure(k.select(m <= HALF, k.max(m, 1), HALF), short=(*SUMS, A), count=TILES)
    row_panels, column_panels, steps = ceil_div(m, PANEL), ceil_div(n, PANEL), ceil_div(depth, STEP)
    is_odd, scratch = any_flag_set(k, memory), k.scratch(f32)
    done = PipelinedEpilogue(k, scratch, m, n)
    done.finish = TileEpilogue(k, epilogue, memory, n, (), TERMS)
    product = _Product(k, tiles, scratch, memory, m, n, steps, k_block)
    fetched_rows = rows_to_fetch(k, m, n, product.k_blocks)
    at_buffers = {name: memory[name] for name in memory if isinstance(memory[name], Buf)}
    f32_fallback = _SlicedFallback(k, memory, at_buffers, m, n, depth, steps, TERMS, False, k_block)
    macros = MacroTiles(k, done, row_panels, column_panels, macro_rows, macro_columns, spare=SPARE)
    with macros.each() as macro:
        row, rows, column = macro.row, macro.rows, macro.column
        stride = k.select(macro_columns > 1, steps, k_block)
        lines = k.max(ceil_div(k.const(SLICES * 2 * TILE // LINE_NBYTES), k.max(rows * 4, 1)), 1)
        with k.loop(0, k.max(steps, 1), k_block) as step, k.loop(0, macro.columns) as c, k.loop(0, rows) as r:
            slot = macro.slot(r, c)
            with k.loop(0, k.min(ceil_div(m - (row + r) * PANEL, HALF), 2)) as half:
                done.finish.fetch_some(row + r, half, column + c, m, step // k_block, fetched_rows)
                with k.loop(0, SIDES) as side:
                    product.add((row + r) * 2 + half, column + c, side, step, slot + half * (MICRO_TILE // 2), done,
                                stride * (SLICES * 2 * TILE), (r * 2 + half) * 2 + side, lines)  # fmt: skip
            with k.when(step + k_block >= steps):
                done.finish.begin(row + r, column + c)
                with k.when(is_odd, likely=False):
                    product.accumulator.drain()
                    f32_fallback.recompute_flagged(scratch.at(slot), row + r, column + c)
        product.accumulator.drain()
    tiles.release()


class _Product:
    """The product inside the kernel."""

    def __init__(
        self, k: Kernel, tiles: Tiles, scratch: Buf, memory: Any, m: Val, n: Val, steps: Val, k_block: Val
    ) -> None:
        self.k, self.tiles, self.memory, self.steps, self.k_block = k, tiles, memory, steps, k_block
        self.row_tiles, self.k_blocks = ceil_div(m, HALF), ceil_div(steps, k_block)
        scales = scales_of(memory["b"], ceil_div(n, PANEL), steps)
        self.accumulator = SliceAccumulator(
            k, scratch.as_type(i32), scratch, lambda at, r: memory["a_scales"].load(at + r), scales
        )
        self.pace = k.const(HALF)  # rows that a step finishes, so that the steps of a macro-tile finish the one before
        for many, rows in ((1, 4), (2, 2), (4, 1)):
            self.pace = k.select(steps >= many, rows, self.pace)

    def add(
        self,
        tile: Val,
        column: Val,
        side: Val,
        step: Val,
        slot: Val,
        done: PipelinedEpilogue,
        stride: Val,
        turn: Val,
        lines: Val,
    ) -> None:
        """Add a K-block to the sums of 16 rows and one side of 32 columns.

        The next K-block of B is ``stride`` bytes further. Each side of each half micro-tile, numbered by
        ``turn``, prefetches ``lines`` lines of it in each step.
        """
        k, accumulator = self.k, self.accumulator
        many, number = k.min(self.k_block, self.steps - step), step // self.k_block
        b = self.memory["b"].at((column * self.steps + step) * (SLICES * 2 * TILE))
        a = self.memory["a"].at((tile * self.steps + step) * (SLICES * TILE))
        rest = self.memory["a"].at((self.row_tiles * self.steps * SLICES + tile * self.steps + step) * TILE)
        has_fourth, columns = self.memory["a_fourth"].load(tile * self.k_blocks + number).ne(0), b.at(side * TILE)
        pace = rows_per_step(k, many)
        for level, products in ROUNDS:
            with level_sums(self.tiles, accumulator.levels, level):
                with k.loop(0, many) as s:
                    slices = [a.at((s * SLICES + index) * TILE) for index in range(SLICES)]
                    multiply(self.tiles, slices, columns.at(s * (SLICES * 2 * TILE)), products)
                    if level:
                        accumulator.advance(pace)
                        ahead = b.at(stride + (turn * many + s) * (lines * LINE_NBYTES))
                        with k.loop(0, lines) as i:
                            ahead.prefetch(i * LINE_NBYTES, locality=2)
                    else:
                        done.advance(self.pace)
                if level:
                    with k.when(has_fourth), k.loop(0, many) as s:
                        multiply_fourth(self.tiles, rest.at(s * TILE), columns.at(s * (SLICES * 2 * TILE)))
        scales = (column * self.k_blocks + number) * PANEL + side * HALF
        accumulator.start(slot + side * HALF, (tile * self.k_blocks + number) * HALF, scales, step.eq(0))


@dataclass(frozen=True)
class _SlicedFallback(F32Fallback):
    k_block: Val

    def _column(self, left: Val, half: int, j: Val) -> Val:
        b = self.at["b"]
        scales = scales_of(b, ceil_div(self.n, PANEL), self.steps)
        return load_column(self.k, b, scales, self.steps, self.k_block, left, half, j)
