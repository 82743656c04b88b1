"""Matrix products on AMX tiles, from operands split into bf16 terms (``split.bf16``).

A product of f32 numbers is the sum of the products of their terms that matter: 1 with one term (bf16), 3 with two
(error about 2^-16), 6 with three (error below that of f32 sums). The micro-kernel (``split.bf16_micro_kernel``) holds
16 rows by 32 columns of sums and advances along k in steps of 32.

**Order of sums.** Each element adds the products of step 0, step 1, ... in the order of ``PRODUCTS``, in K-blocks of
``KC_STEPS`` steps. With one or two terms, a K-block continues from the sums of the one before. With three terms it
starts at zero and is added to them, since six additions a step would otherwise round at the size of the whole sum.
Results do not depend on rows, threads or blocking.

**Cache blocking.** One step of one term reads three tiles for two products of 16 cycles: 96 bytes a cycle, more than
L2 delivers. So a K-block of a panel of B takes 12 KiB, a quarter of L1, and stays there while the row panels of a
macro-tile pass; A comes from L2 by non-temporal tile loads, which leave L1 to B, and the next K-block of B is
prefetched into another quarter of L1. A macro-tile has 4 to 8 row panels. If its A, over all of k, fits into half of
L2, it has one column panel; otherwise ``COLUMNS`` column panels share each K-block of A, so that A is read from L3
once for all of them. Sums are kept in scratch memory, 4 KiB for each micro-tile. Three terms take more memory than
f32, so a constant B whose rows may be few stays in f32 panels and is split while the K-block before is multiplied
(``gemm.split_ahead``).

**Epilogue.** A store that misses the cache delays the tile stores after it, so each K-block prefetches some rows of
what the epilogue reads and writes. A single thread whose results fit into its L2 skips that. The epilogue runs on
vector units, which are idle during tile products: it is software-pipelined, row by row between the products of the
next macro-tile. With one term products leave few cycles; a cheap epilogue then follows half a micro-tile after the
products. Batched products and chips without AMX apply the epilogue right after the products, too.

**Without AMX**, one term is multiplied from the same panels by vector instructions for bf16 pairs, where there are
any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.common.matrices import (
    Problem,
    batch_args,
    batch_count,
    batch_indices,
    batch_params,
    matrix_at,
    matrix_params,
    number,
)
from sardonyx.providers.cpu.kernels.gemm import split_ahead
from sardonyx.providers.cpu.kernels.gemm.f32_fallback import F32Fallback, any_flag_set
from sardonyx.providers.cpu.kernels.gemm.macro_tile import MICRO_TILE, Blocking, MacroTiles, PipelinedEpilogue
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import Panels, TileEpilogue, rows_to_fetch
from sardonyx.providers.cpu.kernels.gemm.split_ahead import Ahead
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import (
    HALF,
    PANEL,
    STEP,
    TILE,
    TiledOperand,
    split_a,
    split_b,
    step_elements,
    tiled_params,
    with_packed_outputs,
)
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import (
    LINE,
    PRODUCTS,
    SCHEDULES,
    SUMS,
    TILES,
    A,
    Schedule,
    continued_sums,
    multiply,
    zeroed_sums,
)
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.bf16_dot import dot_pairs
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bf16, f16, f32, i64, u32
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import Refusal

TERMS = {"medium": 1, "high": 2, "highest": 3}
"""bf16 terms by precision."""

EXACT_TERMS = {bf16: 1, f16: 2}
"""bf16 terms that represent a narrow type exactly."""

KC_STEPS = {1: 6, 2: 6, 3: 8}
"""Steps of a K-block, by terms. With one term, this K-block and the next fit into half of L1. With three, each K-block
costs a store and an addition of its sums."""

PIPELINED_KC_STEPS = 12
"""Steps of a K-block of one term with a pipelined epilogue, which needs L1, too: the next K-block is prefetched into
L2."""

PAIR_ROWS = 8
"""Rows of a micro-tile with bf16 pair instructions: 16 vector registers of sums and two of B; A is broadcast from
memory."""

LEAST_ROWS = {1: 1, 2: 8, 3: 40}
"""Rows from which AMX is faster than f32 multiply-adds. Few rows are limited by memory, where one term reads half the
bytes of f32 and three read 1.5 times as many."""
LEAST_COLUMNS = 64
"""Columns from which the gain in products, 0.02 cycles each with three terms, outweighs the splitting of A, about one
cycle for a number. Where B is split at each run too, rows must be as many."""
LEAST_DEPTH = STEP
"""Products of a sum from which one fills a step."""


# -- the kernel


def _params(
    terms: int, a_dtype: DType | None, b_dtype: DType | None, panels: DType | None, epilogue: Epilogue,
    schedule: Schedule,
) -> Params:  # fmt: skip
    axes = epilogue.batch_axes
    numbers = ("m", "n", "depth", "macro_rows", "macro_columns", "k_block")
    return {
        **tiled_params("a", True, axes), **tiled_params("b", b_dtype is not None, axes),
        **({} if panels is None else {"b": (panels,)}),
        **(matrix_params("a_source", a_dtype, axes) if a_dtype is not None else {}),
        **(matrix_params("b_source", b_dtype, axes) if b_dtype is not None else {}),
        **batch_params(axes), **dict.fromkeys(numbers, i64), **epilogue.params,
    }  # fmt: skip


@kernel(_params)
def gemm_amx(
    k: Kernel, m: Val, n: Val, depth: Val, macro_rows: Val, macro_columns: Val, k_block: Val,
    *, terms: int, a_dtype: DType | None, b_dtype: DType | None, panels: DType | None, epilogue: Epilogue,
    schedule: Schedule, **memory: Any,
) -> None:  # fmt: skip
    """A batch of products. ``a_dtype`` is None if only the packed A exists, because its producer packed it. ``b_dtype``
    is None for a constant B, which is representable; it is prepacked into tiles, or into panels of type ``panels``.
    """
    tiles = Tiles(k) if k.isa.amx else None
    # Tiles of A have as many rows as there are, up to 16.
    if tiles is not None:
        tiles.configure(k.select(m <= HALF, k.max(m, 1), HALF), short=(*SUMS, A), count=TILES)
    axes = epilogue.batch_axes
    row_panels, column_panels, steps = (ceil_div(size, PANEL) for size in (m, n, depth))
    is_unrepresentable, fetched_rows = any_flag_set(k, memory), rows_to_fetch(k, m, n, ceil_div(steps, k_block) - 1)
    ahead = None if panels is None else Ahead(k, memory["b"], depth, steps, k_block)
    scratch = k.scratch(f32, 0 if ahead is None else split_ahead.scratch_nbytes(k_block))
    done = PipelinedEpilogue(k, scratch, m, n) if is_pipelined(schedule, epilogue, k.isa) else None
    is_interleaved = done is not None or ahead is not None  # with products, so both halves of a micro-tile share a loop
    count = batch_count(k, memory, axes)
    macros = MacroTiles(k, done, row_panels, column_panels, macro_rows, macro_columns, count=count)

    def panel_of(macro: Val) -> Val:
        """The offset in B's panels of a macro-tile's first column panel."""
        batch = batch_indices(k, memory, macro // column_panels // macros.each_product, axes)
        places = (index * number(memory, f"b_batch{i}") for i, index in enumerate(batch))
        return sum(places, macro % column_panels * depth * PANEL)

    with macros.each(None if ahead is None else lambda macro: ahead.begin(panel_of(macro))) as macro:
        row, rows, column, columns = macro.row, macro.rows, macro.column, macro.columns
        batch = batch_indices(k, memory, macro.product, axes)
        product = _Product(k, tiles, scratch, memory, batch, m, n, depth, steps, ahead, terms=terms, schedule=schedule)
        f32_fallback = F32Fallback(k, memory, product.at, m, n, depth, steps, terms, is_in_panels=ahead is not None)
        product.stride = k.select(macro_columns > 1, steps, k_block)
        product.lines = k.max(ceil_div(k.const(PANEL), k.max(rows * 2, 1)), schedule.fetched)
        finish = TileEpilogue(k, epilogue, memory, n, batch, terms)
        if done is not None:
            done.finish, product.between = finish, done.advance
        if ahead is not None:
            halves = ceil_div(k.min(m - row * PANEL, rows * PANEL), HALF)
            following = macro.number + columns
            ahead.enter(panel_of(macro.number), columns, panel_of(following), following < macros.total, halves)

        def micro_tiles(here: _KBlock, c: Val, is_last: Val | None) -> None:
            """Multiply a K-block for the micro-tiles of column panel ``c``. After the last K-block (``is_last``; None:
            it is not) apply the epilogue, each half micro-tile after the products of the next half.
            """
            is_final = 0 if is_last is None or done is not None else k.cast(is_last, i64)

            def fetch(r: Val, half: int) -> None:
                finish.fetch_some(row + r, half, here.column, m, here.step // k_block, fetched_rows)

            with k.loop(0, rows + is_final) as r:
                slot, micro_tile = macro.slot(r, c), (row + r, here.column)
                with k.when(r < rows):
                    if tiles is None:
                        product.add_pairs(*micro_tile, here.step, here.many, slot)
                    elif is_interleaved:
                        for half in range(2):
                            fetch(r, half)
                        product.add(here, r, slot)
                    else:
                        fetch(r, 0)
                        product.add_upper(here, r, slot)
                if is_last is not None and done is None:
                    with k.when(is_last & (r > 0)):
                        finish.half(scratch, macro.slot(r - 1, c), row + r - 1, 1, here.column, m)
                with k.when(r < rows):
                    if tiles is not None and not is_interleaved:
                        fetch(r, 1)
                        product.add_lower(here, r, slot)
                    if is_last is not None:
                        with k.when(is_last):
                            finish.begin(*micro_tile)
                            with k.when(is_unrepresentable, likely=False):
                                f32_fallback.recompute_flagged(scratch.at(slot), *micro_tile)
                            if done is None:
                                finish.half(scratch, slot, row + r, 0, here.column, m)

        with k.loop(0, k.max(steps, 1), k_block) as step, k.loop(0, columns) as c:
            split = None if ahead is None else ahead.turn(step, c)
            here, is_last = _KBlock(row, column + c, step, k.min(k_block, steps - step), split), step + k_block >= steps
            if tiles is None or is_interleaved:
                micro_tiles(here, c, is_last)
            else:  # separate loops: nothing hides a branch between the products of two halves
                with k.either(product.has_fixed_prefetch) as (fixed, other):
                    with fixed, k.either(is_last) as (last, before):
                        with before:
                            micro_tiles(replace(here, has_fixed_prefetch=True), c, None)
                        with last:
                            micro_tiles(replace(here, has_fixed_prefetch=True), c, is_last)
                    with other:
                        micro_tiles(here, c, is_last)
    if tiles is not None:
        tiles.release()


@dataclass(frozen=True)
class _KBlock:
    """A K-block of the products of a macro-tile's rows with one column panel."""

    row: Val
    """The macro-tile's first row panel."""
    column: Val
    step: Val
    many: Val
    split: Buf | None
    """The K-block of B, if it is split into terms ahead of its products (``gemm.split_ahead``)."""
    has_fixed_prefetch: bool = False
    """There are enough rows that each step prefetches exactly the lines it is unrolled for."""


class _Product:
    """One matrix product inside the kernel."""

    between: Callable[[Val], None] | None = None
    """Called between steps: finishes so many rows of the macro-tile before."""
    stride: Val
    """Steps from this K-block of B to the next one that is read."""
    lines: Val
    """Lines of the next K-block that a step of half a micro-tile prefetches for each term: a macro-tile fetches all."""

    def __init__(
        self, k: Kernel, tiles: Tiles | None, scratch: Buf, memory: Any, batch: list[Val], m: Val, n: Val, depth: Val,
        steps: Val, ahead: Ahead | None, *, terms: int, schedule: Schedule,
    ) -> None:  # fmt: skip
        self.k, self.tiles, self.scratch, self.memory, self.ahead = k, tiles, scratch, memory, ahead
        self.terms, self.schedule = terms, schedule
        self.m, self.n, self.depth, self.steps, self.is_short = m, n, depth, steps, m <= HALF
        self.at = {name: matrix_at(memory, name, batch) for name in memory if isinstance(memory[name], Buf)}
        self.pace = k.const(HALF)  # rows that a step finishes, so that the steps of a macro-tile finish the one before
        for many, rows in ((2, 8), (4, 4), (8, 2), (16, 1)):
            self.pace = k.select(steps >= many, rows, self.pace)

    def add(self, k_block: _KBlock, r: Val, slot: Val) -> None:
        """Multiply a K-block for micro-tile ``r`` of the macro-tile, the upper half first."""
        k = self.k
        halves = k.cast(self._is_low(k_block, r), i64) + 1
        if k_block.split is not None:
            with k.loop(0, halves) as half:
                self._add_half(k_block, r, slot, half)
            return
        with k.either(self.is_short) as (short, long):
            with short:
                self._add_half(k_block, r, slot, k.const(0), is_short=True)
            with long, k.loop(0, halves) as half:
                self._add_half(k_block, r, slot, half)

    def add_upper(self, k_block: _KBlock, r: Val, slot: Val) -> None:
        """The upper half alone."""
        if k_block.has_fixed_prefetch:
            self._add_half(k_block, r, slot, self.k.const(0))
            return
        with self.k.either(self.is_short) as (short, long):
            for branch, is_short in ((short, True), (long, False)):
                with branch:
                    self._add_half(k_block, r, slot, self.k.const(0), is_short=is_short)

    def add_lower(self, k_block: _KBlock, r: Val, slot: Val) -> None:
        """The lower half, if there is one."""
        with self.k.when(self._is_low(k_block, r)):
            self._add_half(k_block, r, slot, self.k.const(1))

    @property
    def has_fixed_prefetch(self) -> Val:
        """Whether each step prefetches exactly the lines it is unrolled for."""
        return ~self.is_short & (self.lines <= self.schedule.fetched)

    def _is_low(self, k_block: _KBlock, r: Val) -> Val:
        """Whether a micro-tile has more than its upper 16 rows."""
        return self.m - (k_block.row + r) * PANEL > HALF

    def _add_half(self, k_block: _KBlock, r: Val, slot: Val, half: Val, *, is_short: bool = False) -> None:
        k, size, tiles, scratch = self.k, step_elements(self.terms), self.tiles, self.scratch
        assert tiles is not None
        at = slot + half * (MICRO_TILE // 2)
        sums = [scratch.at(at + j * HALF) for j in SUMS]
        a = self.at["a"].at(((k_block.row + r) * self.steps + k_block.step) * size + half * TILE)
        b = (
            self.at["b"].at((k_block.column * self.steps + k_block.step) * size)
            if k_block.split is None
            else k_block.split
        )
        lines = self.k.const(self.schedule.fetched) if k_block.has_fixed_prefetch else self.lines
        share, is_fetched = lines * (self.terms * LINE), self.schedule.fetched and k_block.split is None
        fetched = b.at(self.stride * size + (r * 2 + half) * k_block.many * share) if is_fetched else None
        is_first = k_block.step.eq(0)
        if self.terms < 3:
            with continued_sums(tiles, sums, PANEL * 4, is_first):
                self._multiply(
                    a, b, k_block.many, is_short, fetched, None if k_block.has_fixed_prefetch else self.lines
                )
            return
        to = scratch.at(k.select(is_first, at, 0))
        with zeroed_sums(tiles, [to.at(t * HALF) for t in SUMS], PANEL * 4):
            self._multiply(a, b, k_block.many, is_short, fetched, None if k_block.has_fixed_prefetch else self.lines)
        with k.when(~is_first), k.loop(0, MICRO_TILE // 2, 4 * HALF) as i:
            for v in (i + j * HALF for j in range(4)):
                sums[0].store(v, sums[0].load(v, HALF) + scratch.load(v, HALF))

    def add_pairs(self, row: Val, column: Val, step: Val, many: Val, slot: Val) -> None:
        """Multiply ``many`` steps of a micro-tile with bf16 pair instructions, ``PAIR_ROWS`` rows at a time."""
        k, size = self.k, step_elements(self.terms) // 2
        a = self.at["a"].as_type(u32).at((row * self.steps + step) * size)
        b = self.at["b"].as_type(u32).at((column * self.steps + step) * size)
        with k.either(self.m.eq(1)) as (one, several):
            with one:
                self._add_rows(a, b, many, slot, step.eq(0), 1)
            with several, k.loop(0, k.min(self.m - row * PANEL, PANEL), PAIR_ROWS) as top:
                self._add_rows(a.at(top * HALF), b, many, slot + top * PANEL, step.eq(0), PAIR_ROWS)

    def _add_rows(self, a: Buf, b: Buf, many: Val, slot: Val, is_first: Val, rows: int) -> None:
        k, size, scratch = self.k, step_elements(self.terms) // 2, self.scratch
        places = [[slot + (i * PANEL + j * HALF) for j in range(2)] for i in range(rows)]
        zeros = k.zeros(f32, HALF)
        sums = [[k.var(k.select(is_first, zeros, scratch.load(at, HALF))) for at in line] for line in places]
        with k.loop(0, many) as s, k.loop(0, HALF) as pair:
            lines, columns = a.at(s * size + pair), b.at(s * size + pair * HALF)
            right = [columns.load(j * (TILE // 2), HALF) for j in range(2)]
            for i, totals in enumerate(sums):
                left = k.splat(lines.load(i * HALF), HALF)
                for total, y in zip(totals, right, strict=True):
                    total.set(dot_pairs(k, total.get(), left, y))
        for line, totals in zip(places, sums, strict=True):
            for at, total in zip(line, totals, strict=True):
                scratch.store(at, total)

    def _multiply(self, a: Buf, b: Buf, steps: Val, is_short: bool, fetched: Buf | None, lines: Val | None) -> None:
        between, ahead = self.between, self.ahead
        assert self.tiles is not None

        def between_steps(unroll: int) -> None:
            if ahead is not None:
                ahead.advance(unroll)
            if between is not None:
                between(self.pace * unroll)

        interleaved = None if between is None and ahead is None else between_steps
        multiply(
            self.tiles, a, b, steps, self.terms, self.schedule, interleaved,
            is_short=is_short, is_a_non_temporal=not is_short, fetched=fetched, lines=lines,
        )  # fmt: skip


# -- what contractions ask for


def is_pipelined(schedule: Schedule, epilogue: Epilogue, isa: Isa) -> bool:
    """Whether the epilogue of a macro-tile is interleaved with the products of the next one of the same matrix."""
    return (schedule.is_pipelined or epilogue.is_expensive) and epilogue.batch_axes == 0 and isa.amx


def term_count(precision: str, *dtypes: DType) -> int:
    """bf16 terms of an operand: as many as the precision asks for, or as represent these types exactly."""
    return min(TERMS[precision], max(EXACT_TERMS.get(dtype, 3) for dtype in dtypes))


def terms(p: Problem, analysis: Analysis) -> int:
    """The bf16 terms that the operands are split into."""
    return term_count(analysis.precision, p.a.dtype, p.b.dtype)


def supports(p: Problem, analysis: Analysis) -> Refusal | None:
    """Why operands are not multiplied in bf16 terms.

    Chips without tiles may have products of bf16 pairs on vectors.
    """
    isa = analysis.isa
    if not isa.amx and not isa.bf16_dot:
        return Refusal(f"no tiles on {isa.name}")
    if not isa.amx and terms(p, analysis) != 1:
        return Refusal(f"products of bf16 pairs have one term, the precision {analysis.precision} takes more")
    if any(x.dtype not in (f32, bf16, f16) for x in (p.a, p.b)):
        return Refusal("of other types than f32, f16 and bf16")
    if p.weight is not None and identity(p.weight) in analysis.unrepresentable:
        return Refusal("bf16 terms cannot represent a weight")
    return None


def pays(p: Problem, analysis: Analysis) -> Refusal | None:
    """Why multiply-adds are quicker."""
    least = LEAST_COLUMNS if p.weight is None else LEAST_ROWS[terms(p, analysis)]
    limits = (("rows", p.m, least), ("columns", p.n, LEAST_COLUMNS), ("depth", p.k, LEAST_DEPTH))
    small = [f"{size} {name}" for name, size, low in limits if isinstance(size, int) and size < low]
    return Refusal(f"too small for tiles: {', '.join(small)}") if small else None


def is_in_panels(p: Problem, analysis: Analysis) -> bool:
    """Whether B is a constant in panels, as multiply-adds have it, and not in tiles: where rows may well be few.

    One row is twice as fast from panels, and 128 rows a tenth slower. Rows that are one free size, a batch, are taken
    to be few at times; rows that are more, tokens of a batch, to be many, unless they come step by step.
    """
    rows, count = p.m, terms(p, analysis)
    if count != split_ahead.TERMS or p.weight is None or isinstance(rows, int):
        return False
    is_single = len(rows.terms) == 1 and all(len(names) == 1 for names in rows.terms)
    is_long = any(times >= LEAST_ROWS[count] for times in rows.terms.values())
    return (is_single or analysis.is_stepwise) and not is_long


def with_packed_panels(p: Problem, analysis: Analysis) -> Problem:
    """With what is packed on among the outputs, in tiles."""
    outputs, expression = with_packed_outputs(p.outputs, p.expression, analysis, lambda _, found: Panels.over(found))
    return replace(p, outputs=outputs, expression=expression)


def steps(p: Problem, analysis: Analysis) -> list[Step]:
    """The contraction on tiles."""
    terms = term_count(analysis.precision, p.a.dtype, p.b.dtype)
    made, p = [y.storage for y in p.outputs], with_packed_panels(p, analysis)
    epilogue, blocking = Epilogue.of(p), Blocking.of(terms * 2, p.k, analysis.isa)
    schedule, k_block = SCHEDULES[terms], KC_STEPS[terms]
    has_pipelined = is_pipelined(schedule, epilogue, analysis.isa)
    if has_pipelined and terms == 1:
        schedule, k_block = replace(schedule, level=2), PIPELINED_KC_STEPS
    before_a, a = split_a(p, terms, analysis)
    panels = split_ahead.panels(p, analysis) if is_in_panels(p, analysis) else None
    if panels is not None:
        b, before_b = TiledOperand(panels.storage, panels.batch, None, ()), list[Step]()
    else:
        before_b, b = split_b(p, terms, analysis)
    packed = analysis.packed_operands.get(p.a.storage)
    a_dtype = p.a.dtype if packed is None or a is not packed.tiled else None
    b_dtype = None if b.flags is None else p.b.dtype
    spec = gemm_amx(
        terms=terms, a_dtype=a_dtype, b_dtype=b_dtype, panels=None if panels is None else panels.dtype,
        epilogue=epilogue, schedule=schedule,
    )  # fmt: skip
    args = {
        **a.args("a"), **(p.a.args("a_source") if a_dtype is not None else {}),
        **b.args("b"), **(p.b.args("b_source") if b_dtype is not None else {}),
        **batch_args(p.batch), "m": p.m, "n": p.n, "depth": p.k,
        "macro_rows": blocking.rows, "macro_columns": blocking.columns, "k_block": k_block, **epilogue.args(p),
    }  # fmt: skip
    unit = "tiles" if analysis.isa.amx else "vectors of pairs"
    why = f"{analysis.precision}: {len(PRODUCTS[terms])} products of {terms} bf16 terms on {unit}"
    if a_dtype is None:
        why += "; A packed by its producer"
    why += "".join(f"; {analysis.packed_operands[s].description}" for s in made if s in analysis.packed_operands)
    nbytes = expressible(dims.mul(b.tiles.elements, b.tiles.dtype.itemsize))
    scratch = blocking.scratch_nbytes(1, 1 + has_pipelined)
    scratch += 0 if panels is None else split_ahead.scratch_nbytes(k_block)
    step = Step(spec, args, epilogue.writes, p.nodes, scratch, p.flops, nbytes, why)
    return [*before_a, *before_b, step]
