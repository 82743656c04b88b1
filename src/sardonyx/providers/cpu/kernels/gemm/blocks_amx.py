"""Products of many rows with a weight in blocks (``gemm.blocks``), on AMX tiles.

A code minus its zero point is exact in one bf16 term. Only A is split (``split.bf16``), so three terms take three
products, not six. (Minus a real zero point, it takes as many terms as A.) The sums of a segment are scaled, in f32,
when they are added to those before.

**Blocking.** A K-block of a panel of B, of up to ``KC_STEPS`` steps of 32 rows, is unpacked into 16 KiB of scratch
memory, in L1, and multiplied with all row panels of a macro-tile: 65 cycles a step, where one row panel and three terms
take 192. A segment fills whole steps. Where it begins or ends inside one, as blocks of 16 rows do, the other half of
the step is zero, and the neighbour multiplies the step again.

**Accumulation.** Tiles of sums are stored to one of two places in scratch memory, and added while the products of the
next segment run. Numbers of A out of range are recomputed in f32 after the last K-block, as with fewer terms
(``gemm.f32_fallback``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue, EpilogueArgs, operands_of
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, MatrixArgs, Problem
from sardonyx.providers.cpu.kernels.gemm import amx, blocks_pack
from sardonyx.providers.cpu.kernels.gemm.blocks import BlockFormat, BlocksArgs, PanelReader
from sardonyx.providers.cpu.kernels.gemm.blocks_few_rows import most_rows
from sardonyx.providers.cpu.kernels.gemm.f32_fallback import (
    SCRATCH_NBYTES,
    F32Fallback,
    ProductOperands,
    any_flag_set,
)
from sardonyx.providers.cpu.kernels.gemm.macro_tile import MICRO_TILE, Blocking, MacroTile, MacroTiles
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import TileEpilogue
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import (
    HALF,
    PANEL,
    STEP,
    TILE,
    TiledArgs,
    lift_of_left,
    split_a,
    split_terms,
    step_elements,
    vnni_pairs,
)
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import PRODUCTS, SUMS, TILES, A, B
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bf16, f32, i32, i64, u16, u32
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal

KC_STEPS = 8
B_STEP = 2 * TILE
"""bf16 elements of a step of B, of one term."""
MIDDLE = 16
"""The place of 0 in the table of 4-bit codes minus zero points, which lie between -15 and 15."""


def terms(p: Problem, analysis: Analysis) -> int:
    """The bf16 terms that A is split into."""
    return amx.term_count(analysis.precision, p.a.dtype)


def supports(p: Problem, analysis: Analysis) -> Refusal | None:
    if not analysis.isa.amx:
        return Refusal(f"no tiles on {analysis.isa.name}")
    return blocks_pack.refusal(p, analysis)


def pays(p: Problem, analysis: Analysis) -> Refusal | None:
    limits = (
        ("rows", p.m, most_rows(p, analysis) + 1),
        ("columns", p.n, amx.LEAST_COLUMNS),
        ("depth", p.k, amx.LEAST_DEPTH),
    )
    small = [f"{size} {name}" for name, size, low in limits if isinstance(size, int) and size < low]
    return Refusal(f"too small for tiles: {', '.join(small)}") if small else None


def steps(p: Problem, analysis: Analysis) -> list[Step]:
    count = terms(p, analysis)
    made, p = [y.storage for y in p.outputs], amx.with_packed_panels(p, analysis)
    epilogue, blocking, b = Epilogue.of(p), Blocking.of(count * 2, p.k, analysis.isa), blocks_pack.weight(p, analysis)
    before, a = split_a(p, count, analysis)
    packed = analysis.packed_operands.get(p.a.storage)
    a_dtype = p.a.dtype if packed is None or a is not packed.tiled else None
    spec = multiply_blocks_amx(terms=count, a_dtype=a_dtype, form=b.form, epilogue=epilogue)
    source = None if a_dtype is None else p.a.operand
    args = BlocksAmxArgs[Ref, Known](
        a.operand, source, b.operand, BatchArgs(p.batch), p.m, p.n, p.k, blocking.rows, blocking.columns,
        operands_of(p.extra, p.outputs),
    )  # fmt: skip
    number = len(_pairs(count, _b_terms(b.form, count)))
    why = f"{analysis.precision}: {number} product{'s'[: number - 1]} of bf16 terms on tiles: {b.text}"
    if a_dtype is None:
        why += "; A packed by its producer"
    why += "".join(f"; {analysis.packed_operands[s].description}" for s in made if s in analysis.packed_operands)
    scratch = SCRATCH_NBYTES + _k_block_nbytes(b.form, count) + blocking.scratch_nbytes(1, 1)
    return [*before, Step(spec, flat(args=args), epilogue.writes, p.nodes, scratch, p.flops, b.nbytes, why)]


def _b_terms(form: BlockFormat, terms: int) -> int:
    """The bf16 terms of B."""
    return terms if form.zero is not None and form.zero.is_float else 1


def _pairs(terms: int, b_terms: int) -> tuple[tuple[int, int], ...]:
    """Which terms of A and B are multiplied, small ones first."""
    return PRODUCTS[terms] if b_terms > 1 else tuple((p, 0) for p in reversed(range(terms)))


def _k_block_nbytes(form: BlockFormat, terms: int) -> int:
    """Scratch bytes of a K-block of B: at least a segment."""
    return max(KC_STEPS, -(-form.segment // STEP) * _b_terms(form, terms)) * B_STEP * bf16.itemsize


class BlocksAmxArgs(Arguments[M, N]):
    """The parameters of ``multiply_blocks_amx``."""

    is_inline: ClassVar[bool] = True
    a: TiledArgs[M, N]
    a_source: MatrixArgs[M, N] | None
    """A as it was before it was split, if a step of its own does that."""
    b: BlocksArgs[M, N]
    batch: BatchArgs[M, N]
    m: N
    n: N
    depth: N
    macro_rows: N
    macro_columns: N
    """Row panels and column panels of a macro-tile, at most."""
    epilogue: EpilogueArgs[M, N]


def _params(terms: int, a_dtype: DType | None, form: BlockFormat, epilogue: Epilogue) -> Params:
    axes = epilogue.batch_axes
    source = None if a_dtype is None else MatrixArgs.declared(a_dtype, axes)
    return {"args": BlocksAmxArgs[Memory, DType](
        TiledArgs.declared(axes, has_flags=True), source, BlocksArgs.declared(form), BatchArgs.declared(axes),
        i64, i64, i64, i64, i64, epilogue.declared,
    )}  # fmt: skip


@kernel(_params)
def multiply_blocks_amx(
    k: Kernel, args: BlocksAmxArgs[Buf, Val], *, terms: int, a_dtype: DType | None, form: BlockFormat,
    epilogue: Epilogue,
) -> None:  # fmt: skip
    """A batch of products with a weight in blocks."""
    m, n = args.m, args.n
    tiles = Tiles(k)
    tiles.configure(k.select(m <= HALF, k.max(m, 1), HALF), short=(*SUMS, A), count=TILES)
    row_panels, column_panels = ceil_div(m, PANEL), ceil_div(n, PANEL)
    flags = args.a.flags
    assert flags is not None
    is_unrepresentable = any_flag_set(k, [(flags.memory, flags.count)])
    macros = MacroTiles(
        k, None, row_panels, column_panels, args.macro_rows, args.macro_columns, count=args.batch.count(k)
    )  # fmt: skip
    scratch = _Scratch(k, _k_block_nbytes(form, terms))
    with macros.each() as macro:
        product = _MacroProduct(k, tiles, args, form, epilogue, terms, scratch, macro)
        product.multiply()
        product.finish(is_unrepresentable)
    tiles.release()


class _Scratch:
    """Scratch memory: for the f32 fallback, a K-block of B in tiles, two places for sums of tiles, and the sums."""

    def __init__(self, k: Kernel, k_block_nbytes: int) -> None:
        self.fallback = k.scratch(f32)
        self.b = k.scratch(bf16, SCRATCH_NBYTES)
        self.sums = k.scratch(f32, SCRATCH_NBYTES + k_block_nbytes)
        """A micro-tile for the sums of two segments of half a micro-tile, then those of the macro-tile."""
        self.held = k.var(-1)


class _MacroProduct:
    """The products of one macro-tile."""

    def __init__(
        self, k: Kernel, tiles: Tiles, args: BlocksAmxArgs[Buf, Val], form: BlockFormat, epilogue: Epilogue, terms: int,
        scratch: _Scratch, macro: MacroTile,
    ) -> None:  # fmt: skip
        self.k, self.tiles, self.args, self.form, self.terms = k, tiles, args, form, terms
        self.scratch, self.macro = scratch, macro
        batch = args.batch.indices(macro.product)
        self.a = args.a.at(batch)
        self.segments, self.steps = ceil_div(args.depth, form.segment), ceil_div(args.depth, STEP)
        self.each = -(-form.segment // STEP)
        """Steps that a segment touches."""
        self.b_terms = _b_terms(form, terms)
        self.b_step = self.b_terms * B_STEP
        """bf16 elements of a step of B."""
        self.many = max(KC_STEPS // (self.each * self.b_terms), 1)
        """Segments of a K-block."""
        self.epilogue = TileEpilogue(k, epilogue, args.epilogue.at(batch), args.n, (), terms)
        source = args.a_source
        source = None if source is None else MatrixArgs(source.at(batch), source.row, source.col, ())
        operands = ProductOperands(self.a.memory, self.a.flags, scratch.b, None, source, None)
        self.f32_fallback = _DecodingFallback(
            k, operands, args.m, args.n, args.depth, self.steps, terms, False, scratch.fallback, scratch.held, STEP,
            self._reader,
        )  # fmt: skip
        self.f32_fallback.forget()

    def _reader(self, column: Val) -> PanelReader:
        return PanelReader(self.k, self.form, self.args.b, column, self.segments)

    def multiply(self) -> None:
        """All products: K-block by K-block, column panel by column panel."""
        k, macro = self.k, self.macro
        halves = ceil_div(k.min(self.args.m - macro.row * PANEL, macro.rows * PANEL), HALF)
        with k.loop(0, self.segments, self.many) as first, k.loop(0, macro.columns) as c:
            count, reader = k.min(self.many, self.segments - first), self._reader(macro.column + c)
            with k.loop(0, count) as s:
                self._unpack(reader, first + s, self.scratch.b.at(s * (self.each * self.b_step)))
            with k.loop(0, halves) as half:
                slot = macro.slot(half >> 1, c) + (half & 1) * (MICRO_TILE // 2)
                with k.loop(0, count) as s:
                    self._multiply(first + s, s, macro.row * 2 + half)
                    with k.when(s > 0):
                        self._add(reader, first + s - 1, s - 1, slot)
                self._add(reader, first + count - 1, count - 1, slot)

    def finish(self, is_unrepresentable: Val) -> None:
        """Recompute what is flagged, and apply the epilogue."""
        k, macro, m = self.k, self.macro, self.args.m
        with k.loop(0, macro.columns) as c, k.loop(0, macro.rows) as r:
            slot, row, column = macro.slot(r, c), macro.row + r, macro.column + c
            self.epilogue.begin(row, column)
            with k.when(is_unrepresentable, likely=False):
                _ = self.f32_fallback.recompute_flagged(self.scratch.sums.at(slot), row, column)
            for half in range(2):
                with k.when(m - row * PANEL > half * HALF):
                    self.epilogue.half(self.scratch.sums, slot, row, half, column, m)

    # -- one segment

    def _unpack(self, reader: PanelReader, s: Val, to: Buf) -> None:
        """A segment as rows of tiles [step][term][side][pair of rows][16 columns][2]."""
        k, form = self.k, self.form
        size, pairs = form.segment // 2, form.rows // 2
        words = to.as_type(u32)
        before = (s & 1) * (STEP // 4) if form.segment % STEP else k.const(0)
        """Pairs of the first step that belong to the segment before."""

        def place(pair: Val) -> Val:
            return (pair >> 4) * (self.b_step // 2) + (pair & (HALF - 1)) * HALF

        for side in range(2):
            if form.zero is not None and form.zero.is_float:
                rows_of = _real_values(k, form, reader.zero(s, side * HALF, HALF), self.b_terms)
            else:
                rows_of = _values(k, form, reader.zero_code(s, side * HALF, HALF))
            if form.segment % STEP:
                empty = k.select(before > 0, k.const(0), k.const(size))
                with k.loop(empty, empty + STEP // 4) as pair:
                    for term in range(self.b_terms):
                        words.store(place(pair) + (term * 2 + side) * (TILE // 2), k.zeros(u32, HALF))
            with k.loop(0, form.segment // form.rows) as i:
                given = reader.words(s, i, side * HALF, HALF)
                for number in range(pairs):
                    at = place(before + i * pairs + number) + side * (TILE // 2)
                    for term, row in enumerate(rows_of(given, _shift(form, number))):
                        words.store(at + term * TILE, row)

    def _multiply(self, segment: Val, s: Val, tile: Val) -> None:
        """The products of a segment with 16 rows, stored to one of the two places."""
        k, tiles, form, size = self.k, self.tiles, self.form, step_elements(self.terms)
        first = segment * form.segment // STEP
        a = self.a.memory.at(((tile >> 1) * self.steps + first) * size + (tile & 1) * TILE)
        b = self.scratch.b.at(s * (self.each * self.b_step))
        for t in SUMS:
            tiles.zero(t)

        def step(t: Val | int) -> None:
            held_a, held_b, last = -1, -1, 0
            for p, q in _pairs(self.terms, self.b_terms):
                for side in (last, 1 - last):
                    if held_a != p:
                        tiles.load(A, a.at(t * size + p * 2 * TILE), is_non_temporal=True)
                        held_a = p
                    if held_b != q * 2 + side:
                        held_b = q * 2 + side
                        tiles.load(B, b.at(t * self.b_step + held_b * TILE))
                    tiles.dot_bf16(SUMS[side], A, B)
                    last = side

        if self.each == 1:
            step(0)
        else:
            with k.loop(0, k.min(self.each, self.steps - first)) as number:
                step(number)
        to = self._stage(s)
        for t in SUMS:
            tiles.store(t, to.at(t * HALF), PANEL * 4)

    def _stage(self, s: Val) -> Buf:
        return self.scratch.sums.at((s & 1) * (MICRO_TILE // 2))

    def _add(self, reader: PanelReader, segment: Val, s: Val, slot: Val) -> None:
        """Scale the sums of a segment, whose left numbers are lifted, and add them to those of half a micro-tile."""
        k, stage, sums = self.k, self._stage(s), self.scratch.sums.at(slot)
        scales = [reader.scale(segment, side * HALF, HALF) for side in range(2)]
        if self.terms > 1:
            scales = [scale * (1 / lift_of_left(self.terms)) for scale in scales]
        with k.either(segment.eq(0)) as (first, later):
            for branch, is_first in ((first, True), (later, False)):
                with branch, k.loop(0, HALF, 4) as top:
                    for i in range(4):
                        for side, scale in enumerate(scales):
                            at = (top + i) * PANEL + side * HALF
                            x = stage.load(at, HALF)
                            sums.store(at, x * scale if is_first else k.fma(x, scale, sums.load(at, HALF)))


class _DecodingFallback(F32Fallback):
    """The fallback with B decoded from codes."""

    reader: Callable[[Val], PanelReader]

    def _decode_columns(self, to: Buf, column: Val, step: Val, many: Val, length: Val) -> None:
        self.reader(column).decode(step * self.unit, length, self.k.const(0), PANEL, to)


def _shift(form: BlockFormat, pair: int) -> int:
    """Where the codes of a pair of rows begin in each half of a word."""
    return (0, 8, 4, 12)[pair] if form.bits == 4 else (0, 8)[pair]


def _values(k: Kernel, form: BlockFormat, zero: Val) -> Callable[[Val, int], list[Val]]:
    """What makes rows of tiles of words: the values, in bf16, of the pairs of codes after a shift."""
    mask = (1 << form.bits) - 1
    if form.bits == 4 and not k.isa.is_emulated:
        heads = (bf16_bits(i - MIDDLE) for i in range(PANEL))
        table = k.table(list(heads), u16).load(0, PANEL)
        to_middle = k.bitcast((MIDDLE - zero) * 0x0001_0001, u16)

        def looked_up(words: Val, shift: int) -> list[Val]:
            at = k.bitcast((words >> shift) & (mask * 0x0001_0001), u16) + to_middle
            return [k.bitcast(k.intrinsic("llvm.x86.avx512.permvar.hi.512", [table, at], u16, PANEL), u32)]

        return looked_up

    def converted(words: Val, shift: int) -> list[Val]:
        halves = [k.bitcast((words >> at) & mask, i32) - zero for at in (shift, shift + 16)]
        low, high = (k.bitcast(k.cast(value, f32), u32) for value in halves)
        return [vnni_pairs(low, high)]

    return converted


def _real_values(k: Kernel, form: BlockFormat, zero: Val, terms: int) -> Callable[[Val, int], list[Val]]:
    """The same for real zero points: the rows of each term."""
    mask = (1 << form.bits) - 1

    def split(words: Val, shift: int) -> list[Val]:
        halves = [k.cast(k.bitcast((words >> at) & mask, i32), f32) - zero for at in (shift, shift + 16)]
        sides = (split_terms(k, value, terms) for value in halves)
        return [vnni_pairs(even, odd) for even, odd in zip(*sides, strict=True)]

    return split


def bf16_bits(number: int) -> int:
    """A small integer as bf16."""
    import struct

    return int.from_bytes(struct.pack("<f", float(number))[2:], "little")
