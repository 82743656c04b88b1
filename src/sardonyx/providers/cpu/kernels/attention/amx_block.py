"""32 query rows of a head: scores, softmax and sums of values, block of keys by block of keys (``attention.amx``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sardonyx.providers.cpu.kernels.attention.amx_head import KEYS, AmxHead, Lifted, largest_of, paired_words
from sardonyx.providers.cpu.kernels.attention.config import softmax_exp
from sardonyx.providers.cpu.kernels.gemm.macro_tile import MICRO_TILE
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import TERM_STRIDE, place_of, store_step
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import (
    HALF,
    PANEL,
    STEP,
    TILE,
    is_representable,
    reciprocal,
    representable_below,
    step_elements,
)
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import (
    SCHEDULES,
    SUMS,
    multiply,
    zeroed_sums,
)
from sardonyx.providers.cpu.language.values import Buf, Val, Var, f32, u32
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES
from sardonyx.records import Record

SMALL = representable_below(2.0**40)
"""The bound below which products are negligible compared with that."""


class _PrefetchLines(Record):
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


class QueryBlock:
    """Emits 32 query rows of a head, one block of keys after the other."""

    def __init__(self, head: AmxHead, b: Val, h: Val, first: Val, rows: Val) -> None:
        self.head, k, n = head, head.k, head.args
        self.k, self.first, self.high = k, first, k.min(rows - first, PANEL)
        self.rows_at = head.rows_of(b, h, first)
        self.b, self.h = b, h
        self.lifted = Lifted(k)
        self.lifted.split(
            self._split_rows,
            lambda: largest_of(k, self.high, lambda r: self.rows_at.at(r * n.q_strides.s), head.width, n.scale),
        )
        magnitude = k.max(self.lifted.magnitude, head.magnitude)
        self.needs_fallback = ~is_representable(magnitude)
        self.is_small = magnitude.max() < SMALL
        with k.loop(0, head.panels * MICRO_TILE, HALF) as i:
            head.out_sums.store(i, k.zeros(f32, HALF))
        with k.loop(0, self.high) as r:
            head.total.store(r * HALF, k.zeros(f32, HALF))
        for half in range(2):
            head.row_max.store(half * HALF, k.const(-math.inf, f32, HALF))

    def _split_rows(self, magnitude: Var) -> None:
        k, head, n = self.k, self.head, self.head.args
        words_at, factor = head.q.as_type(u32), n.scale * self.lifted.by
        with k.loop(0, self.high) as r, k.loop(0, head.steps) as step:
            row = self.rows_at.at(r * n.q_strides.s + step * STEP)
            masks = head.masks(head.width, step * STEP)
            left, right = (row.load(i * HALF, HALF, mask) * factor for i, mask in enumerate(masks))
            for term, words in enumerate(paired_words(k, left, right, head.terms, magnitude)):
                words_at.store(step * (head.size // 2) + term * TILE + r * HALF, words)

    def _multiply(self, a: Buf, b: Buf, steps: Val, to: Buf, stride: int) -> None:
        """``to`` = the product of a micro-tile of packed A and B over ``steps`` steps; rows are ``stride`` elements
        apart.
        """
        k, tiles, terms = self.k, self.head.tiles, self.head.terms
        with (
            k.loop(0, ceil_div(self.high, HALF)) as half,
            zeroed_sums(tiles, [to.at((half * stride + t) * HALF) for t in SUMS], stride * 4),
        ):
            multiply(tiles, a.at(half * TILE), b, steps, terms, SCHEDULES[terms])

    def _lower(self, sums: Buf, elements: Val, lifted: Sequence[Lifted]) -> None:
        """Divide ``elements`` products by the powers of two that their operands were multiplied by (``Lifted``)."""
        k = self.k
        for one in lifted:
            with k.when(one.by.ne(1.0), likely=False), k.loop(0, elements, HALF) as i:
                sums.store(i, sums.load(i, HALF) * reciprocal(k, one.by))

    def scores(self, start: Val, count: Val) -> None:
        k, head = self.k, self.head
        with k.loop(0, ceil_div(count, PANEL)) as panel:
            b = head.keys_tiled.at((start // PANEL + panel) * head.steps * head.size)
            self._multiply(head.q, b, head.steps, head.scores.at(panel * PANEL), KEYS)
        self._lower(head.scores, self.high * KEYS, (self.lifted, head.lifted_keys))
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
        """The lines of the packed output, for prefetching: each row has one in every term of its K-steps."""
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
                for term, words in enumerate(paired_words(k, left, right, head.terms)):
                    words_at.store(step * (head.size // 2) + term * TILE + r * HALF, words)
            head.total.store(r * HALF, totals[0].get() + totals[1].get())

    def accumulate_values(self, start: Val, count: Val) -> None:
        k, head, product = self.k, self.head, self.head.product
        with k.loop(0, head.panels) as panel:
            b = head.values_tiled.at((panel * head.key_steps + start // STEP) * head.size)
            self._multiply(head.p, b, ceil_div(count, STEP), product, PANEL)
            self._lower(product, self.high * PANEL, (head.lifted_values,))
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
        """Store the block's results as terms in the packed A of the product that reads them.

        The columns of a head are ``panels`` K-steps of that product.
        """
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
        """Where the results of row ``r`` of the block and this head begin in the packed output."""
        tiles = self.head.args.tiles
        assert tiles is not None
        size, row = self.head.panels * step_elements(terms), self.b * rows + self.first + r
        return tiles.at(place_of(row, heads * size) + self.h * size)
