"""Recurrent layers: for each time step, matrix products of the states with few rows, then a scalar expression per unit.

Weights are packed in panels of U adjacent units (``gemm.pack``): [direction][gate][units / U][source][U], so that a
time step streams through them once. The accumulators of all gates are in registers: for one or two rows those of a
whole panel, to hide the latency of additions; for more rows those of one vector of units, so that the rows share each
load. The expression is evaluated while the sums are in L1; the next panel's products hide its latency.

**Summation order.** Each sum has ``chains`` interleaved partial sums, added at the end, to hide the latency of
additions. The order does not depend on rows or threads.

**Threads.** Directions and blocks of sequences are independent. If there are fewer of them than threads, and the
weights are large enough, all threads work on each of them together: in every phase (initialization, each stage of each
time step) threads take panels until none is left, and wait until all are done. No thread waits for one that has no
panel, so a thread that the system schedules late delays no other. The first state is double-buffered.

**Integers.** Weights of bytes are multiplied with quantized states (``int8``), which all sequences of a direction share
a scale for: their blocks are not independent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Apply, Expression, Recurrence, Stage, Storage, View
from sardonyx.providers.cpu.kernels.common.loop_nest import apply
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, Problem
from sardonyx.providers.cpu.kernels.gemm.contraction import storage_dtype
from sardonyx.providers.cpu.kernels.gemm.pack import packed_b
from sardonyx.providers.cpu.kernels.quantized import pack as quads
from sardonyx.providers.cpu.kernels.recurrent import int8
from sardonyx.providers.cpu.kernels.recurrent.parameters import (
    Int8Args,
    OperandArgs,
    RecurrenceArgs,
    RecurrenceConfig,
    RecurrenceTile,
)
from sardonyx.providers.cpu.language.arguments import Memory, flat
from sardonyx.providers.cpu.language.context import COUNTERS, Code, Context
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.spin_park import TeamCpus, wait_while, wake_waiters
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, Var, f32, i8, i32, i64
from sardonyx.providers.cpu.machine.isa import KIB, Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step

BLOCKS = 16
"""The largest number of blocks of sequences in one direction."""
SHARED_NBYTES, SHARED_STEPS = 128 * KIB, 4
"""Bytes of a stage's weights, and time steps, from which on threads share panels: with fewer, barriers dominate."""
MAX_SHARED = COUNTERS // 3
"""The largest number of (direction, block) pairs that threads share: each has three counters."""


def steps(group: Recurrence, analysis: Analysis) -> list[Step]:
    isa, dtype = analysis.isa, group.x.dtype
    directions, count, batch, gates, units = group.x.shape
    assert isinstance(units, int) and isinstance(directions, int) and isinstance(gates, int)
    is_int8 = group.scale is not None
    height = max(len(s.gates) for s in group.stages)
    shape = RecurrenceTile.of_bytes(isa, height) if is_int8 else RecurrenceTile.of(isa, dtype, units, height, batch)
    weights = _weights(group)
    stored, why = (i8, "sources are quantized") if is_int8 else storage_dtype(weights, analysis)
    before, r = quads.packed_b(weights, shape.units, isa) if is_int8 else packed_b(weights, stored, shape.units, isa)
    config = RecurrenceConfig(
        dtype, stored, shape, group.stages, gates, units % shape.units == 0, tuple(v.dtype for v in group.constants),
        _dtype(group.lengths), tuple(map(_dtype, group.initial)), _dtype(group.y), tuple(map(_dtype, group.finals)),
        is_int8, group.zero is not None,
    )  # fmt: skip
    padded = -(-units // shape.units) * shape.units
    memory = Storage("temporary", dtype, expressible(dims.product((config.slots, directions, batch, padded))))
    nbytes = gates * units * units * stored.bits // 8
    args = RecurrenceArgs[Ref, Known](
        x=_operand(group.x, "direction", "step", "row", "gate"),
        r=OperandArgs(Ref(r.storage, r.offset), direction=r.batch[0], gate=r.batch[1]),
        constants=tuple(_operand(v, "direction") for v in group.constants),
        lengths=_optional(group.lengths, "row"),
        initial=tuple(_optional(v, "direction", "row") for v in group.initial),
        y=_optional(group.y, "direction", "step", "row"),
        finals=tuple(_optional(v, "direction", "row") for v in group.finals),
        memory=Ref(memory), directions=directions, steps=count, rows=batch, units=units,
        forward=group.backward.index(True) if True in group.backward else directions,
        max_blocks=1 if is_int8 else BLOCKS if nbytes <= isa.l2_nbytes // 2 else BLOCKS // 4,
        shared_from=SHARED_STEPS if is_int8 or nbytes >= SHARED_NBYTES * len(group.stages) else -1,
        int8=_int8_args(group, nbytes, isa),
    )  # fmt: skip
    scratch = 0 if args.int8 is None else int8.scratch_nbytes(batch, args.int8.depth, isa)
    flops = expressible(dims.product((2, directions, count, batch, gates, units, units)))
    variant = f"{shape.rows} x {shape.vectors} vectors of {stored if is_int8 else dtype}: {why}"
    finals = (f"final{i}" for i, v in enumerate(group.finals) if v is not None)
    writes = frozenset(("memory", *finals, *(() if group.y is None else ("y",))))
    spec, moved = recurrence(config=config), directions * nbytes
    return [*before, Step(spec, flat(args=args), writes, group.nodes, scratch, flops, moved, variant, can_fail=True)]


def _int8_args(group: Recurrence, nbytes: int, isa: Isa) -> Int8Args[Ref, Known] | None:
    if group.scale is None:
        return None
    zero = None if group.zero is None else _operand(group.zero, "direction", "gate")
    rows = int8.shared_rows(nbytes, group.r.shape[3], len(group.stages))
    return Int8Args(_operand(group.scale, "direction", "gate"), zero, quads.depth_of(group.r.shape[3], isa), rows)


def _operand(view: View, *axes: str) -> OperandArgs[Ref, Known]:
    """A view with strides along these axes."""
    return OperandArgs(Ref.of(view), **dict(zip(axes, view.strides, strict=False)))


def _optional(view: View | None, *axes: str) -> OperandArgs[Ref, Known] | None:
    return None if view is None else _operand(view, *axes)


def _dtype(view: View | None) -> DType | None:
    return None if view is None else view.dtype


def _weights(group: Recurrence) -> Problem:
    """The recurrent weights as right operands of matrix products, one for each direction and gate."""
    directions, gates, units, _ = group.r.shape
    direction, gate, unit, source = group.r.strides
    b = Matrix(group.r.storage, group.r.offset, (direction, gate), source, unit)
    return Problem(group.nodes, (directions, gates), 1, units, units, b, b, Expression((), (), ()), (), ())


def _params(config: RecurrenceConfig) -> Params:
    def declared(dtype: DType, *axes: str) -> OperandArgs[Memory, DType]:
        return OperandArgs(Memory(dtype), **dict.fromkeys(axes, i64))

    def optional(dtype: DType | None, *axes: str) -> OperandArgs[Memory, DType] | None:
        return None if dtype is None else declared(dtype, *axes)

    return {"args": RecurrenceArgs[Memory, DType](
        declared(config.dtype, "direction", "step", "row", "gate"), declared(config.weights, "direction", "gate"),
        tuple(declared(t, "direction") for t in config.constants), optional(config.lengths, "row"),
        tuple(optional(t, "direction", "row") for t in config.initial), optional(config.y, "direction", "step", "row"),
        tuple(optional(t, "direction", "row") for t in config.finals), Memory(config.dtype),
        i64, i64, i64, i64, i64, i64, i64, Int8Args(
            declared(f32, "direction", "gate"), optional(i32 if config.has_zeros else None, "direction", "gate"),
            i64, i64,
        ) if config.is_int8 else None,
    )}  # fmt: skip


@kernel(_params)
def recurrence(k: Kernel, args: RecurrenceArgs[Buf, Val], *, config: RecurrenceConfig) -> None:
    directions, rows, units, max_blocks = args.directions, args.rows, args.units, args.max_blocks
    width = config.shape.units
    panels = (units + (width - 1)) // width
    tiles = (rows + (config.shape.rows - 1)) // config.shape.rows
    block = (tiles + (max_blocks - 1)) // max_blocks * config.shape.rows
    blocks = (rows + (block - 1)) // k.max(block, 1)
    items = directions * blocks
    is_long = (args.shared_from >= 0) & (args.steps >= args.shared_from)
    if args.int8 is not None:
        is_long = is_long & (rows >= args.int8.shared_rows)
    is_shared = is_long & (items < k.threads) & (items <= MAX_SHARED)
    first, last = k.share_of(items)
    first, last = k.select(is_shared, 0, first), k.select(is_shared, items, last)
    counters, *_ = (k.counter() for _ in range(3 * MAX_SHARED))
    with k.loop(first, last) as item:
        top = item % blocks * block
        phases = _Phases(k, panels, is_shared, counters.at(k.select(is_shared, item, 0) * 3))
        _Emitter(k, config, args, item // blocks, phases, panels * width).run(top, k.min(top + block, rows))


class _Phases:
    """Phases over all panels, which one thread executes alone, or several threads together."""

    TAKEN, DONE, SLEEPERS = range(3)

    def __init__(self, k: Kernel, panels: Val, is_shared: Val, counters: Buf) -> None:
        self.k, self.panels, self.is_shared, self.counters = k, panels, is_shared, counters
        self.end = k.var(0)
        """Panels of all phases up to and including the current one."""
        self.grain = k.max(panels // (k.threads * 2), 1)

    @contextmanager
    def phase(self) -> Iterator[Val]:
        """Loops over the panels that this thread takes."""
        k, done, sleepers = self.k, self.counters.at(self.DONE), self.counters.at(self.SLEEPERS)
        begin = self.end.get()
        self.end.set(begin + self.panels)
        first, last = k.var(begin), k.var(begin)
        with k.loop_while(lambda: self._take(first, last)):
            with k.loop(first.get() - begin, last.get() - begin) as panel:
                yield panel
            with k.when(self.is_shared):
                done.add_atomic(0, last.get() - first.get(), "seq_cst")
                wake_waiters(k, done, sleepers)
        with k.when(self.is_shared):
            spin, cpus = k.context().load(Context.SPIN), TeamCpus(k, k.context(), k.thread)
            wait_while(k, done, self.end.get().__gt__, spin, sleepers, cpus)

    def _take(self, first: Var, last: Var) -> Val:
        """Takes the next panels of the phase; returns whether there were any."""
        k, taken = self.k, self.counters.at(self.TAKEN)
        first.set(last.get())
        last.set(self.end.get())
        trying = k.var(self.k.cast(self.is_shared, i64))
        with k.loop_while(lambda: trying.get().ne(0)):
            first.set(taken.load_atomic())
            last.set(k.min(first.get() + self.grain, self.end.get()))
            is_mine = taken.swap_atomic(0, first.get(), k.max(first.get(), last.get()))
            trying.set(k.cast(~is_mine, i64))
        return first.get() < last.get()


class _Emitter:
    """Emits one direction and a block of its sequences."""

    def __init__(
        self, k: Kernel, config: RecurrenceConfig, args: RecurrenceArgs[Buf, Val], direction: Val, phases: _Phases,
        padded: Val,
    ) -> None:  # fmt: skip
        self.k, self.config, self.args = k, config, args
        self.direction, self.phases, self.padded = direction, phases, padded
        self.shape = config.shape
        self.steps = args.steps
        self.max_gates = max(len(stage.gates) for stage in config.stages)
        self.sums = k.local(config.dtype, self.shape.rows * self.max_gates * self.shape.units)
        self.int8 = None if args.int8 is None else int8.QuantizedSource(k, args.int8, rows=args.rows, units=args.units)

    def run(self, top: Val, bottom: Val) -> None:
        k, shape = self.k, self.shape
        with self.phases.phase() as panel, k.loop(top, bottom) as row, k.loop(0, shape.units, shape.lanes) as at:
            self._begin(row, self._tile(panel, at))
        with k.loop(0, self.steps) as t:
            for number, stage in enumerate(self.config.stages):
                if self.int8 is not None:
                    self.int8.quantize(partial(self._source, stage, t), partial(self._is_counted, t))
                with self.phases.phase() as panel, k.loop(top, bottom, shape.rows) as row:
                    rows = k.min(bottom - row, shape.rows)
                    self._products(stage, t, panel, row, rows)
                    with k.loop(0, rows) as i, k.loop(0, shape.units, shape.lanes) as at:
                        sums = self.sums.at(i * (self.max_gates * shape.units) + at)
                        self._apply_expression(number, t, row + i, self._tile(panel, at), sums)
        if self.int8 is not None:
            self.int8.release()

    # -- memory

    def _slot(self, number: Operand, row: Val) -> Buf:
        """A state vector of a sequence: 0 and 1 the first state, then the other states, then the results of stages."""
        place = (self.k.value(number, i64) * self.args.directions + self.direction) * self.args.rows + row
        return self.args.memory.at(place * self.padded)

    def _state(self, i: int, t: Val, row: Val) -> Buf:
        """A state before step ``t``."""
        return self._slot(t & 1 if i == 0 else i + 1, row)

    def _stage_result(self, number: int, row: Val) -> Buf:
        return self._slot(1 + self.config.states + number, row)

    def _source(self, stage: Stage, t: Val, row: Val) -> Buf:
        """The vector that a stage multiplies."""
        return self._state(0, t, row) if stage.source == 0 else self._stage_result(stage.source - 1, row)

    def _is_counted(self, t: Val, row: Val) -> Val | None:
        """Whether the sequence has not ended before the last step; None if it has no length."""
        return None if self.args.lengths is None else t <= self._length(row)

    def _tile(self, panel: Val, at: Val) -> Tile:
        unit, lanes = panel * self.shape.units + at, self.shape.lanes
        mask = None if self.config.has_full_panels else self.k.mask(self.args.units - unit, lanes)
        return Tile(unit, lanes, mask)

    # -- before the first step and after the last

    def _begin(self, row: Val, u: Tile) -> None:
        """The initial states, which are the final ones too if there are no steps."""
        for i, initial in enumerate(self.args.initial):
            zero = self.k.zeros(self.config.dtype, u.lanes)
            start = zero if initial is None else initial.at(direction=self.direction, row=row).load(u)
            self._state(i, self.k.const(0), row).store(u.index, start)
            self._end(i, row, u, zero if self.config.is_int8 else start)

    def _end(self, i: int, row: Val, u: Tile, state: Val) -> None:
        final = self.args.finals[i]
        if final is not None:
            final.at(direction=self.direction, row=row).store(u, state)

    def _length(self, row: Val) -> Val:
        """The length of a sequence; one out of range is reported as an error, and clamped."""
        lengths = self.args.lengths
        if lengths is None:
            return self.steps
        k, length = self.k, self.k.cast(lengths.at(row=row).load(), i64)
        with k.when((length < 0) | (length > self.steps), likely=False):
            k.fail(Code.INDEX, length)
        return k.max(k.min(length, self.steps), 0)

    # -- a step

    def _products(self, stage: Stage, t: Val, panel: Val, row: Val, rows: Val) -> None:
        """The matrix products of a panel for a few sequences, into ``sums``."""
        k, shape = self.k, self.shape
        if self.int8 is not None:
            self._int8_products(self.int8, stage, panel, row, rows)
            return
        source, r = self._source(stage, t, row), self.args.r
        assert r.gate is not None
        weights = [
            r.at(direction=self.direction).at(r.gate * gate + panel * (self.args.units * shape.units))
            for gate in stage.gates
        ]
        for low, high in zip((0, *shape.heights), shape.heights, strict=False):
            with k.when((rows > low) & (rows <= high)):
                sources = [source.at(self.padded * k.min(rows - 1, i)) for i in range(high)]
                vectors = shape.vectors_of(high, len(weights), k.isa)
                with k.loop(0, shape.units, vectors * shape.lanes) as at:
                    self._tile_products(sources, [w.at(at) for w in weights], self.sums.at(at), vectors)

    def _int8_products(self, source: int8.QuantizedSource, stage: Stage, panel: Val, row: Val, rows: Val) -> None:
        k, shape, width = self.k, self.shape, self.shape.units
        r, scale, zero = self.args.r, source.args.scale, source.args.zero
        nbytes = (source.args.depth + quads.QUAD) * width

        def of_gates(operand: OperandArgs[Buf, Val], moved: Val) -> list[Buf]:
            assert operand.gate is not None
            start = operand.at(direction=self.direction)
            return [start.at(operand.gate * gate + moved) for gate in stage.gates]

        weights, scales = of_gates(r, panel * nbytes), of_gates(scale, k.const(0))
        zeros = [None for _ in stage.gates] if zero is None else of_gates(zero, k.const(0))

        def panel_at(at: Val, vectors: int) -> int8.Panel:
            units = [self._tile(panel, at + v * shape.lanes) for v in range(vectors)]
            places = self.sums.at(at)
            return int8.Panel(
                [w.at(at * quads.QUAD) for w in weights], scales, zeros, units, width,
                lambda i, g, v: places.at((k.value(i, i64) * self.max_gates + g) * width + v * shape.lanes),
            )  # fmt: skip

        heights = int8.heights_of(shape, k.isa)
        for low, high in zip((0, *heights), heights, strict=False):
            with k.when((rows > low) & (rows <= high)):
                numbers = [row + k.min(rows - 1, i) for i in range(high)]
                if high == 1:
                    int8.vector_products(source, numbers, panel_at(k.const(0), shape.vectors), shape.chains)
                    continue
                with k.loop(0, width, shape.lanes) as at:
                    int8.vector_products(source, numbers, panel_at(at, 1), shape.chains)
        if source.tiles is not None:
            with k.when(rows > heights[-1]), k.loop(0, width, shape.lanes) as at:
                source.tiles.products(source, row, rows, panel_at(at, 1))

    def _tile_products(self, source: list[Buf], weights: list[Buf], to: Buf, vectors: int) -> None:
        k, units, dtype = self.k, self.args.units, self.config.dtype
        lanes, width, chains = self.shape.lanes, self.shape.units, self.shape.chains

        places = [(g, v * lanes) for g in range(len(weights)) for v in range(vectors)]
        zero = k.zeros(dtype, lanes)
        sums = [[[k.var(zero) for _ in range(chains)] for _ in places] for _ in source]

        def add(j: Val, chain: int) -> None:
            columns = [weights[g].load(j * width + at, lanes) for g, at in places]
            for row, elements in zip(sums, source, strict=True):
                x = k.splat(elements.load(j), lanes)
                for chain_sums, w in zip(row, columns, strict=True):
                    chain_sums[chain].set(k.multiply_add(x, w, chain_sums[chain]))

        whole = units - units % chains
        with k.loop(0, whole, chains) as j:
            for chain in range(chains):
                add(j + chain, chain)
        if chains > 1:
            with k.loop(whole, units) as j:
                add(j, 0)
        for i, row in enumerate(sums):
            for (g, at), chain_sums in zip(places, row, strict=True):
                to.store((i * self.max_gates + g) * width + at, _sum_chains([p.get() for p in chain_sums]))

    def _apply_expression(self, number: int, t: Val, row: Val, u: Tile, sums: Buf) -> None:
        """The stage's expression for a vector of units."""
        k, config, stage = self.k, self.config, self.config.stages[number]
        length = self._length(row)
        is_live = t < length
        is_backward = (self.direction >= self.args.forward) & is_live
        at = k.select(is_backward, length - 1 - t, t)
        before = sum(len(s.expression.results) for s in config.stages[:number])
        old = [self._state(i, t, row) for i in range(config.states)]
        x, gate = self.args.x.at(direction=self.direction, step=at, row=row), self.args.x.gate
        assert gate is not None
        if config.is_int8 and stage is config.stages[0]:
            following = self.args.x.at(direction=self.direction, step=k.select(is_backward, at - 1, at + 1), row=row)
            for g in range(config.gates):  # beyond the last step too: a prefetch cannot fault
                following.at(gate * g).prefetch(u.index)
        places: list[tuple[Buf, Operand | Tile]] = [
            *((x.at(gate * g), u) for g in range(config.gates)),
            *((sums, g * self.shape.units) for g in range(len(stage.gates))),
            *((state, u.index) for state in old),
            *((constant.at(direction=self.direction), u) for constant in self.args.constants),
            *((self._stage_result(i, row), u.index) for i in range(before)),
        ]
        results = _evaluate(k, stage.expression, places, u.lanes)
        if stage is not config.stages[-1]:
            for i, value in enumerate(results):
                self._stage_result(before + i, row).store(u.index, value)
            return
        for i, value in enumerate(results):
            if config.lengths is not None:
                value = k.select(is_live, value, old[i].load(u.index, u.lanes))
            self._state(i, t + 1, row).store(u.index, value)
            with k.when(t.eq(self.steps - 1), likely=False):
                may_lack_steps = config.is_int8 and config.lengths is not None
                self._end(i, row, u, k.select(length > 0, value, 0) if may_lack_steps else value)
            if i == 0 and self.args.y is not None:
                shown = value if config.lengths is None else k.select(is_live, value, 0)
                self.args.y.at(direction=self.direction, step=at, row=row).store(u, shown)


def _evaluate(k: Kernel, e: Expression, places: list[tuple[Buf, Operand | Tile]], lanes: int) -> list[Val]:
    """The results of an expression; only used operands are loaded."""
    used = {a for step in e.steps if isinstance(step, Apply) for a in step.args} | set(e.results)
    values: dict[int, Val] = {}
    for i, (buf, at) in enumerate(places):
        if i in used:
            values[i] = buf.load(at) if isinstance(at, Tile) else buf.load(at, lanes)
    for i, step in enumerate(e.steps):
        assert isinstance(step, Apply), "a stage's expression is pointwise"
        values[len(e.operands) + i] = apply(k, e, step, [values[a] for a in step.args])
    return [values[r] for r in e.results]


def _sum_chains(chain_sums: list[Val]) -> Val:
    while len(chain_sums) > 1:
        chain_sums = [a + b for a, b in zip(chain_sums[::2], chain_sums[1::2], strict=True)]
    return chain_sums[0]
