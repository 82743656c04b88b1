"""Code generation for one row of a fused loop: its per-row values, and the passes over its elements."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TypeAlias

from sardonyx.ir.scalar import trace
from sardonyx.lower.groups import Apply, Count, Reduce
from sardonyx.providers.cpu.kernels.common.loop_nest import apply, load, store
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import store_step
from sardonyx.providers.cpu.kernels.loops.config import LoopConfig
from sardonyx.providers.cpu.kernels.loops.passes import Pass
from sardonyx.providers.cpu.kernels.math import functions
from sardonyx.providers.cpu.kernels.math.reducers import Reducer, State
from sardonyx.providers.cpu.kernels.split.bf16 import STEP, step_elements
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, Var, f32, i64, register_dtype
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES

CHAIN = 256
"""Additions after which a lane's partial sum is added to its total: this bounds the error of long sums."""

PREFETCH_DISTANCE = 512
"""The minimal distance, in elements, between what is computed and what is prefetched."""

SAVED_GAP = 64
"""Bytes from the end of one saved value to the next."""

DIVIDE, SUBTRACT = (trace(fn, (True, True)) for fn in (lambda e, a, b: a / b, lambda e, a, b: a - b))
EXPONENTIAL = trace(lambda e, x: e.exp(x), (True,))

Totals: TypeAlias = "dict[int, list[list[Var]]]"
"""The accumulators of each reduction, by its number: one for each vector of rows, or for each chain of additions."""


class Row:
    """Emits one row, or, with vectors across rows, a block of adjacent ones."""

    def __init__(
        self, k: Kernel, config: LoopConfig, here: list[Buf], strides: list[list[Val]], size: list[Val], count: Val
    ) -> None:
        self.k, self.config, self.schedule, self.count = k, config, config.schedule, count
        self.lanes = config.lanes(k.lanes)
        self.inputs, self.outputs = here[: len(config.inputs)], here[len(config.inputs) :]
        first = config.axes - config.row_axes
        self.along = [s[config.vector_axis] for s in strides]
        self.steps = [s[first:] for s in strides]
        self.extents = size[first:]
        self.block: list[Tile] = []
        self.values: dict[int, list[Val]] = {}
        self.factors: dict[int, list[tuple[Val, ...]]] = {}
        self.flags: dict[int, Buf] = {}
        self.save_offset: Operand = 0
        """Byte offset of the saved values in scratch memory (``loops.deferred_pass``)."""
        self.interleaved: Callable[[int], None] | None = None
        """Called with the number of vectors after each block of the pass before the last."""

    def set_packed_output(self, position: int, to: Buf, flag: Buf) -> None:
        """Stores an output packed for a GEMM. ``flag`` is set later if a number of the row is not representable."""
        self.outputs[position], self.flags[position] = to, flag
        flag.store(0, 0)

    def run(self, block: list[Tile]) -> None:
        """All passes over the row, or over the rows of ``block``."""
        self.begin(block)
        for p in self.schedule.passes:
            self.run_pass(p)
        self._store_results()

    def run_pass(self, p: Pass) -> None:
        """One pass, and the per-row values that become available after it."""
        self.prepare_ratios(p)
        self.finish_pass(p, self._pass(p))

    def finish_pass(self, p: Pass, reduced: dict[int, list[Val]]) -> None:
        """Records the reductions of a pass, and computes the per-row values that depend on them."""
        self.values |= reduced
        self._row_values(p.stage + 1)

    def begin(self, block: list[Tile]) -> None:
        self.block, self.values, self.factors = block, {}, {}
        self._row_values(0)

    def finish(self, reduced: dict[int, list[Val]]) -> None:
        """``finish_pass`` for a loop with a single pass, whose per-row results are then stored."""
        self.values |= reduced
        self._row_values(self.schedule.passes[0].stage + 1)
        self._store_results()

    def _store_results(self) -> None:
        for i, number in enumerate(self.schedule.expression.results):
            if i in self.schedule.row_results:
                self._store_row(i, self.values[number])

    # -- per-row values

    @property
    def _tiles(self) -> Sequence[Tile | None]:
        return self.block or (None,)

    def _row_values(self, stage: int) -> None:
        for number in sorted(self.schedule.per_row):
            if self.schedule.stage[number] == stage and number not in self.values:
                self.values[number] = [self._row_value(number, u) for u in range(len(self._tiles))]

    def _row_value(self, number: int, u: int) -> Val:
        step = self.schedule.step(number)
        if step is None:
            tile = self._tiles[u]
            access, buf = self.config.inputs[number], self.inputs[number]
            return buf.load() if tile is None else load(buf, tile, access.kind, self.along[number])
        if isinstance(step, Count):
            return self.k.cast(self.count, register_dtype(step.dtype))
        assert isinstance(step, Apply)
        return self.apply(step, [self.values[a][u] for a in step.args])

    def _store_row(self, position: int, values: Sequence[Val]) -> None:
        access, buf = self.config.outputs[position], self.outputs[position]
        along = self.along[len(self.inputs) + position]
        for tile, v in zip(self._tiles, values, strict=True):
            if tile is None:
                buf.store(0, v)
            else:
                store(buf, tile, access.kind, along, v)

    def apply(self, step: Apply, args: Sequence[Val]) -> Val:
        return apply(self.k, self.config.expression, step, args)

    def saved_nbytes(self, values: int) -> Val:
        """Scratch bytes for ``values`` saved values of the row."""
        count = self.k.const(1)
        for n in self.extents:
            count = count * n
        width = self.config.chunk if self.block else 1
        return (count * (width * self.config.saved_itemsize) + SAVED_GAP) * values

    # -- divisions by per-row values

    def is_ratio(self, number: int) -> bool:
        """Whether a division is a multiplication by the divisor's reciprocal (error at most 1.5 ulp)."""
        step, schedule = self.schedule.step(number), self.schedule
        if not isinstance(step, Apply) or step.program != DIVIDE:
            return False
        divisor = step.args[1]
        return divisor in schedule.per_row and schedule.stage[divisor] > 0 and register_dtype(step.dtype).is_float

    def prepare_ratios(self, p: Pass) -> None:
        for number in p.values:
            step = self.schedule.step(number)
            if isinstance(step, Apply) and self.is_ratio(number) and number not in p.reloads:
                divisors = self.values[step.args[1]]
                self.factors[number] = [self._reciprocal(d, is_scaled=self.is_scaled(number)) for d in divisors]

    def is_scaled(self, number: int) -> bool:
        """Whether the reciprocal could overflow or be denormal: not for a softmax, whose sum is at least 1."""
        step = self.schedule.step(number)
        assert isinstance(step, Apply)
        total = self.schedule.step(step.args[1])
        term = self.schedule.step(total.arg) if isinstance(total, Reduce) and total.kind == "sum" else None
        return not (isinstance(term, Apply) and self.is_exponential(term))

    def _reciprocal(self, divisor: Val, *, is_scaled: bool) -> tuple[Val, ...]:
        """Factors whose product is 1 / divisor, each of which is a normal number."""
        if not is_scaled:
            return (1.0 / divisor,)
        k, size = self.k, self.k.abs(divisor)
        one, up, down = (k.const(2.0**n, divisor.dtype) for n in (0, 64, -64))
        scale = k.select(size < 2.0**-100, up, k.select(size > 2.0**100, down, one))
        return scale, 1.0 / (divisor * scale)

    # -- exponentials

    def is_exponential(self, step: Apply) -> bool:
        """Whether a step is exp(x - max(x)): at most 1, and flushed to 0 before it becomes denormal."""
        difference = self.schedule.step(step.args[0]) if step.program == EXPONENTIAL else None
        if not isinstance(difference, Apply) or difference.program != SUBTRACT or not difference.dtype.is_float:
            return False
        largest = self.schedule.step(difference.args[1])
        return isinstance(largest, Reduce) and largest.kind == "max" and largest.arg == difference.args[0]

    # -- passes

    def _pass(self, p: Pass) -> dict[int, list[Val]]:
        """Emits a pass; returns its reductions."""
        reducers = {r: self.reducer(r) for r in p.reductions}
        zero = self.k.const(0)
        totals = self._emit_axis(p, 0, [zero] * len(self.steps), zero, reducers)
        ends = {r: [get(total) for total in totals[r]] for r in reducers}
        return {r: [(end if self.block else x.reduce_lanes(end))[-1] for end in ends[r]] for r, x in reducers.items()}

    def _emit_axis(self, p: Pass, axis: int, at: list[Val], position: Val, reducers: dict[int, Reducer]) -> Totals:
        """A pass over the row's axes from ``axis`` on, and its totals: each sums at most ``CHAIN`` partial sums in a
        row, which have sums of their own.
        """
        k, is_last = self.k, axis == len(self.extents) - 1
        totals: Totals = {r: [self.variables(x) for _ in self._tiles] for r, x in reducers.items()}
        if not reducers:
            if is_last:
                self.emit_segment(p, k.const(0), self.extents[-1], at, position, {})
                return totals
            with k.loop(0, self.extents[axis]) as i:
                self._emit_axis(p, axis + 1, *self._moved(axis, i, at, position), reducers)
            return totals
        chains = self.unroll(p) if is_last and not self.block else 1
        length = CHAIN * (self.lanes * chains if is_last and not self.block else 1)
        with k.loop(0, self.extents[axis], length) as start:
            stop = k.min(start + length, self.extents[axis])
            sums: Totals = {
                r: [self.variables(x) for _ in range(len(self.block) or chains)] for r, x in reducers.items()
            }
            if is_last:
                self.emit_segment(p, start, stop, at, position, sums)
            else:
                with k.loop(start, stop) as i:
                    inner = self._emit_axis(p, axis + 1, *self._moved(axis, i, at, position), reducers)
                    self._merge(reducers, sums, inner)
            self._merge(reducers, totals, sums)
        return totals

    def _moved(self, axis: int, i: Val, at: list[Val], position: Val) -> tuple[list[Val], Val]:
        """Where the elements at index ``i`` of an axis begin, in each view and in scratch memory."""
        there = [a + i * s[axis] for a, s in zip(at, self.steps, strict=True)]
        return there, (position + i) * self.extents[axis + 1]

    def _merge(self, reducers: dict[int, Reducer], totals: Totals, sums: Totals) -> None:
        for r, x in reducers.items():
            states = [get(v) for v in sums[r]]
            for total, state in zip(totals[r], states if self.block else [x.merge_all(states)], strict=True):
                put(total, x.merge(get(total), state))

    def unroll(self, p: Pass) -> int:
        """Vectors at a time, each with its own accumulators."""
        return 2 if any(self.schedule.is_worth_saving(v) and v not in p.reloads for v in p.values) else 4

    def reducer(self, number: int) -> Reducer:
        step = self.schedule.reduction(number)
        return Reducer.of(self.k, step, self.schedule.expression.dtype_of(step.arg))

    def variables(self, reducer: Reducer) -> list[Var]:
        return [self.k.var(v) for v in reducer.start(self.lanes)]

    def emit_segment(
        self, p: Pass, start: Val, stop: Val, at: list[Val], position: Val, sums: dict[int, list[list[Var]]]
    ) -> None:
        """A pass over elements ``start`` to ``stop`` of the row's last axis."""
        if self.block:
            with self.k.loop(start, stop) as i:
                here = [a + i * s[-1] for a, s in zip(at, self.steps, strict=True)]
                Elements(self, p, self.block, here, position + i, i).emit(sums)
            return
        non_temporal = self.config.non_temporal_output(p, self.k.lanes)
        if non_temporal is not None:
            start = self.peel_to_cache_line(non_temporal, p, start, stop, at, position)
        for block in self.k.blocks(stop, self.lanes, unroll=self.unroll(p), start=start):
            if p in self.schedule.passes[1:2] and block[0].mask is None:
                self.prefetch_next_row(block, at)
            Elements(self, p, block, at, position, None).emit(sums, non_temporal)
            if self.interleaved is not None and p is self.schedule.passes[-2] and block[0].mask is None:
                self.interleaved(len(block))

    def peel_to_cache_line(self, output: int, p: Pass, start: Val, stop: Val, at: list[Val], position: Val) -> Val:
        """Emits the elements before the output's first cache line boundary; returns the first element after it."""
        k, buf = self.k, self.outputs[output].at(at[len(self.inputs) + output] + start)
        rest = (-buf.line_offset() & (LINE_NBYTES - 1)) // buf.dtype.itemsize
        count = k.min(rest, stop - start)
        with k.when(count > 0):
            Elements(self, p, [Tile(start, self.lanes, k.mask(count, self.lanes))], at, position, None).emit({})
        return start + count

    def prefetch_next_row(self, block: list[Tile], at: list[Val]) -> None:
        """Prefetches the first operands of a later row in the second pass, whose own operands are in cache."""
        ahead = self.k.max(self.extents[-1], PREFETCH_DISTANCE)
        for v in self.schedule.passes[0].values:
            access = self.config.inputs[v] if v < len(self.inputs) else None
            if access is not None and access.kind == "1" and not access.is_per_row:
                every = max(1, LINE_NBYTES * 8 // (access.dtype.bits * self.lanes))
                for tile in block[::every]:
                    self.inputs[v].prefetch(at[v] + tile.index + ahead)


class Elements:
    """Emits a pass for a few vectors of elements, their instructions interleaved."""

    def __init__(self, row: Row, p: Pass, tiles: list[Tile], at: list[Val], position: Val, index: Val | None) -> None:
        self.row, self.p, self.tiles, self.at, self.position, self.index = row, p, tiles, at, position, index
        self.computed: dict[tuple[int, int], Val] = {}

    def emit_pass(self, p: Pass, sums: dict[int, list[list[Var]]], non_temporal: int | None = None) -> None:
        """Another pass, which reuses the values of those before."""
        self.p = p
        self.emit(sums, non_temporal)

    def emit(self, sums: dict[int, list[list[Var]]], non_temporal: int | None = None) -> None:
        """``non_temporal`` is the output whose unmasked vectors are written with non-temporal stores."""
        row, schedule = self.row, self.row.schedule
        for number in self.p.values:
            for u, tile in enumerate(self.tiles):
                if (number, u) not in self.computed:
                    self.computed[number, u] = self._value(number, u, tile)
        for number in () if row.config.register_vectors else self.p.saves:
            for u, tile in enumerate(self.tiles):
                memory, at = self._saved(number, u, tile)
                v = self.computed[number, u]
                memory.store(at, row.k.value(v, v.dtype, row.lanes))
        for position in self.p.stores:
            access, buf = row.config.outputs[position], row.outputs[position]
            view = len(row.inputs) + position
            if access.terms:
                self._store_packed(position, access.terms)
                continue
            for u, tile in enumerate(self.tiles):
                v = self._of(schedule.expression.results[position], u)
                is_non_temporal = position == non_temporal and tile.mask is None
                store(buf.at(self.at[view]), tile, access.kind, row.along[view], v, is_non_temporal=is_non_temporal)
        for r, states in sums.items():
            arg, reducer = schedule.reduction(r).arg, row.reducer(r)
            for u, tile in enumerate(self.tiles):
                index = row.k.iota(i64, row.lanes) + tile.index if self.index is None else self.index
                mask = tile.mask if self.index is None else None
                put(states[u], reducer.add(get(states[u]), self._of(arg, u), index, mask))

    def _store_packed(self, position: int, terms: int) -> None:
        """Stores vectors in the packed layout, a K-step at a time. A row consists of whole K-steps."""
        row, number = self.row, self.row.schedule.expression.results[position]
        buf, flag, per_step = row.outputs[position], row.flags[position], max(STEP // row.lanes, 1)
        found = [row.k.value(self._of(number, u), f32, row.lanes) for u in range(len(self.tiles))]
        if self.tiles[0].mask is not None:
            return
        if len(found) % per_step:
            per_step = 1
        for u in range(0, len(found), per_step):
            v, t = _concatenated(found[u : u + per_step]), self.tiles[u]
            at = t.index // STEP * step_elements(terms) + t.index % STEP
            store_step(buf.at(at), v, terms, flag)

    def _of(self, number: int, u: int) -> Val:
        per_row = self.row.values.get(number)
        if per_row is None:
            return self.computed[number, u]
        return per_row[u if self.row.block else 0]

    def _value(self, number: int, u: int, tile: Tile) -> Val:
        row = self.row
        step = row.schedule.step(number)
        if number in self.p.reloads:
            memory, at = self._saved(number, u, tile)
            return memory.load(at, lanes=row.lanes)
        if step is None:
            buf = row.inputs[number].at(self.at[number])
            return load(buf, tile, row.config.inputs[number].kind, row.along[number])
        assert isinstance(step, Apply)
        if row.is_exponential(step):
            return functions.exp_nonpositive(row.k, self._of(step.args[0], u))
        if number in row.factors:
            return reduce(operator.mul, row.factors[number][u if row.block else 0], self._of(step.args[0], u))
        return row.apply(step, [self._of(a, u) for a in step.args])

    def _saved(self, number: int, u: int, tile: Tile) -> tuple[Buf, Operand | Tile]:
        """The scratch buffer and position of a saved element value."""
        row, k = self.row, self.row.k
        width = row.config.chunk if row.block else 1
        dtype = register_dtype(row.schedule.expression.dtype_of(number))
        memory = k.scratch(dtype, row.saved_nbytes(row.schedule.saved.index(number)) + row.save_offset)
        if row.block:
            return memory, self.position * width + u * row.lanes
        return memory, Tile(self.position + tile.index, tile.lanes, tile.mask)


def _concatenated(vectors: Sequence[Val]) -> Val:
    """One vector of several, whose number is a power of two."""
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [left.shuffle(range(2 * left.lanes), right) for left, right in pairs]
    return vectors[0]


def get(variables: Sequence[Var]) -> State:
    return tuple(v.get() for v in variables)


def put(variables: Sequence[Var], state: State) -> None:
    for variable, value in zip(variables, state, strict=True):
        variable.set(value)
