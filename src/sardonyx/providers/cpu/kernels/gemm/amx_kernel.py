"""The kernel of ``gemm.amx``: macro-tiles of micro-tiles, multiplied K-block by K-block.

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

With several terms A is lifted (``split.bf16``): the epilogue multiplies the sums of each micro-tile by a factor, which
is 1 for those of the f32 fallback.

**Without AMX**, one term is multiplied from the same panels by vector instructions for bf16 pairs, where there are
any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, MatrixArgs
from sardonyx.providers.cpu.kernels.gemm import split_ahead
from sardonyx.providers.cpu.kernels.gemm.f32_fallback import (
    SCRATCH_NBYTES,
    F32Fallback,
    ProductOperands,
    any_flag_set,
)
from sardonyx.providers.cpu.kernels.gemm.macro_tile import (
    MICRO_TILE,
    MacroTile,
    MacroTiles,
    PipelinedEpilogue,
)
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import TileEpilogue, rows_to_fetch
from sardonyx.providers.cpu.kernels.gemm.split_ahead import Ahead
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import (
    HALF,
    PANEL,
    STEP,
    TILE,
    TiledArgs,
    lift_of_left,
    step_elements,
)
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import (
    LINE,
    SUMS,
    TILES,
    A,
    Schedule,
    continued_sums,
    multiply,
    zeroed_sums,
)
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N
from sardonyx.providers.cpu.language.bf16_dot import dot_pairs
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bf16, f32, i64, u32
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.records import Record, replace

FACTORS_NBYTES = 1024
"""Scratch bytes of the factors by which the epilogue multiplies the sums of micro-tiles: two macro-tiles have at most
130."""
PAIR_ROWS = 8
"""Rows of a micro-tile with bf16 pair instructions: 16 vector registers of sums and two of B; A is broadcast from
memory."""


class AmxGemmArgs(Arguments[M, N]):
    """The parameters of ``gemm_amx``."""

    is_inline: ClassVar[bool] = True
    a: TiledArgs[M, N]
    b: TiledArgs[M, N]
    a_source: MatrixArgs[M, N] | None
    b_source: MatrixArgs[M, N] | None
    """The operands as they were before they were packed, if they are packed at run time by a step of their own."""
    batch: BatchArgs[M, N]
    m: N
    n: N
    depth: N
    macro_rows: N
    macro_columns: N
    """Row panels and column panels of a macro-tile, at most."""
    k_block: N
    epilogue: EpilogueArgs[M, N]


def _params(
    terms: int, a_dtype: DType | None, b_dtype: DType | None, panels: DType | None, epilogue: Epilogue,
    schedule: Schedule,
) -> Params:  # fmt: skip
    axes = epilogue.batch_axes

    def source(dtype: DType | None) -> MatrixArgs[Memory, DType] | None:
        return None if dtype is None else MatrixArgs.declared(dtype, axes)

    return {"args": AmxGemmArgs(
        TiledArgs.declared(axes, has_flags=True),
        TiledArgs.declared(axes, has_flags=b_dtype is not None, dtype=bf16 if panels is None else panels),
        source(a_dtype), source(b_dtype), BatchArgs.declared(axes), i64, i64, i64, i64, i64, i64, epilogue.declared,
    )}  # fmt: skip


@kernel(_params)
def gemm_amx(
    k: Kernel, args: AmxGemmArgs[Buf, Val], *, terms: int, a_dtype: DType | None, b_dtype: DType | None,
    panels: DType | None, epilogue: Epilogue, schedule: Schedule,
) -> None:  # fmt: skip
    """A batch of products. ``a_dtype`` is None if only the packed A exists, because its producer packed it. ``b_dtype``
    is None for a constant B, which is representable; it is prepacked into tiles, or into panels of type ``panels``.
    """
    tiles, m = Tiles(k) if k.isa.amx else None, args.m
    # Tiles of A have as many rows as there are, up to 16.
    if tiles is not None:
        tiles.configure(k.select(m <= HALF, k.max(m, 1), HALF), short=(*SUMS, A), count=TILES)
    gemm = _Gemm(k, tiles, args, epilogue, schedule, terms, is_in_panels=panels is not None)
    with gemm.macro_tiles() as macro:
        gemm.enter(macro).multiply()
    if tiles is not None:
        tiles.release()


class _Gemm:
    """What all macro-tiles of a thread share."""

    def __init__(
        self, k: Kernel, tiles: Tiles | None, args: AmxGemmArgs[Buf, Val], epilogue: Epilogue, schedule: Schedule,
        terms: int, *, is_in_panels: bool,
    ) -> None:  # fmt: skip
        self.k, self.tiles, self.args, self.epilogue, self.schedule, self.terms = (
            k, tiles, args, epilogue, schedule, terms,
        )  # fmt: skip
        m, n = args.m, args.n
        row_panels, self.column_panels, self.steps = (ceil_div(size, PANEL) for size in (m, n, args.depth))
        flagged = (x.flags for x in (args.a, args.b))
        self.is_unrepresentable = any_flag_set(k, ((x.memory, x.count) for x in flagged if x is not None))
        self.fetched_rows = rows_to_fetch(k, m, n, ceil_div(self.steps, args.k_block) - 1)
        self.ahead = Ahead(k, args.b.memory, args.depth, self.steps, args.k_block) if is_in_panels else None
        fallback_at = split_ahead.scratch_nbytes(args.k_block) if is_in_panels else k.const(0)
        self.fallback_scratch, self.held = k.scratch(f32, fallback_at), k.var(-1)
        self.factors = k.scratch(f32, fallback_at + SCRATCH_NBYTES)
        self.scratch = k.scratch(f32, fallback_at + SCRATCH_NBYTES + FACTORS_NBYTES)
        self.done = PipelinedEpilogue(k, self.scratch, m, n) if is_pipelined(schedule, epilogue, k.isa) else None
        self.is_interleaved = self.done is not None or is_in_panels
        """Whether other work runs between the products: both halves of a micro-tile then share a loop."""
        self.macros = MacroTiles(
            k, self.done, row_panels, self.column_panels, args.macro_rows, args.macro_columns,
            count=args.batch.count(k),
        )  # fmt: skip

    def macro_tiles(self) -> AbstractContextManager[MacroTile]:
        """A loop over this thread's macro-tiles."""
        ahead = self.ahead
        return self.macros.each(None if ahead is None else lambda macro: ahead.begin(self._panel_of(macro)))

    def enter(self, macro: MacroTile) -> _MacroProduct:
        """The products of a macro-tile."""
        k, args, ahead = self.k, self.args, self.ahead
        made = _MacroProduct(self, macro)
        if self.done is not None:
            self.done.finish, made.product.between = made.finish, self.done.advance
        if ahead is not None:
            halves = ceil_div(k.min(args.m - macro.row * PANEL, macro.rows * PANEL), HALF)
            following = macro.number + macro.columns
            here = self._panel_of(macro.number)
            ahead.enter(here, macro.columns, self._panel_of(following), following < self.macros.total, halves)
        return made

    def _panel_of(self, macro: Val) -> Val:
        """The offset in B's panels of a macro-tile's first column panel."""
        batch = self.args.batch.indices(macro // self.column_panels // self.macros.each_product)
        places = (index * stride for index, stride in zip(batch, self.args.b.batch, strict=True))
        return sum(places, macro % self.column_panels * self.args.depth * PANEL)


class _MacroProduct:
    """The products of one macro-tile."""

    def __init__(self, gemm: _Gemm, macro: MacroTile) -> None:
        self.k, self.gemm, self.macro = gemm.k, gemm, macro
        k, args, schedule, steps = gemm.k, gemm.args, gemm.schedule, gemm.steps
        batch = args.batch.indices(macro.product)
        self.product = _Product(gemm, batch)
        self.f32_fallback = F32Fallback(
            k, self.product.at, args.m, args.n, args.depth, steps, gemm.terms, gemm.ahead is not None,
            gemm.fallback_scratch, gemm.held, STEP,
        )  # fmt: skip
        self.f32_fallback.forget()
        self.is_f32 = k.var(0)
        """Whether a micro-tile's products are f32 ones."""
        self.product.stride = k.select(args.macro_columns > 1, steps, args.k_block)
        self.product.lines = k.max(ceil_div(k.const(PANEL), k.max(macro.rows * 2, 1)), schedule.fetched)
        self.finish = TileEpilogue(k, gemm.epilogue, self.product.operands, args.n, (), gemm.terms)
        self.finish.factors = None if gemm.terms == 1 else gemm.factors

    def multiply(self) -> None:
        """Multiply all K-blocks, and apply the epilogue after the last, unless it is pipelined."""
        k, gemm, macro, steps, k_block = self.k, self.gemm, self.macro, self.gemm.steps, self.gemm.args.k_block
        with k.loop(0, k.max(steps, 1), k_block) as step, k.loop(0, macro.columns) as c:
            split = None if gemm.ahead is None else gemm.ahead.next_k_block(step, c)
            here = _KBlock(macro.row, macro.column + c, step, k.min(k_block, steps - step), split)
            is_last = step + k_block >= steps
            if gemm.tiles is None or gemm.is_interleaved:
                self._micro_tiles(here, c, is_last)
            else:  # separate loops: nothing hides a branch between the products of two halves
                with k.either(self.product.has_fixed_prefetch) as (fixed, other):
                    with fixed, k.either(is_last) as (last, before):
                        with before:
                            self._micro_tiles(replace(here, has_fixed_prefetch=True), c, None)
                        with last:
                            self._micro_tiles(replace(here, has_fixed_prefetch=True), c, is_last)
                    with other:
                        self._micro_tiles(here, c, is_last)

    def _micro_tiles(self, here: _KBlock, c: Val, is_last: Val | None) -> None:
        """Multiply a K-block for the micro-tiles of column panel ``c``. After the last K-block (``is_last``; None: it
        is not) apply the epilogue, each half micro-tile after the products of the next half.
        """
        k, gemm, macro, m = self.k, self.gemm, self.macro, self.gemm.args.m
        is_final = 0 if is_last is None or gemm.done is not None else k.cast(is_last, i64)
        with k.loop(0, macro.rows + is_final) as r:
            slot, row = macro.slot(r, c), macro.row + r
            with k.when(r < macro.rows):
                self._multiply_first(here, r, slot, row)
            if is_last is not None and gemm.done is None:
                with k.when(is_last & (r > 0)):
                    self.finish.half(gemm.scratch, macro.slot(r - 1, c), macro.row + r - 1, 1, here.column, m)
            with k.when(r < macro.rows):
                if gemm.tiles is not None and not gemm.is_interleaved:
                    self._fetch(here, r, 1)
                    with self._unless_f32():
                        self.product.add_lower(here, r, slot)
                if is_last is not None:
                    with k.when(is_last):
                        self._complete(row, here.column, slot)

    def _multiply_first(self, here: _KBlock, r: Val, slot: Val, row: Val) -> None:
        """The products that come before the epilogue of the micro-tile before: all, or those of the upper half."""
        if self.gemm.tiles is None:
            self.product.add_pairs(row, here.column, here.step, here.count, slot)
            return
        for half in range(2 if self.gemm.is_interleaved else 1):
            self._fetch(here, r, half)
        if self.gemm.terms == 3:
            self._multiply_flagged(here, slot, row)
        with self._unless_f32():
            (self.product.add if self.gemm.is_interleaved else self.product.add_upper)(here, r, slot)

    def _multiply_flagged(self, here: _KBlock, slot: Val, row: Val) -> None:
        """Multiply a K-block of a micro-tile in f32, if one of its flags is set (``is_f32``)."""
        k, gemm = self.k, self.gemm
        self.is_f32.set(0)
        with k.when(gemm.is_unrepresentable, likely=False):
            self.is_f32.set(k.cast(self.f32_fallback.is_flagged(row, here.column), i64))
            with k.when(self.is_f32.get().ne(0)):
                self.f32_fallback.multiply(gemm.scratch.at(slot), row, here.column, here.step, here.count)

    def _unless_f32(self) -> AbstractContextManager[None]:
        """A context for products on tiles: skipped where ``_multiply_flagged`` has multiplied in f32."""
        return self.k.when(self.is_f32.get().eq(0), likely=True) if self.gemm.terms == 3 else nullcontext()

    def _fetch(self, here: _KBlock, r: Val, half: int) -> None:
        """Prefetch a K-block's share of what the epilogue of half a micro-tile touches."""
        gemm, args = self.gemm, self.gemm.args
        k_block = here.step // args.k_block
        self.finish.fetch_some(self.macro.row + r, half, here.column, args.m, k_block, gemm.fetched_rows)

    def _complete(self, row: Val, column: Val, slot: Val) -> None:
        """After the last K-block: recompute what is flagged, and apply the epilogue to the upper half."""
        k, gemm = self.k, self.gemm
        self.finish.begin(row, column)
        if gemm.terms < 3:
            self.is_f32.set(0)
            with k.when(gemm.is_unrepresentable, likely=False):
                is_flagged = self.f32_fallback.recompute_flagged(gemm.scratch.at(slot), row, column)
                self.is_f32.set(k.cast(is_flagged, i64))
        if gemm.terms > 1:  # numbers that are multiplied in f32 are not lifted
            factor = k.select(self.is_f32.get().eq(0), k.const(1 / lift_of_left(gemm.terms), f32), 1.0)
            gemm.factors.store(slot // MICRO_TILE, factor)
        if gemm.done is None:
            self.finish.half(gemm.scratch, slot, row, 0, column, gemm.args.m)


class _KBlock(Record):
    """A K-block of the products of a macro-tile's rows with one column panel."""

    row: Val
    """The macro-tile's first row panel."""
    column: Val
    step: Val
    """The first step."""
    count: Val
    """Steps of this K-block."""
    split: Buf | None
    """The K-block of B, if it is split into terms ahead of its products (``gemm.split_ahead``)."""
    has_fixed_prefetch: bool = False
    """There are enough rows that each step prefetches exactly the lines it is unrolled for."""


class _Product:
    """One matrix product inside the kernel."""

    between: Callable[[Val], None] | None = None
    """Called between steps with a number of rows, which it finishes of the macro-tile before."""
    stride: Val
    """Steps from this K-block of B to the next one that is read."""
    lines: Val
    """Lines of the next K-block that a step of half a micro-tile prefetches for each term: a macro-tile fetches all."""

    def __init__(self, gemm: _Gemm, batch: Sequence[Val]) -> None:
        k, args, steps = gemm.k, gemm.args, gemm.steps
        self.k, self.tiles, self.scratch, self.ahead = k, gemm.tiles, gemm.scratch, gemm.ahead
        self.terms, self.schedule, self.m, self.steps, self.is_short = (
            gemm.terms, gemm.schedule, args.m, steps, args.m <= HALF,
        )  # fmt: skip
        a, b = args.a.at(batch), args.b.at(batch)
        sources = (x and replace(x, memory=x.at(batch)) for x in (args.a_source, args.b_source))
        self.at = ProductOperands(a.memory, a.flags, b.memory, b.flags, *sources)
        self.operands = args.epilogue.at(batch)
        """The operands of the epilogue."""
        self.pace = k.const(HALF)  # rows that a step finishes, so that the steps of a macro-tile finish the one before
        for count, rows in ((2, 8), (4, 4), (8, 2), (16, 1)):
            self.pace = k.select(steps >= count, rows, self.pace)

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
        """Whether the matrix has rows in the lower half of a micro-tile, which has more than 16 rows then."""
        return self.m - (k_block.row + r) * PANEL > HALF

    def _add_half(self, k_block: _KBlock, r: Val, slot: Val, half: Val, *, is_short: bool = False) -> None:
        k, size, tiles, scratch = self.k, step_elements(self.terms), self.tiles, self.scratch
        assert tiles is not None
        at = slot + half * (MICRO_TILE // 2)
        sums = [scratch.at(at + j * HALF) for j in SUMS]
        a = self.at.a.at(((k_block.row + r) * self.steps + k_block.step) * size + half * TILE)
        b = (
            self.at.b.at((k_block.column * self.steps + k_block.step) * size)
            if k_block.split is None
            else k_block.split
        )
        lines = self.k.const(self.schedule.fetched) if k_block.has_fixed_prefetch else self.lines
        share, is_fetched = lines * (self.terms * LINE), self.schedule.fetched and k_block.split is None
        fetched = b.at(self.stride * size + (r * 2 + half) * k_block.count * share) if is_fetched else None
        is_first = k_block.step.eq(0)
        if self.terms < 3:
            with continued_sums(tiles, sums, PANEL * 4, is_first):
                self._multiply(
                    a, b, k_block.count, is_short, fetched, None if k_block.has_fixed_prefetch else self.lines
                )
            return
        to = scratch.at(k.select(is_first, at, 0))
        with zeroed_sums(tiles, [to.at(t * HALF) for t in SUMS], PANEL * 4):
            self._multiply(a, b, k_block.count, is_short, fetched, None if k_block.has_fixed_prefetch else self.lines)
        with k.when(~is_first), k.loop(0, MICRO_TILE // 2, 4 * HALF) as i:
            for v in (i + j * HALF for j in range(4)):
                sums[0].store(v, sums[0].load(v, HALF) + scratch.load(v, HALF))

    def add_pairs(self, row: Val, column: Val, step: Val, count: Val, slot: Val) -> None:
        """Multiply ``count`` steps of a micro-tile with bf16 pair instructions, ``PAIR_ROWS`` rows at a time."""
        k, size = self.k, step_elements(self.terms) // 2
        a = self.at.a.as_type(u32).at((row * self.steps + step) * size)
        b = self.at.b.as_type(u32).at((column * self.steps + step) * size)
        with k.either(self.m.eq(1)) as (one, several):
            with one:
                self._add_rows(a, b, count, slot, step.eq(0), 1)
            with several, k.loop(0, k.min(self.m - row * PANEL, PANEL), PAIR_ROWS) as top:
                self._add_rows(a.at(top * HALF), b, count, slot + top * PANEL, step.eq(0), PAIR_ROWS)

    def _add_rows(self, a: Buf, b: Buf, count: Val, slot: Val, is_first: Val, rows: int) -> None:
        k, size, scratch = self.k, step_elements(self.terms) // 2, self.scratch
        places = [[slot + (i * PANEL + j * HALF) for j in range(2)] for i in range(rows)]
        zeros = k.zeros(f32, HALF)
        sums = [[k.var(k.select(is_first, zeros, scratch.load(at, HALF))) for at in line] for line in places]
        with k.loop(0, count) as s, k.loop(0, HALF) as pair:
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


def is_pipelined(schedule: Schedule, epilogue: Epilogue, isa: Isa) -> bool:
    """Whether the epilogue of a macro-tile is interleaved with the products of the next one of the same matrix."""
    return (schedule.is_pipelined or epilogue.is_expensive) and epilogue.batch_axes == 0 and isa.amx
