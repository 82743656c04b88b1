"""Matrix products on tiles of bytes, from operands in digits (``digits``): f32 results from exact sums.

A product of bytes covers 64 numbers in the time in which one of bf16 covers 32, so the eight that digits need
(``split.int8_micro_kernel``) take two thirds of the time of the six that bf16 parts need (``gemm.amx``), and a number
of B has 3 bytes to read and not 6. (Measured: 0.5 - 0.75 of the time.)

**Order of sums.** The sums of a run are integers, exact in any order; they are put together, times both scales, and
runs are added in order, in f32. Rows, threads and blocking change nothing.

Groups of squares, and when they are finished, are those of ``gemm.amx`` (``gemm.macro_tile``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.common.matrices import Problem, matrix_params
from sardonyx.providers.cpu.kernels.gemm.amx import handing_on
from sardonyx.providers.cpu.kernels.gemm.f32_fallback import Mend, is_any_up
from sardonyx.providers.cpu.kernels.gemm.macro_tile import SQUARE, Blocking, Done, Groups
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import TileFinish, rows_to_fetch
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL, count_of
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import SUMS, TILES, A
from sardonyx.providers.cpu.kernels.split.deferred_accumulation import each_step
from sardonyx.providers.cpu.kernels.split.int8_micro_kernel import (
    PRODUCTS,
    ROUNDS,
    SIDES,
    PutTogether,
    fourth,
    multiply,
    summed,
)
from sardonyx.providers.cpu.kernels.split.int8_slices import (
    DIGITS,
    STEP,
    TILE,
    constant_in_digits,
    rows_in_digits,
    run_steps,
    scales_of,
    uneven,
    whole,
)
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i8, i32, i64
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES
from sardonyx.providers.cpu.program.steps import Ref, Step, Target

PARTS = 3
"""In which results are handed on, to products that take bf16 parts."""
SPARE = 1
"""Squares of scratch memory for the four sums of a run, of 16 rows and columns."""
LEAST_DEPTH = 96
"""Numbers of a sum that fill three quarters of a step; shorter ones fill more of bf16 parts, in steps of 32."""


def takes(p: Problem, parts: int | None, target: Target) -> bool:
    """Whether a contraction that would take bf16 parts is carried out in digits."""
    tensor = p.weight
    if parts != PARTS or tensor is None or p.batch or not target.isa.amx:
        return False
    is_plain = p.a.dtype is f32 and p.b.dtype is f32 and p.a.column == 1
    return is_plain and int(p.k) >= LEAST_DEPTH and uneven(tensor) not in target.exceptional


def steps(p: Problem, target: Target) -> list[Step]:
    made, p = [y.storage for y in p.outputs], handing_on(p, target)
    epilogue, blocking = Epilogue.of(p), Blocking.of(DIGITS, p.k, target.isa)
    before, rows = rows_in_digits(p, target)
    b = constant_in_digits(p, target.isa)
    args = {
        **rows.args(), **p.a.args("a_source"), "b": Ref(b), "m": p.m, "n": p.n, "depth": p.k,
        "group_rows": blocking.rows, "group_columns": blocking.columns, "run": run_steps(int(p.k)), **epilogue.args(p),
    }  # fmt: skip
    why = f"{target.precision}: {PRODUCTS} products of {DIGITS} digits on tiles"
    why += "".join(f"; {target.handed[s].words}" for s in made if s in target.handed)
    scratch = blocking.scratch_nbytes(SPARE)
    spec = gemm_digits(epilogue=epilogue)
    return [*before, Step(spec, args, epilogue.writes, p.nodes, scratch, p.flops, b.elements, why)]


def _params(epilogue: Epilogue) -> Params:
    numbers = ("m", "n", "depth", "group_rows", "group_columns", "run", "a_flags_panel", "a_flags_count")
    memory = {"a": (i8,), "a_scales": (f32,), "a_long": (i32,), "a_flags": (i32,), "b": (i8,)}
    return {**memory, **matrix_params("a_source", f32, 0), **dict.fromkeys(numbers, i64), **epilogue.params}


@kernel(_params)
def gemm_digits(
    k: Kernel, m: Val, n: Val, depth: Val, group_rows: Val, group_columns: Val, run: Val,
    *, epilogue: Epilogue, **memory: Any,
) -> None:  # fmt: skip
    """One product of A in digits with a constant."""
    tiles = Tiles(k)
    tiles.configure(k.select(m <= HALF, k.max(m, 1), HALF), short=(*SUMS, A), count=TILES)
    row_panels, column_panels, steps = count_of(m, PANEL), count_of(n, PANEL), count_of(depth, STEP)
    is_odd, scratch = is_any_up(k, memory), k.scratch(f32)
    done = Done(k, scratch, m, n)
    done.finish = TileFinish(k, epilogue, memory, n, (), PARTS)
    product = _Product(k, tiles, scratch, memory, m, n, steps, run)
    fetched_rows = rows_to_fetch(k, m, n, product.runs)
    at_buffers = {name: memory[name] for name in memory if isinstance(memory[name], Buf)}
    mend = _Mend(k, memory, at_buffers, m, n, depth, steps, PARTS, False, run)
    groups = Groups(k, done, row_panels, column_panels, group_rows, group_columns, spare=SPARE)
    with groups.each() as group:
        row, rows, column = group.row, group.rows, group.column
        stride = k.select(group_columns > 1, steps, run)
        lines = k.max(count_of(k.const(DIGITS * 2 * TILE // LINE_NBYTES), k.max(rows * 4, 1)), 1)
        with k.loop(0, k.max(steps, 1), run) as step, k.loop(0, group.columns) as c, k.loop(0, rows) as r:
            slot = group.slot(r, c)
            with k.loop(0, k.min(count_of(m - (row + r) * PANEL, HALF), 2)) as half:
                done.finish.fetch_some(row + r, half, column + c, m, step // run, fetched_rows)
                with k.loop(0, SIDES) as side:
                    product.add((row + r) * 2 + half, column + c, side, step, slot + half * (SQUARE // 2), done,
                                stride * (DIGITS * 2 * TILE), (r * 2 + half) * 2 + side, lines)  # fmt: skip
            with k.when(step + run >= steps):
                done.finish.begin(row + r, column + c)
                with k.when(is_odd, likely=False):
                    product.behind.rest()
                    mend.square(scratch.at(slot), row + r, column + c)
        product.behind.rest()
    tiles.release()


class _Product:
    """The product inside the kernel."""

    def __init__(
        self, k: Kernel, tiles: Tiles, scratch: Buf, memory: Any, m: Val, n: Val, steps: Val, run: Val
    ) -> None:
        self.k, self.tiles, self.memory, self.steps, self.run = k, tiles, memory, steps, run
        self.row_tiles, self.runs = count_of(m, HALF), count_of(steps, run)
        scales = scales_of(memory["b"], count_of(n, PANEL), steps)
        self.behind = PutTogether(
            k, scratch.as_type(i32), scratch, lambda at, r: memory["a_scales"].load(at + r), scales
        )
        self.pace = k.const(HALF)  # rows to finish in a step, so that a group has as many as the next has steps
        for many, rows in ((1, 4), (2, 2), (4, 1)):
            self.pace = k.select(steps >= many, rows, self.pace)

    def add(
        self, tile: Val, column: Val, side: Val, step: Val, slot: Val, done: Done, stride: Val, turn: Val, lines: Val
    ) -> None:
        """Add a run to the sums of 16 rows and a side of 32 columns.

        ``stride`` bytes on lies the run of B that comes next; each side of a group's halves, of which this is the
        ``turn``-th, fetches ``lines`` lines of it for each step.
        """
        k, behind = self.k, self.behind
        many, number = k.min(self.run, self.steps - step), step // self.run
        b = self.memory["b"].at((column * self.steps + step) * (DIGITS * 2 * TILE))
        a = self.memory["a"].at((tile * self.steps + step) * (DIGITS * TILE))
        rest = self.memory["a"].at((self.row_tiles * self.steps * DIGITS + tile * self.steps + step) * TILE)
        is_long, columns = self.memory["a_long"].load(tile * self.runs + number).ne(0), b.at(side * TILE)
        pace = each_step(k, many)
        for weight, products in ROUNDS:
            with summed(self.tiles, behind.levels, weight):
                with k.loop(0, many) as s:
                    digits = [a.at((s * DIGITS + digit) * TILE) for digit in range(DIGITS)]
                    multiply(self.tiles, digits, columns.at(s * (DIGITS * 2 * TILE)), products)
                    if weight:
                        behind.some(pace)
                        ahead = b.at(stride + (turn * many + s) * (lines * LINE_NBYTES))
                        with k.loop(0, lines) as i:
                            ahead.prefetch(i * LINE_NBYTES, locality=2)
                    else:
                        done.some(self.pace)
                if weight:
                    with k.when(is_long), k.loop(0, many) as s:
                        fourth(self.tiles, rest.at(s * TILE), columns.at(s * (DIGITS * 2 * TILE)))
        scales = (column * self.runs + number) * PANEL + side * HALF
        behind.take(slot + side * HALF, (tile * self.runs + number) * HALF, scales, step.eq(0))


@dataclass(frozen=True)
class _Mend(Mend):
    run: Val

    def _column(self, left: Val, half: int, j: Val) -> Val:
        b = self.at["b"]
        scales = scales_of(b, count_of(self.n, PANEL), self.steps)
        return whole(self.k, b, scales, self.steps, self.run, left, half, j)
