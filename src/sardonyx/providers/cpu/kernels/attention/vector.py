"""Flash attention for vector units: scores, mask, online softmax and values in one kernel, block by block.

A work item is a block of query rows of a head, one row per lane. The scores of one key are then a vector over rows, so
the softmax along keys needs no horizontal reduction, and keys and values are read element by element and broadcast.
The scores of a block of keys stay in L1. Rows keep a running maximum and sum (online softmax); when the maximum grows,
earlier sums are multiplied by a correction. A block has several vectors of rows, or one if rows are known to be few.

    scratch of a thread, in f32:   q^T (width x block)   scores (KEYS x block)   out^T (value width x block)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Attention, View
from sardonyx.providers.cpu.kernels.attention.config import AttentionArgs, params, softmax_exp
from sardonyx.providers.cpu.kernels.attention.operands import Operands
from sardonyx.providers.cpu.kernels.math import functions
from sardonyx.providers.cpu.kernels.math.transpose import transposed
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bool_, f32, i64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.records import Record, replace

KEYS = 128
"""Keys of a block: their scores take 16 KiB for 32 rows, half of a small L1."""


class Blocking(Record):
    """Vectors of rows in a block, and the keys (or value columns) that are multiplied with them at once.

    Registers: ``columns * vectors`` accumulators, ``vectors`` of the shared operand, and the broadcast elements.
    ``columns`` divides a block of keys and the usual widths; remaining columns are done one by one, at the latency of
    an fma.
    """

    vectors: int
    columns: int


def blocking(isa: Isa) -> Blocking:
    if isa.lanes == 4:
        return Blocking(4, 4) if isa.registers >= 32 else Blocking(3, 3)
    return Blocking(2, 8) if isa.registers >= 32 else Blocking(2, 4)


def single_vector_blocking(isa: Isa) -> Blocking:
    """For at most one vector of rows."""
    return replace(blocking(isa), vectors=1)


@kernel(params)
def attention(
    k: Kernel, args: AttentionArgs[Buf, Val], *, dtypes: tuple[DType, ...], mask: str, mask_dtype: DType, causal: bool,
    softcap: float, vectors: int, columns: int,
) -> None:  # fmt: skip
    """``mask`` is its access class: ``none``, ``keys`` (broadcast to all rows), ``rows`` (contiguous along keys),
    ``any``.
    """
    block = k.lanes * vectors
    blocks = (args.rows + (block - 1)) // block
    with k.share(args.batch * args.heads * blocks) as tile:
        b, h, first = tile // (args.heads * blocks), tile // blocks % args.heads, tile % blocks * block
        rows = _RowBlock(k, args, (b, h, first), vectors, columns)
        visible = k.min(args.keys, first + block + args.past) if causal else args.keys
        with k.loop(0, visible, KEYS) as start:
            count = k.min(visible - start, k.const(KEYS))
            rows.score(start, count)
            old = [t.get() for t in rows.row_max]
            _MaskScores(rows, count, start, causal, softcap, mask).emit()
            rows.accumulate(start, count, rows.softmax(count, old))
        rows.finish()


class _RowBlock:
    """The query rows of a work item: one row in each lane of some vectors."""

    def __init__(
        self, k: Kernel, args: AttentionArgs[Buf, Val], place: tuple[Val, Val, Val], vectors: int, columns: int
    ) -> None:
        """``place``: batch, head and first row."""
        self.k, self.args, self.place, self.vectors, self.columns = k, args, place, vectors, columns
        lanes, width = k.lanes, args.width
        b, h, self.first = place
        self.block = lanes * vectors
        key_head = h // args.shared
        self.keys_at = args.k_strides.at(args.k, b, key_head)
        self.values_at = args.v_strides.at(args.v, b, key_head)
        self.transposed_q = k.scratch(f32)
        self.scores = self.transposed_q.at(_padded(k, width) * self.block)
        self.sums = self.scores.at(KEYS * self.block)
        _transpose_queries(
            k, args.q_strides.at(args.q, b, h), self.transposed_q, self.first, args.rows, width, args.q_strides.s,
            args.scale, vectors,
        )  # fmt: skip
        with k.loop(0, _padded(k, args.value_width) * vectors) as c:
            self.sums.store(c * lanes, k.zeros(f32, lanes))
        self.row_max = [k.var(k.const(-math.inf, f32, lanes)) for _ in range(vectors)]
        self.total = [k.var(k.zeros(f32, lanes)) for _ in range(vectors)]

    def score(self, start: Val, count: Val) -> None:
        """The scores of ``count`` keys."""
        stride = self.args.k_strides.s
        here = self.keys_at.at(start * stride)
        _scores(
            self.k, here, stride, count, self.args.width, self.transposed_q, self.scores, self.block, self.vectors,
            self.columns,
        )  # fmt: skip

    def softmax(self, count: Val, old: list[Val]) -> list[Val]:
        """Replace the scores of ``count`` keys by their weights. Returns the factors of earlier sums, ``old`` being the
        row maxima before.
        """
        k, lanes, total = self.k, self.k.lanes, self.total
        safe_max = [k.select(t.get().eq(-math.inf), 0.0, t.get()) for t in self.row_max]
        correction = [softmax_exp(k, o - s) for o, s in zip(old, safe_max, strict=True)]
        for i in range(self.vectors):
            total[i].set(total[i].get() * correction[i])
        with k.loop(0, count) as j:
            for i in range(self.vectors):
                at = j * self.block + i * lanes
                p = softmax_exp(k, self.scores.load(at, lanes) - safe_max[i])
                self.scores.store(at, p)
                total[i] += p
        return correction

    def accumulate(self, start: Val, count: Val, correction: list[Val]) -> None:
        """Multiply the sums by ``correction``, and add the values of ``count`` keys times their weights."""
        stride = self.args.v_strides.s
        _accumulate_values(
            self.k, self.values_at.at(start * stride), stride, count, self.args.value_width, self.scores, self.sums,
            correction, self.columns,
        )  # fmt: skip

    def finish(self) -> None:
        """Store the result: the sums divided by the sums of weights."""
        k, args, (b, h, first) = self.k, self.args, self.place
        assert args.out is not None
        inverse = [1.0 / k.select(t.get().eq(0.0), 1.0, t.get()) for t in self.total]
        out = args.out_strides.at(args.out, b, h)
        _transpose_output(k, self.sums, out, first, args.rows, args.value_width, args.out_strides.s, inverse)


def _padded(k: Kernel, size: Val) -> Val:
    return (size + (k.lanes - 1)) // k.lanes * k.lanes


def _transpose_queries(
    k: Kernel, q: Buf, transposed_q: Buf, first: Val, rows: Val, width: Val, stride: Val, scale: Val, vectors: int
) -> None:
    """Transposes query rows to one lane each, and scales them. Rows beyond the end repeat the last one."""
    lanes = k.lanes
    with k.loop(0, vectors) as i:
        for t in k.tiles(width):
            loaded = []
            for r in range(lanes):
                row = k.min(first + (i * lanes + r), rows - 1)
                loaded.append(q.at(row * stride).load(t) * scale)
            for r, v in enumerate(transposed(loaded)):
                transposed_q.store((t.index + r) * (lanes * vectors) + i * lanes, v)


def _transpose_output(
    k: Kernel, sums: Buf, out: Buf, first: Val, rows: Val, width: Val, stride: Val, inverse: list[Val]
) -> None:
    lanes, vectors = k.lanes, len(inverse)
    factors = k.local(f32, lanes * vectors)
    for n, v in enumerate(inverse):
        factors.store(n * lanes, v)
    with k.loop(0, vectors) as i:
        factor = factors.load(i * lanes, lanes)
        for t in k.tiles(width):
            columns = [sums.load(((t.index + c) * vectors + i) * lanes, lanes) * factor for c in range(lanes)]
            for r, v in enumerate(transposed(columns)):
                row = first + (i * lanes + r)
                with k.when(row < rows):
                    out.at(row * stride).store(t, v)


def _broadcast(k: Kernel, at: Buf, count: int) -> Iterator[Val]:
    """``count`` adjacent elements, each broadcast to all lanes, loaded lazily."""
    if k.lanes == 4 and count == 4:
        together = at.load(0, 4)
        return (together.shuffle([i] * 4) for i in range(4))
    return (k.splat(at.load(i), k.lanes) for i in range(count))


def _scores(
    k: Kernel,
    at: Buf,
    stride: Val,
    count: Val,
    width: Val,
    transposed_q: Buf,
    scores: Buf,
    block: int,
    vectors: int,
    columns: int,
) -> None:
    """scores[key, row] = k . q, ``columns`` keys at a time."""
    lanes, unroll = k.lanes, 4

    def group(j: Val, several: int) -> None:
        sums = [[k.var(k.zeros(f32, lanes)) for _ in range(vectors)] for _ in range(several)]

        def body(d: Val, steps: int) -> None:
            elements = [_broadcast(k, at.at((j + c) * stride + d), steps) for c in range(several)]
            for u in range(steps):
                shared = [transposed_q.load((d + u) * block + i * lanes, lanes) for i in range(vectors)]
                for c in range(several):
                    element = next(elements[c])
                    for i in range(vectors):
                        sums[c][i].set(k.fma(element, shared[i], sums[c][i]))

        whole = width & -unroll
        with k.loop(0, whole, unroll) as d:
            body(d, unroll)
        with k.loop(whole, width) as d:
            body(d, 1)
        for c in range(several):
            for i in range(vectors):
                scores.store((j + c) * block + i * lanes, sums[c][i])

    whole = count // columns * columns
    with k.loop(0, whole, columns) as j:
        group(j, columns)
    with k.loop(whole, count) as j:
        group(j, 1)


def _accumulate_values(
    k: Kernel, at: Buf, stride: Val, count: Val, width: Val, scores: Buf, sums: Buf, correction: list[Val], columns: int
) -> None:
    """sums[column, row] = correction * sums + sum over keys of value * p, ``columns`` value columns at a time."""
    lanes, vectors = k.lanes, len(correction)
    block = lanes * vectors

    def group(c0: Val, several: int) -> None:
        accumulators = [
            [k.var(sums.load((c0 + c) * block + i * lanes, lanes) * correction[i]) for i in range(vectors)]
            for c in range(several)
        ]
        with k.loop(0, count) as j:
            elements = _broadcast(k, at.at(j * stride + c0), several)
            shared = [scores.load(j * block + i * lanes, lanes) for i in range(vectors)]
            for column, element in zip(accumulators, elements, strict=True):
                for i in range(vectors):
                    column[i].set(k.fma(element, shared[i], column[i]))
        for c in range(several):
            for i in range(vectors):
                sums.store((c0 + c) * block + i * lanes, accumulators[c][i])

    whole = width // columns * columns
    with k.loop(0, whole, columns) as c:
        group(c, columns)
    with k.loop(whole, width) as c:
        group(c, 1)


class _MaskScores:
    """The pass over a block's scores that applies softcap, mask and causality, and updates the row maxima."""

    def __init__(self, block: _RowBlock, count: Val, start: Val, causal: bool, softcap: float, mask: str) -> None:
        args, (b, h, _) = block.args, block.place
        self.k, self.scores, self.count, self.start, self.first = block.k, block.scores, count, start, block.first
        self.rows, self.past, self.row_max, self.vectors = args.rows, args.past, block.row_max, block.vectors
        self.causal, self.softcap, self.mask, self.args = causal, softcap, mask, args.mask
        self.offset = None if args.mask is None else b * args.mask.b + h * args.mask.h

    def emit(self) -> None:
        k = self.k
        if self.mask != "rows":
            with k.loop(0, self.count) as j:
                row_biases = self._biases(j)
                for i in range(self.vectors):
                    self._mask_vector(j, i, None if row_biases is None else row_biases[i])
            return
        lanes, block = k.lanes, k.lanes * self.vectors
        biases = k.local(f32, lanes * block)
        for t in k.tiles(self.count):
            with k.loop(0, self.vectors) as v:
                bias_tile = [self._bias(self._row(v * lanes + r).load(t)) for r in range(lanes)]
                for c, bias in enumerate(transposed(bias_tile)):
                    biases.store(v * lanes + c * block, bias)
            with k.loop(0, k.min(self.count - t.index, lanes)) as j:
                for i in range(self.vectors):
                    self._mask_vector(t.index + j, i, biases.load(j * block + i * lanes, lanes))

    def _row(self, r: Val) -> Buf:
        """A row of the mask, from the block's first key on; rows beyond the end repeat the last one."""
        k = self.k
        assert self.args is not None and self.offset is not None
        row = k.min(self.first + r, self.rows - 1)
        return self.args.memory.at(self.offset + row * self.args.q + self.start)

    def _biases(self, j: Val) -> list[Val] | None:
        k = self.k
        if self.mask == "none":
            return None
        assert self.args is not None and self.offset is not None
        memory, key = self.args.memory, self.offset + (self.start + j) * self.args.k
        if self.mask == "keys":
            return [k.splat(self._bias(memory.load(key)), k.lanes)] * self.vectors
        out = []
        for i in range(self.vectors):
            rows = [k.min(self.first + (i * k.lanes + r), self.rows - 1) for r in range(k.lanes)]
            out.append(k.pack([self._bias(memory.load(key + row * self.args.q)) for row in rows]))
        return out

    def _bias(self, v: Val) -> Val:
        return self.k.select(v, self.k.const(0.0, f32, v.lanes), -math.inf) if v.dtype is bool_ else v

    def _mask_vector(self, j: Val, i: int, bias: Val | None) -> None:
        k, lanes = self.k, self.k.lanes
        at = j * (lanes * self.vectors) + i * lanes
        s = self.scores.load(at, lanes)
        if self.softcap:
            s = functions.tanh(k, s / self.softcap) * self.softcap
        if bias is not None:
            s = s + bias
        if self.causal:
            row = k.iota(i64) + (self.first + (i * lanes) + self.past)
            s = k.select(k.splat(self.start + j, lanes) > row, k.const(-math.inf, f32, lanes), s)
        if self.softcap or bias is not None or self.causal:
            self.scores.store(at, s)
        self.row_max[i].set(k.max(self.row_max[i], s))


def steps(group: Attention, analysis: Analysis) -> list[Step]:
    operands, lanes = Operands.of(group, analysis), analysis.isa.lanes
    rows, width, value_width = group.q.shape[2], group.q.shape[3], group.v.shape[3]
    widths = dims.add(_round_up(width, lanes), _round_up(value_width, lanes))

    def blocked(shape: Blocking) -> list[Step]:
        block = shape.vectors * lanes
        spec = attention(**operands.statics, mask=_mask_class(group.mask), vectors=shape.vectors, columns=shape.columns)
        scratch = expressible(dims.mul(dims.add(widths, KEYS), 4 * block))
        return [operands.step(spec, scratch, f"{block} rows by {KEYS} keys")]

    several, single = blocking(analysis.isa), single_vector_blocking(analysis.isa)
    return [*operands.before, *blocked(single if isinstance(rows, int) and rows <= lanes else several)]


def _round_up(size: Known, to: int) -> Known:
    return expressible(dims.mul(dims.ceildiv(size, to), to))


def _mask_class(mask: View | None) -> str:
    if mask is None:
        return "none"
    if mask.strides[2] == 0:
        return "keys"
    return "rows" if mask.strides[3] == 1 else "any"
