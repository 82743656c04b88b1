"""Flash attention on AMX tiles, with operands as bf16 terms (``split``).

A work item is 32 query rows of a head. A thread's work items are adjacent, and it packs the keys and values of a head
into its own scratch memory when it reaches the first of them: this needs no extra step, barrier or temporary tensor,
and the packed tiles are in the thread's own L2.

    scores[row, key]      = q k^T                        micro-tiles of 32 x 32 over the width, accumulated from zero
    p                     = exp(scores - max)            along rows, after softcap, mask and causality, in f32
    out_sums[row, column] = correction * out_sums + p v  micro-tiles of 32 x 32 over a block of keys, added in f32

A tile product may sum its pairs in any order if both operands agree. 32 numbers of a row are packed as pairs (i, i +
16), so that two vectors make a row of a tile without a shuffle. Only keys are transposed, 16 by 16.

A few rows are left to ``attention.few_rows``, which reads keys and values once and packs nothing.

**Prefetch.** Rows of a head are far apart in memory, so the hardware prefetcher does not find the next ones. During the
softmax of a block, the operands of the next block and the outputs of this one are prefetched.

If the consumer is a matrix product, results are stored packed for it (``gemm.packed_epilogue``), with a flag for each
row and head.

**f32 fallback.** Masks are added to f32 scores and never become bf16. If q, k or v has numbers that bf16 terms cannot
represent (``split``), the products of that block of rows are computed in f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Attention, View
from sardonyx.providers.cpu.kernels.attention.config import AttentionArgs, MaskArgs, params, softmax_exp
from sardonyx.providers.cpu.kernels.attention.operands import Operands
from sardonyx.providers.cpu.kernels.gemm.amx import TERMS
from sardonyx.providers.cpu.kernels.gemm.macro_tile import MICRO_TILE, MICRO_TILE_NBYTES
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import TERM_STRIDE, place_of, store_step
from sardonyx.providers.cpu.kernels.math import functions
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.math.transpose import transposed
from sardonyx.providers.cpu.kernels.split.bf16 import (
    HALF,
    PANEL,
    STEP,
    TILE,
    is_representable,
    representable_below,
    split_terms,
    step_elements,
)
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import (
    PRODUCTS,
    SCHEDULES,
    SUMS,
    TILES,
    multiply,
    zeroed_sums,
)
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, Var, bf16, bool_, f16, f32, i8, i32, u32
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import Refusal

KEYS = 128
"""Keys of a block: 16 KiB of scores and 8 KiB of each term of p fit L1 together."""

_HIGH_HALF = 0xFFFF_0000
MASKED = -1e36
"""Mask values up to this hide a key."""
SMALL = representable_below(2.0**40)
"""The bound below which products are negligible compared with that."""
_PER_ROW = HALF + 3
"""f32 numbers stored for each row: sixteen partial sums of p, row_max, safe_max and correction."""


def supports(group: Attention, analysis: Analysis) -> Refusal | None:
    if not analysis.isa.amx:
        return Refusal(f"no tiles on {analysis.isa.name}")
    if any(v.dtype not in (f32, bf16, f16) for v in (group.q, group.k, group.v, group.out)):
        return Refusal("of other types than f32, f16 and bf16")
    return None


def mask_class(mask: View | None) -> str:
    """``none``, ``rows`` (contiguous along keys) or ``any``."""
    if mask is None:
        return "none"
    return "rows" if mask.strides[3] == 1 else "any"


def steps(group: Attention, analysis: Analysis) -> list[Step]:
    operands, terms = Operands.of(group, analysis), TERMS[analysis.precision]
    packed, products, plural = operands.packed, len(PRODUCTS[terms]), "" if terms == 1 else "s"
    spec = attention_amx(
        **operands.statics, packed_terms=0 if packed is None else packed.terms, has_unpacked=operands.has_unpacked,
        mask=mask_class(group.mask), terms=terms,
    )  # fmt: skip
    how = f"{products} product{plural} of {terms} bf16 term{plural} on tiles, {PANEL} rows by {KEYS} keys"
    variant = f"{analysis.precision}: {how}" + ("" if packed is None else f"; {packed.description}")
    scratch = _scratch_nbytes(terms, group.k.shape[2], group.q.shape[3], group.v.shape[3])
    return [*operands.before, operands.step(spec, scratch, variant)]


def _scratch_nbytes(terms: int, keys: Known, width: Known, value_width: Known) -> Known:
    size = step_elements(terms) * 2
    key_steps, steps, panels = (expressible(dims.ceildiv(d, PANEL)) for d in (keys, width, value_width))
    fixed = PANEL * (_PER_ROW + KEYS) * 4 + MICRO_TILE_NBYTES + KEYS // STEP * size
    tiled = dims.mul(size, dims.add(steps, dims.mul(key_steps, dims.add(steps, panels))))
    return expressible(dims.total((fixed, tiled, dims.mul(panels, MICRO_TILE_NBYTES))))


@kernel(params)
def attention_amx(
    k: Kernel, args: AttentionArgs[Buf, Val], *, dtypes: tuple[DType, ...], mask: str, mask_dtype: DType, causal: bool,
    softcap: float, terms: int, packed_terms: int, has_unpacked: bool,
) -> None:  # fmt: skip
    """``mask`` is its access class (``mask_class``).

    Results are stored packed in ``packed_terms`` bf16 terms unless that is 0, and unpacked if ``has_unpacked``.
    """
    tiles, heads, rows, shared = Tiles(k), args.heads, args.rows, args.shared
    tiles.configure(count=TILES)
    blocks = ceil_div(rows, PANEL)
    head = _Head(k, tiles, args, terms)
    current = k.var(-1)
    units = args.batch * heads * blocks

    def place(unit: Val) -> tuple[Val, Val, Val]:
        return unit // (heads * blocks), unit // blocks % heads, unit % blocks * PANEL

    with k.share(units) as unit:
        b, h, first = place(unit)
        head.locate(b, h // shared)
        which = unit // blocks // shared
        with k.when(current.ne(which)):
            current.set(which)
            head.split()
        block = _Block(head, b, h, first, rows)
        b_after, h_after, _ = place(k.min(unit + blocks, units - 1))
        ahead = block.prefetch_reads(*place(k.min(unit + 1, units - 1)), *head.operands(b_after, h_after // shared))
        if has_unpacked:
            ahead += block.prefetch_writes()
        if packed_terms:
            ahead += block.prefetch_packed(heads, rows, packed_terms)
        masking = _MaskScores(block, mask, args.mask, causal, softcap)
        visible = masking.visible(k.min(args.keys, first + PANEL + args.past) if causal else args.keys)
        with k.loop(0, visible, KEYS) as start:
            count = k.min(visible - start, KEYS)
            block.scores(start, count)
            masking.emit(start, count, args.past)
            block.softmax(start, count, ahead)
            block.accumulate_values(start, count)
        if has_unpacked:
            block.finish()
        if packed_terms:
            block.store_packed(heads, rows, packed_terms)
    tiles.release()


def _paired_words(k: Kernel, left: Val, right: Val, terms: int, magnitude: Var | None = None) -> list[Val]:
    """Two vectors as one row of a tile, for each term: pairs of their elements in 32-bit words."""
    sides = (split_terms(k, v, terms, magnitude) for v in (left, right))
    return [(even >> 16) | (odd & _HIGH_HALF) for even, odd in zip(*sides, strict=True)]


class _Head:
    """The packed keys and values of a head, and the layout of a thread's scratch memory."""

    def __init__(self, k: Kernel, tiles: Tiles, args: AttentionArgs[Buf, Val], terms: int) -> None:
        self.k, self.tiles, self.keys, self.terms, self.args = k, tiles, args.keys, terms, args
        self.size = step_elements(terms)
        self.width, self.value_width = args.width, args.value_width
        self.steps, self.panels, self.key_steps = (ceil_div(d, STEP) for d in (self.width, self.value_width, args.keys))
        self.magnitude = k.var(k.zeros(u32, HALF))
        at = k.scratch(i8)

        def allocate(nbytes: Val | int, dtype: DType) -> Buf:
            nonlocal at
            here, at = at.as_type(dtype), at.at(nbytes)
            return here

        tiled = self.size * 2
        self.total = allocate(PANEL * HALF * 4, f32)
        self.row_max, self.safe_max, self.correction = (allocate(PANEL * 4, f32) for _ in range(3))
        self.scores = allocate(PANEL * KEYS * 4, f32)
        self.product = allocate(MICRO_TILE_NBYTES, f32)
        self.p = allocate(KEYS // STEP * tiled, bf16)
        self.q = allocate(self.steps * tiled, bf16)
        self.keys_tiled = allocate(self.key_steps * self.steps * tiled, bf16)
        self.values_tiled = allocate(self.key_steps * self.panels * tiled, bf16)
        self.out_sums = allocate(self.panels * MICRO_TILE_NBYTES, f32)

    def locate(self, b: Val, head: Val) -> None:
        self.keys_at, self.values_at = self.operands(b, head)

    def operands(self, b: Val, head: Val) -> tuple[Buf, Buf]:
        """The keys and values of a head."""
        n = self.args
        return n.k_strides.at(n.k, b, head), n.v_strides.at(n.v, b, head)

    def rows_of(self, b: Val, h: Val, first: Val) -> Buf:
        return self.args.q_strides.at(self.args.q, b, h, first)

    def split(self) -> None:
        self.magnitude.set(self.k.zeros(u32, HALF))
        self._split_keys()
        self._split_values()

    def masks(self, size: Val, first: Val) -> list[Val]:
        """Masks of the two vectors of 32 numbers from ``first`` on."""
        return [self.k.mask(size - first - side * HALF, HALF) for side in range(2)]

    def _split_keys(self) -> None:
        """Keys beyond the end repeat the last one: their scores are not used."""
        k, terms = self.k, self.terms
        stage = k.local(u32, terms * HALF * HALF)
        with k.loop(0, self.key_steps) as panel, k.loop(0, self.steps) as step, k.loop(0, 2) as half:
            masks = self.masks(self.width, step * STEP)
            with k.loop(0, HALF) as r:
                key = k.min(panel * PANEL + half * HALF + r, self.keys - 1)
                row = self.keys_at.at(key * self.args.k_strides.s + step * STEP)
                left, right = (row.load(i * HALF, HALF, mask) for i, mask in enumerate(masks))
                for i, words in enumerate(_paired_words(k, left, right, terms, self.magnitude)):
                    stage.store((i * HALF + r) * HALF, words)
            to = self.keys_tiled.at((panel * self.steps + step) * self.size + half * TILE).as_type(u32)
            with k.loop(0, terms) as term:
                transposed_words = transposed([stage.load((term * HALF + line) * HALF, HALF) for line in range(HALF)])
                for j, words in enumerate(transposed_words):
                    to.store(term * TILE + j * HALF, words)

    def _split_values(self) -> None:
        """Values beyond the end repeat the last one: their weights are 0."""
        k = self.k
        with k.loop(0, self.panels) as panel, k.loop(0, self.key_steps) as step, k.loop(0, 2) as half:
            column = panel * PANEL + half * HALF
            there = k.mask(self.value_width - column, HALF)
            to = self.values_tiled.at((panel * self.key_steps + step) * self.size + half * TILE).as_type(u32)
            with k.loop(0, HALF) as pair:
                keys = (k.min(step * STEP + pair + i * HALF, self.keys - 1) for i in range(2))
                even, odd = (
                    self.values_at.at(key * self.args.v_strides.s + column).load(0, HALF, there) for key in keys
                )
                for term, words in enumerate(_paired_words(k, even, odd, self.terms, self.magnitude)):
                    to.store(pair * HALF + term * TILE, words)


@dataclass(frozen=True)
class _PrefetchLines:
    """Cache lines to prefetch, for each row of a block."""

    start: Callable[[Val], Buf]
    """The address of a row's first line."""
    step: int
    """Elements from line to line."""
    last: Val
    """An element of the last line."""
    write: bool = False


def _in_line(memory: Buf) -> int:
    return LINE_NBYTES // memory.dtype.itemsize


class _Block:
    """Emits 32 query rows of a head, one block of keys after the other."""

    def __init__(self, head: _Head, b: Val, h: Val, first: Val, rows: Val) -> None:
        self.head, k, n = head, head.k, head.args
        self.k, self.first, self.high = k, first, k.min(rows - first, PANEL)
        self.rows_at = head.rows_of(b, h, first)
        self.b, self.h = b, h
        magnitude = k.var(head.magnitude.get())
        words_at = head.q.as_type(u32)
        with k.loop(0, self.high) as r, k.loop(0, head.steps) as step:
            row = self.rows_at.at(r * n.q_strides.s + step * STEP)
            masks = head.masks(head.width, step * STEP)
            left, right = (row.load(i * HALF, HALF, mask) * n.scale for i, mask in enumerate(masks))
            for term, words in enumerate(_paired_words(k, left, right, head.terms, magnitude)):
                words_at.store(step * (head.size // 2) + term * TILE + r * HALF, words)
        self.needs_fallback = ~is_representable(magnitude.get())
        self.is_small = magnitude.get().max() < SMALL
        with k.loop(0, head.panels * MICRO_TILE, HALF) as i:
            head.out_sums.store(i, k.zeros(f32, HALF))
        with k.loop(0, self.high) as r:
            head.total.store(r * HALF, k.zeros(f32, HALF))
        for half in range(2):
            head.row_max.store(half * HALF, k.const(-math.inf, f32, HALF))

    def _multiply(self, a: Buf, b: Buf, steps: Val, to: Buf, stride: int) -> None:
        """A micro-tile product, stored in rows ``stride`` elements apart."""
        k, tiles, terms = self.k, self.head.tiles, self.head.terms
        with (
            k.loop(0, ceil_div(self.high, HALF)) as half,
            zeroed_sums(tiles, [to.at((half * stride + t) * HALF) for t in SUMS], stride * 4),
        ):
            multiply(tiles, a.at(half * TILE), b, steps, terms, SCHEDULES[terms])

    def scores(self, start: Val, count: Val) -> None:
        k, head = self.k, self.head
        with k.loop(0, ceil_div(count, PANEL)) as panel:
            b = head.keys_tiled.at((start // PANEL + panel) * head.steps * head.size)
            self._multiply(head.q, b, head.steps, head.scores.at(panel * PANEL), KEYS)
        with k.when(self.needs_fallback, likely=False), k.loop(0, self.high) as r, k.loop(0, count) as j:
            row, key = (
                self.rows_at.at(r * head.args.q_strides.s),
                head.keys_at.at((start + j) * head.args.k_strides.s),
            )
            total = k.var(k.zeros(f32, HALF))
            for t in k.tiles(head.width, HALF):
                total.set(k.fma(row.load(t) * head.args.scale, key.load(t), total))
            head.scores.store(r * KEYS + j, total.sum())

    def prefetch_reads(self, b: Val, h: Val, first: Val, keys_at: Buf, values_at: Buf) -> list[_PrefetchLines]:
        """The query rows of the next block, and this block's share of the next head's keys and values.

        The share is the keys with the same indices as this block's rows: all of them, if there are as many rows as
        keys.
        """
        head, n = self.head, self.head.args
        rows_at = head.rows_of(b, h, first)

        def key(r: Val) -> Val:
            return self.k.min(self.first + r, head.keys - 1)

        return [
            _PrefetchLines(lambda r: rows_at.at(r * n.q_strides.s), _in_line(rows_at), head.width - 1),
            _PrefetchLines(lambda r: keys_at.at(key(r) * n.k_strides.s), _in_line(keys_at), head.width - 1),
            _PrefetchLines(lambda r: values_at.at(key(r) * n.v_strides.s), _in_line(values_at), head.value_width - 1),
        ]

    def prefetch_writes(self) -> list[_PrefetchLines]:
        out_at, stride = self.out_at, self.head.args.out_strides.s
        return [
            _PrefetchLines(lambda r: out_at.at(r * stride), _in_line(out_at), self.head.value_width - 1, write=True)
        ]

    def prefetch_packed(self, heads: Val, rows: Val, terms: int) -> list[_PrefetchLines]:
        """The packed output: a row has a cache line in every term of its K-steps."""
        last = (self.head.panels * terms - 1) * TERM_STRIDE
        return [_PrefetchLines(lambda r: self._packed_at(r, heads, rows, terms), TERM_STRIDE, last, write=True)]

    def softmax(self, start: Val, count: Val, ahead: list[_PrefetchLines]) -> None:
        """p = exp(scores - max), in f32 and as packed terms. Meanwhile the lines of ``ahead`` are prefetched."""
        k, head = self.k, self.head
        words_at = head.p.as_type(u32)
        with k.loop(0, self.high) as r:
            safe_max, line = k.splat(head.safe_max.load(r), HALF), head.scores.at(r * KEYS)
            totals = [k.var(head.total.load(r * HALF, HALF) * head.correction.load(r)), k.var(k.zeros(f32, HALF))]
            fetched = [(lines, lines.start(r)) for lines in ahead]
            with k.loop(0, ceil_div(count, STEP)) as step:
                for lines, row in fetched:
                    at = k.min((start // STEP + step) * lines.step, lines.last)
                    row.prefetch(at, write=lines.write, locality=3 if lines.write else 2)
                places = (step * STEP, step * STEP + HALF)
                left, right = (softmax_exp(k, line.load(at, HALF) - safe_max) for at in places)
                for at, p, total in zip(places, (left, right), totals, strict=True):
                    line.store(at, p)
                    total += p
                for term, words in enumerate(_paired_words(k, left, right, head.terms)):
                    words_at.store(step * (head.size // 2) + term * TILE + r * HALF, words)
            head.total.store(r * HALF, totals[0].get() + totals[1].get())

    def accumulate_values(self, start: Val, count: Val) -> None:
        k, head, product = self.k, self.head, self.head.product
        with k.loop(0, head.panels) as panel:
            b = head.values_tiled.at((panel * head.key_steps + start // STEP) * head.size)
            self._multiply(head.p, b, ceil_div(count, STEP), product, PANEL)
            with k.when(self.needs_fallback, likely=False):
                self._accumulate_f32(start, count, panel * PANEL)
            out_sums = head.out_sums.at(panel * MICRO_TILE)
            with k.loop(0, self.high) as r:
                correction = k.splat(head.correction.load(r), HALF)
                for at in (r * PANEL, r * PANEL + HALF):
                    out_sums.store(at, k.fma(out_sums.load(at, HALF), correction, product.load(at, HALF)))

    def _accumulate_f32(self, start: Val, count: Val, column: Val) -> None:
        k, head = self.k, self.head
        masks = head.masks(head.value_width, column)
        with k.loop(0, self.high) as r:
            totals = [k.var(k.zeros(f32, HALF)) for _ in masks]
            with k.loop(0, count) as j:
                values = head.values_at.at((start + j) * head.args.v_strides.s + column)
                for i, (total, mask) in enumerate(zip(totals, masks, strict=True)):
                    total.set(k.fma(head.scores.load(r * KEYS + j), values.load(i * HALF, HALF, mask), total))
            for i, total in enumerate(totals):
                head.product.store(r * PANEL + i * HALF, total)

    def finish(self) -> None:
        k, head, n = self.k, self.head, self.head.args
        with k.loop(0, self.high) as r:
            out, inverse = self.out_at.at(r * n.out_strides.s), self._inverse(r)
            for t in k.tiles(head.value_width, HALF):
                out_sums = head.out_sums.at(t.index // PANEL * MICRO_TILE + r * PANEL + t.index % PANEL)
                out.store(t, out_sums.load(0, HALF) * inverse)

    @property
    def out_at(self) -> Buf:
        n = self.head.args
        assert n.out is not None
        return n.out_strides.at(n.out, self.b, self.h, self.first)

    def _inverse(self, r: Val) -> Val:
        total = self.head.total.load(r * HALF, HALF).sum()
        return 1.0 / self.k.select(total.eq(0.0), 1.0, total)

    def store_packed(self, heads: Val, rows: Val, terms: int) -> None:
        """The results of a head are ``panels`` K-steps of the product that reads them."""
        k, head, size = self.k, self.head, step_elements(terms)
        with k.loop(0, self.high) as r:
            row, inverse = self.b * rows + self.first + r, self._inverse(r)
            assert head.args.flags is not None
            flag = head.args.flags.at(row * heads + self.h)
            flag.store(0, 0)
            to = self._packed_at(r, heads, rows, terms)
            with k.loop(0, head.panels) as panel:
                out_sums = head.out_sums.load(panel * MICRO_TILE + r * PANEL, PANEL)
                store_step(to.at(panel * size), out_sums * inverse, terms, flag)

    def _packed_at(self, r: Val, heads: Val, rows: Val, terms: int) -> Buf:
        """The packed output of a row of this head."""
        tiles = self.head.args.tiles
        assert tiles is not None
        size, row = self.head.panels * step_elements(terms), self.b * rows + self.first + r
        return tiles.at(place_of(row, heads * size) + self.h * size)


class _MaskScores:
    """The pass over a block's scores that applies softcap, mask and causality, and updates the row maxima."""

    def __init__(self, block: _Block, mask: str, args: MaskArgs[Buf, Val] | None, causal: bool, softcap: float) -> None:
        self.block, self.k, self.mask, self.args = block, block.k, mask, args
        self.memory = None if args is None else args.memory.at(block.b * args.b + block.h * args.h)
        self.causal, self.softcap = causal, softcap

    def visible(self, keys: Val) -> Val:
        """The number of keys without trailing ones that the mask hides from all rows, whose p is 0.

        All keys count if the mask hides every key from some row: the softmax of such a row ignores the mask.
        """
        if self.memory is None:
            return keys
        k, left = self.k, self.k.var(keys)
        is_open = k.var(k.cast(self.block.is_small & (keys > STEP), i32))
        with k.loop_while(lambda: is_open.get().ne(0)):
            start = (left.get() - 1) // STEP * STEP
            with k.loop(0, self.block.high) as r:
                bias = self._bias_of(self.block.first + r, start)
                for t in k.tiles(left.get() - start, HALF):
                    is_seen = ~(t.keep(self._bias(bias, t), -math.inf) <= MASKED)
                    is_open.set(is_open.get() & k.cast(~is_seen.any(), i32))
            left.set(k.select(is_open.get().ne(0), start, left.get()))
            is_open.set(is_open.get() & k.cast(left.get() > 0, i32))
        with k.when(left.get() < keys), k.loop(0, self.block.high) as r:
            bias, any_ = self._bias_of(self.block.first + r, k.const(0)), k.var(k.zeros(i32, HALF))
            for t in k.tiles(left.get(), HALF):
                any_.set(any_.get() | k.cast(t.keep(self._bias(bias, t), -math.inf) > MASKED / 2, i32))
            left.set(k.select(any_.get().ne(0).any(), left.get(), keys))
        return left.get()

    def _bias_of(self, row: Val, start: Val) -> Buf:
        assert self.memory is not None and self.args is not None
        return self.memory.at(row * self.args.q + start * self.args.k)

    def emit(self, start: Val, count: Val, past: Val) -> None:
        k, head = self.k, self.block.head
        rest = count % STEP
        is_half = (rest > 0) & (rest <= HALF)
        with k.loop(0, self.block.high) as r:
            line, row = head.scores.at(r * KEYS), self.block.first + r
            bias = None if self.memory is None else self._bias_of(row, start)
            tops = [k.var(k.const(-math.inf, f32, HALF)) for _ in range(2)]
            for vectors in k.blocks(count, HALF, unroll=2):
                for row_max, t in zip(tops, vectors, strict=False):
                    s = line.load(t.index, HALF)
                    adjusted = t.keep(self._adjusted(s, bias, t, row + past - start), -math.inf)
                    if adjusted is not s:
                        line.store(t.index, adjusted)
                    row_max.set(k.max(row_max, adjusted))
            with k.when(is_half):  # the second half of the last K-step has no keys
                line.store(count - rest + HALF, k.const(-math.inf, f32, HALF))
            largest = k.max(tops[0], tops[1].get()).max()
            head.safe_max.store(r, k.max(head.row_max.load(r), largest))
        for half in range(2):
            old, new = (at.load(half * HALF, HALF) for at in (head.row_max, head.safe_max))
            safe_max = k.select(new.eq(-math.inf), 0.0, new)
            head.correction.store(half * HALF, softmax_exp(k, old - safe_max))
            head.safe_max.store(half * HALF, safe_max)
            head.row_max.store(half * HALF, new)

    def _adjusted(self, s: Val, bias: Buf | None, t: Any, last: Val) -> Val:
        """``last`` is the last visible key of the row, relative to the block's first key."""
        k = self.k
        if self.softcap:
            s = functions.tanh(k, s / self.softcap) * self.softcap
        if bias is not None:
            s = s + self._bias(bias, t)
        if self.causal:
            s = k.select(k.iota(i32, HALF) > k.cast(last - t.index, i32), k.const(-math.inf, f32, HALF), s)
        return s

    def _bias(self, memory: Buf, t: Any) -> Val:
        k = self.k
        if self.mask == "rows":
            v = memory.load(t)
        else:
            assert self.args is not None
            v = memory.gather((k.iota(lanes=HALF) + t.index) * self.args.k, t.mask)
        return k.select(v, k.const(0.0, f32, HALF), -math.inf) if v.dtype is bool_ else v
