"""Flash attention for a few query rows, as in a decoder's step: lanes are keys, then columns of values.

With one row per lane (``attention.vector``) most lanes would be empty. Here keys and values are read once, in vectors
and in the order of memory, which is what limits such a step. A work item is a chunk of keys with all query rows of the
heads that share them. Chunks have a fixed length, so the result does not depend on the number of threads; where keys
are more than one chunk and heads are few, a second step combines the chunks.

    scores     per key, a sum over vectors of its width; the sums of as many keys as a vector has lanes become one
               vector (or, if keys are contiguous along the sequence, vectors of keys times numbers of the query)
    values     numbers of p times vectors of columns, added up in registers over a block of keys

    scratch of a thread, in f32:   scores (KEYS), then for each row: query, sums of values, sums of p, maximum
    partial results of a row and chunk:   sums of values, sum of p, maximum
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Attention, Storage, View
from sardonyx.providers.cpu.kernels.attention.config import AttentionArgs, HeadStrides, softmax_exp
from sardonyx.providers.cpu.kernels.attention.config import params as attention_params
from sardonyx.providers.cpu.kernels.attention.operands import Operands
from sardonyx.providers.cpu.kernels.common.loop_nest import load, stride_class
from sardonyx.providers.cpu.kernels.math import functions
from sardonyx.providers.cpu.kernels.math.reducers import Reducer
from sardonyx.providers.cpu.kernels.math.transpose import sums_of_rows
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, Var, bool_, f32, i64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible, product
from sardonyx.providers.cpu.program.steps import Ref, SizeRange, Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import replace

KEYS = 128
"""Keys of a block: several rows read them from L1."""
CHUNK = 4 * KEYS
"""Keys of a work item."""
MANY_HEADS = 32
"""Heads of keys in a batch from which on there are enough work items without chunks."""
TILE_ROWS = 4
"""Rows up to which this pays on a chip with tiles."""
COLUMNS = 4
"""Vectors of values that are added up at once; two keys at a time hide the latency of an fma."""


def most_rows(isa: Isa) -> int:
    """The query rows of a head up to which this kernel is the quickest."""
    return TILE_ROWS if isa.amx else max(1, isa.lanes // 2)


def pays(group: Attention, analysis: Analysis) -> Refusal | None:
    rows = group.q.shape[2]
    if not isinstance(rows, int):
        return Refusal("only the run tells how many rows there are")
    return None if rows <= most_rows(analysis.isa) else Refusal("many rows")


def few_rows(group: Attention, analysis: Analysis) -> SizeRange | None:
    """The numbers of query rows that this kernel takes where they are known at run time only: of a decoder with a KV
    cache.

    None if another kernel takes every number of rows.
    """
    rows = group.q.shape[2]
    return SizeRange(rows, most=most_rows(analysis.isa)) if isinstance(rows, str) and analysis.is_stepwise else None


def steps(group: Attention, analysis: Analysis) -> list[Step]:
    operands = replace(Operands.of(group, analysis, may_transpose_keys=True), packed=None)
    (batch, heads, rows, width), (_, key_heads, keys, _) = group.q.shape, group.k.shape
    value_width = group.v.shape[3]
    pairs = dims.mul(batch, key_heads)
    is_split = not (isinstance(keys, int) and keys <= CHUNK) and not (isinstance(pairs, int) and pairs >= MANY_HEADS)
    spec = attention_few_rows(
        **operands.statics, mask=_mask_class(group.mask), has_transposed_keys=operands.has_transposed_keys,
        is_split=is_split,
    )  # fmt: skip
    # Each row has its query, sums of values, sums of p and maximum; lengths are rounded up to vectors.
    row_nbytes = dims.total((dims.mul(4, width), dims.mul(4, value_width), 4 * 4 * analysis.isa.lanes))
    shared_rows = dims.mul(rows, dims.floordiv(heads, key_heads))
    scratch = expressible(dims.add(4 * KEYS, dims.mul(shared_rows, row_nbytes)))
    variant = f"few rows, {KEYS} keys at a time" + (f", chunks of {CHUNK}" if is_split else "")
    made = operands.step(spec, scratch, variant)
    if not is_split:
        return [*operands.before, made]
    chunks = expressible(dims.ceildiv(keys, CHUNK))
    size = product((batch, heads, rows, chunks, dims.add(value_width, 2)))
    partial = Ref(Storage("temporary", f32, size))
    args = {name: arg for name, arg in made.args.items() if name != "out"}
    made = replace(made, args={**args, "partial": partial}, writes=frozenset(("partial",)))
    sizes = CombinedArgs[Ref, Known](
        partial, Ref.of(group.out), HeadStrides(*group.out.strides[:3]), batch, heads, rows, chunks, value_width
    )
    combined = Step(
        combine_chunks(dtype=group.out.dtype), flat(args=sizes), frozenset(("out",)), group.nodes,
        flops=expressible(dims.mul(2, size)), nbytes=expressible(dims.mul(4, size)), variant=variant,
    )  # fmt: skip
    return [*operands.before, made, combined]


def _mask_class(mask: View | None) -> str:
    """The stride class of a mask along keys, or ``none``."""
    return "none" if mask is None else stride_class(mask.strides[3])


def params(*, dtypes: tuple[DType, ...], mask: str, mask_dtype: DType, is_split: bool, **_: object) -> Params:
    more: Params = {"partial": Memory(f32)} if is_split else {}
    return {**attention_params(dtypes=dtypes, mask=mask, mask_dtype=mask_dtype, has_unpacked=not is_split), **more}


@kernel(params)
def attention_few_rows(
    k: Kernel, args: AttentionArgs[Buf, Val], partial: Buf | None = None, *, dtypes: tuple[DType, ...], mask: str,
    mask_dtype: DType, causal: bool, softcap: float, has_transposed_keys: bool, is_split: bool,
) -> None:  # fmt: skip
    """``mask`` is its stride class along keys, or ``none``."""
    key_heads = args.heads // args.shared
    chunks = (args.keys + (CHUNK - 1)) // CHUNK if is_split else k.const(1)
    visible = k.min(args.keys, args.rows + args.past) if causal else args.keys
    with k.share(args.batch * chunks * key_heads) as tile:  # heads of a chunk are neighbours in memory, or chunks are
        b, chunk, key_head = tile // (chunks * key_heads), tile // key_heads % chunks, tile % key_heads
        first = chunk * CHUNK
        stop = k.min(visible, first + CHUNK) if is_split else visible
        item = _Item(k, args, b, key_head, mask, causal=causal, softcap=softcap, is_transposed=has_transposed_keys)
        with item.rows() as row:
            row.begin()
        with k.loop(first, stop, KEYS) as start:
            count = k.min(stop - start, KEYS)
            with item.rows() as row:
                row.add(start, count)
        with item.rows() as row:
            if partial is None:
                row.store()
            else:
                place = ((b * args.heads + row.head) * args.rows + row.index) * chunks + chunk
                row.store_partial(partial.at(place * (args.value_width + 2)))


class _Item:
    """A work item: a head of keys, and the query rows of the heads that share it."""

    def __init__(
        self, k: Kernel, args: AttentionArgs[Buf, Val], b: Val, key_head: Val, mask: str, *, causal: bool,
        softcap: float, is_transposed: bool,
    ) -> None:  # fmt: skip
        self.k, self.args, self.b, self.key_head, self.mask = k, args, b, key_head, mask
        self.causal, self.softcap, self.is_transposed = causal, softcap, is_transposed
        self.keys, self.values = args.k_strides.at(args.k, b, key_head), args.v_strides.at(args.v, b, key_head)
        self.scores = k.scratch(f32)
        self.padded_width, self.padded_values = (
            (n + (k.lanes - 1)) // k.lanes * k.lanes for n in (args.width, args.value_width)
        )
        self.row_elements = self.padded_width + self.padded_values + 2 * k.lanes

    @contextmanager
    def rows(self) -> Iterator[_Row]:
        """A loop over the rows."""
        with self.k.loop(0, self.args.shared) as i, self.k.loop(0, self.args.rows) as r:
            yield _Row(self, self.key_head * self.args.shared + i, r, i * self.args.rows + r)


class _Row:
    """A query row of a work item."""

    def __init__(self, item: _Item, head: Val, index: Val, number: Val) -> None:
        self.item, self.k, self.head, self.index = item, item.k, head, index
        self.query = item.scores.at(KEYS + number * item.row_elements)
        self.sums = self.query.at(item.padded_width)
        self.total = self.sums.at(item.padded_values)
        self.largest = self.total.at(item.k.lanes)

    def begin(self) -> None:
        k, args, lanes = self.k, self.item.args, self.k.lanes
        q = args.q_strides.at(args.q, self.item.b, self.head, self.index)
        for t in k.tiles(args.width):
            self.query.store(t.index, k.value(q.load(t) * args.scale, f32, lanes))
        with k.loop(0, self.item.padded_values, lanes) as c:
            self.sums.store(c, k.zeros(f32, lanes))
        self.total.store(0, k.zeros(f32, lanes))
        self.largest.store(0, -math.inf)

    def add(self, start: Val, count: Val) -> None:
        """Scores, weights and values of a block of keys."""
        k, lanes, scores = self.k, self.k.lanes, self.item.scores
        (self._transposed_scores if self.item.is_transposed else self._scores)(start, count)
        peak = k.var(k.const(-math.inf, f32, lanes))
        for t in k.tiles(count):
            s = t.keep(self._masked(scores.load(t.index, lanes), start, t), -math.inf)
            scores.store(t.index, s)
            peak.set(k.max(peak, s))
        old = self.largest.load()
        largest = k.max(old, Reducer(k, "max", f32, is_loose=True).reduce_lanes((peak.get(),))[0])
        safe = k.select(largest.eq(-math.inf), 0.0, largest)
        correction = softmax_exp(k, old - safe)
        total = k.var(self.total.load(0, lanes) * correction)
        for t in k.tiles(count):
            p = softmax_exp(k, scores.load(t.index, lanes) - safe)
            scores.store(t.index, p)
            total += p
        self.total.store(0, total.get())
        self.largest.store(0, largest)
        self._add_values(start, count, correction)

    def _scores(self, start: Val, count: Val) -> None:
        """As many keys at a time as a vector has lanes; keys beyond the end repeat the last one."""
        k, lanes, args, stride = self.k, self.k.lanes, self.item.args, self.item.args.k_strides.s
        here = self.item.keys.at(start * stride)

        def group(j: Val, numbers: list[Val]) -> None:
            keys = [here.at(n * stride) for n in numbers]
            sums = [k.var(k.zeros(f32, lanes)) for _ in keys]
            for t in k.tiles(args.width):
                q = self.query.load(t.index, lanes)
                for key, total in zip(keys, sums, strict=True):
                    total.set(k.fma(key.load(t), q, total))
            self.item.scores.store(j, sums_of_rows([total.get() for total in sums]))

        whole = count & -lanes
        with k.loop(0, whole, lanes) as j:
            group(j, [j + i for i in range(lanes)])
        with k.when(whole < count):
            group(whole, [k.min(whole + i, count - 1) for i in range(lanes)])

    def _transposed_scores(self, start: Val, count: Val) -> None:
        """Keys are contiguous along the sequence."""
        k, lanes, args, stride = self.k, self.k.lanes, self.item.args, self.item.args.k_strides.s
        here = self.item.keys.at(start)
        for block in k.blocks(count, lanes, unroll=4):
            sums = [k.var(k.zeros(f32, lanes)) for _ in block]
            with k.loop(0, args.width) as d:
                q, line = k.splat(self.query.load(d), lanes), here.at(d * stride)
                for t, total in zip(block, sums, strict=True):
                    total.set(k.fma(line.load(t), q, total))
            for t, total in zip(block, sums, strict=True):
                self.item.scores.store(t.index, total)

    def _masked(self, s: Val, start: Val, t: Tile) -> Val:
        """Scores after softcap, mask and causality."""
        k, item, mask = self.k, self.item, self.item.args.mask
        if item.softcap:
            s = functions.tanh(k, s / item.softcap) * item.softcap
        if mask is not None:
            at = item.b * mask.b + self.head * mask.h + self.index * mask.q + start * mask.k
            bias = load(mask.memory.at(at), t, item.mask, mask.k)
            s = k.select(bias, s, -math.inf) if bias.dtype is bool_ else s + bias
        if item.causal:
            key = k.iota(i64) + (start + t.index)
            s = k.select(key > k.splat(self.index + item.args.past, s.lanes), -math.inf, s)
        return s

    def _add_values(self, start: Val, count: Val, correction: Val) -> None:
        k, lanes, args, stride = self.k, self.k.lanes, self.item.args, self.item.args.v_strides.s
        here = self.item.values.at(start * stride)
        for block in k.blocks(args.value_width, lanes, unroll=COLUMNS):
            sums = [[k.var(k.zeros(f32, lanes)) for _ in block] for _ in range(2)]

            def add(j: Val, chain: list[Var], block: list[Tile] = block) -> None:
                p, line = k.splat(self.item.scores.load(j), lanes), here.at(j * stride)
                for t, total in zip(block, chain, strict=True):
                    total.set(k.fma(line.load(t), p, total))

            with k.loop(0, count & -2, 2) as j:
                for i, chain in enumerate(sums):
                    add(j + i, chain)
            with k.when((count & 1).ne(0)):
                add(count - 1, sums[0])
            for t, even, odd in zip(block, *sums, strict=True):
                before = self.sums.load(t.index, lanes)
                self.sums.store(t.index, k.fma(before, k.splat(correction, lanes), even.get() + odd.get()))

    def _sum_of_weights(self) -> Val:
        return Reducer(self.k, "sum", f32).reduce_lanes((self.total.load(0, self.k.lanes),))[0]

    def store(self) -> None:
        """The result: the sums divided by the sum of weights."""
        k, args = self.k, self.item.args
        assert args.out is not None
        total = self._sum_of_weights()
        inverse = 1.0 / k.select(total.eq(0.0), 1.0, total)
        out = args.out_strides.at(args.out, self.item.b, self.head, self.index)
        for t in k.tiles(args.value_width):
            out.store(t, self.sums.load(t.index, k.lanes) * inverse)

    def store_partial(self, to: Buf) -> None:
        k, width = self.k, self.item.args.value_width
        for t in k.tiles(width):
            to.store(t, self.sums.load(t.index, k.lanes))
        to.store(width, self._sum_of_weights())
        to.store(width + 1, self.largest.load())


class CombinedArgs(Arguments[M, N]):
    """The parameters of ``combine_chunks``."""

    is_inline: ClassVar[bool] = True
    partial: M
    out: M
    out_strides: HeadStrides[M, N]
    batch: N
    heads: N
    rows: N
    chunks: N
    value_width: N


def combined_params(*, dtype: DType) -> Params:
    strides = HeadStrides[Memory, DType](i64, i64, i64)
    return {"args": CombinedArgs[Memory, DType](Memory(f32), Memory(dtype), strides, i64, i64, i64, i64, i64)}


@kernel(combined_params)
def combine_chunks(k: Kernel, args: CombinedArgs[Buf, Val], *, dtype: DType) -> None:
    """The results of rows from those of their chunks of keys, in order."""
    with k.share(args.batch * args.heads * args.rows) as tile:
        b, head, row = tile // (args.heads * args.rows), tile // args.rows % args.heads, tile % args.rows
        width = args.value_width
        parts, each = args.partial.at(tile * args.chunks * (width + 2)), width + 2
        largest, total = k.var(k.const(-math.inf, f32)), k.var(k.const(0.0, f32))
        with k.loop(0, args.chunks) as c:
            largest.set(k.max(largest, parts.load(c * each + (width + 1))))
        safe = k.select(largest.get().eq(-math.inf), 0.0, largest.get())

        def factor(c: Val) -> Val:
            return softmax_exp(k, parts.load(c * each + (width + 1)) - safe)

        with k.loop(0, args.chunks) as c:
            total.set(k.fma(parts.load(c * each + width), factor(c), total))
        inverse = 1.0 / k.select(total.get().eq(0.0), 1.0, total.get())
        out = args.out_strides.at(args.out, b, head, row)
        for t in k.tiles(width):
            sums = k.var(k.zeros(f32, k.lanes))
            with k.loop(0, args.chunks) as c:
                sums.set(k.fma(parts.at(c * each).load(t), k.splat(factor(c), k.lanes), sums))
            out.store(t, sums.get() * inverse)
