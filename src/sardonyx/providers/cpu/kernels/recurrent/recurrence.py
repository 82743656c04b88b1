"""Recurrences: steps over time, each a product of the state with few rows, and what follows it unit by unit.

Weights lie in panels of U neighbouring units (``pack``): [direction][gate][units / U][source][U], so that one step
streams through them once. Sums of all gates are in registers: of a whole panel for a single row, which then has enough
of them to hide the latency of additions; of one vector of units for several rows, which then share each load. The
expression follows while the sums are in L1, and the next panel's sums hide its latency.

**Order of sums.** Each sum has ``chains`` parts, of every so-manieth product, which are added at the end: enough of
them to hide the latency of additions. The order does not depend on rows or threads.

**Threads.** Directions, and blocks of sequences, are independent. Where there are fewer of them than threads, and the
weights are so large that it pays, all threads go through every one of them together: in each phase (the beginning,
each stage of each step) they take panels as long as there are some, and wait until all are done. Nobody waits for a
thread that has no panel, so that one which the system keeps from running, or wakes late, holds up no other. The first
state is double: a step reads one half and writes the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Apply, Expression, Recurrence, Stage, Storage, View
from sardonyx.providers.cpu.kernels.common.loop_nest import apply
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, Problem, of_known
from sardonyx.providers.cpu.kernels.gemm.contraction import storage_dtype
from sardonyx.providers.cpu.kernels.gemm.pack import packed_b
from sardonyx.providers.cpu.kernels.gemm.vector import lanes_of
from sardonyx.providers.cpu.language.context import COUNTERS, Code, Context
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.spin_park import TeamCpus, wait_while, wake_waiters
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, Var, i64
from sardonyx.providers.cpu.machine.isa import KIB, Isa
from sardonyx.providers.cpu.program.steps import Ref, Step, Target

CHAINS = 6
"""Independent sums that come near to hiding the latency of multiply-adds."""
BLOCKS = 16
"""Blocks of sequences in one direction, at most."""
SHARED_NBYTES, SHARED_STEPS = 128 * KIB, 4
"""Weights of a stage, and steps, from which threads share panels: to meet costs as much as reading 25 KB."""
SHARED_MOST = COUNTERS // 3
"""Directions and blocks that can be shared: each has three counters."""


@dataclass(frozen=True)
class Shape:
    """How sums lie in registers: vectors of a panel, parts of each sum, rows of a tile.

    A tile of several rows leaves 8 registers to weights and elements.
    """

    lanes: int
    vectors: int
    chains: int
    rows: int

    @staticmethod
    def of(isa: Isa, dtype: DType, units: int, gates: int) -> Shape:
        lanes = lanes_of(isa.lanes, dtype)
        while lanes > 4 and lanes // 2 >= units:
            lanes //= 2
        vectors = 1 if -(-units // lanes) % 2 else 2
        chains = next(n for n in (1, 2, 4) if gates * vectors * n >= CHAINS or n == 4)
        return Shape(lanes, vectors, chains, max(1, (isa.registers - 8) // (gates * chains)))

    @property
    def heights(self) -> tuple[int, ...]:
        """The tiles that have a loop of their own; others take the next one, their last row repeated."""
        return (1, self.rows) if self.rows > 1 else (1,)

    @property
    def units(self) -> int:
        """U, the units of a panel."""
        return self.lanes * self.vectors


@dataclass(frozen=True)
class Form:
    """What is constant about a recurrence."""

    dtype: DType
    """Of the sums, the states and the projected inputs."""
    weights: DType
    shape: Shape
    stages: tuple[Stage, ...]
    gates: int
    is_whole: bool
    """The last panel is full."""
    constants: tuple[DType, ...]
    lengths: DType | None
    initial: tuple[DType | None, ...]
    y: DType | None
    finals: tuple[DType | None, ...]

    @property
    def states(self) -> int:
        return len(self.initial)

    @property
    def slots(self) -> int:
        """Vectors of units that a sequence has in memory: the first state twice, the others, and what is kept."""
        return 1 + self.states + sum(len(s.expression.results) for s in self.stages[:-1])

    @property
    def given(self) -> dict[str, tuple[DType, tuple[str, ...]]]:
        """The memory of the caller: its type, and the axes along which it has strides. Units are neighbours."""
        per_state = ("way", "row")
        found = {
            "x": (self.dtype, ("way", "step", "row", "gate")),
            "r": (self.weights, ("way", "gate")),
            **{f"constant{i}": (t, ("way",)) for i, t in enumerate(self.constants)},
            "lengths": (self.lengths, ("row",)),
            **{f"initial{i}": (t, per_state) for i, t in enumerate(self.initial)},
            "y": (self.y, ("way", "step", "row")),
            **{f"final{i}": (t, per_state) for i, t in enumerate(self.finals)},
        }
        return {name: (dtype, axes) for name, (dtype, axes) in found.items() if dtype is not None}


def steps(group: Recurrence, target: Target) -> list[Step]:
    isa, dtype = target.isa, group.x.dtype
    ways, count, batch, gates, units = group.x.shape
    assert isinstance(units, int) and isinstance(ways, int) and isinstance(gates, int)
    shape = Shape.of(isa, dtype, units, max(len(s.gates) for s in group.stages))
    weights = _weights(group)
    stored, why = storage_dtype(weights, target)
    before, r = packed_b(weights, stored, shape.units, isa)
    form = Form(
        dtype, stored, shape, group.stages, gates, units % shape.units == 0, tuple(v.dtype for v in group.constants),
        _dtype(group.lengths), tuple(map(_dtype, group.initial)), _dtype(group.y), tuple(map(_dtype, group.finals)),
    )  # fmt: skip
    named: list[tuple[str, View | None]] = [("x", group.x), ("lengths", group.lengths), ("y", group.y)]
    named += [(f"constant{i}", v) for i, v in enumerate(group.constants)]
    named += [(f"initial{i}", v) for i, v in enumerate(group.initial)]
    named += [(f"final{i}", v) for i, v in enumerate(group.finals)]
    args: dict[str, Ref | Known | float] = {"r": Ref(r.storage, r.offset), "r_way": r.batch[0], "r_gate": r.batch[1]}
    for name, view in named:
        if view is not None:
            args[name] = Ref.of(view)
            args |= {f"{name}_{axis}": s for axis, s in zip(form.given[name][1], view.strides, strict=False)}
    padded = -(-units // shape.units) * shape.units
    memory = Storage("temporary", dtype, of_known(dims.product((form.slots, ways, batch, padded))))
    nbytes = gates * units * units * stored.bits // 8
    args |= {
        "memory": Ref(memory), "ways": ways, "steps": count, "rows": batch, "units": units,
        "forward": group.backward.index(True) if True in group.backward else ways,
        "blocks_most": BLOCKS if nbytes <= isa.l2_nbytes // 2 else BLOCKS // 4,
        "shared_from": SHARED_STEPS if nbytes >= SHARED_NBYTES * len(group.stages) else -1,
    }  # fmt: skip
    flops = of_known(dims.product((2, ways, count, batch, gates, units, units)))
    variant = f"{shape.rows} x {shape.vectors} vectors of {dtype}: {why}"
    writes = frozenset(("memory", *(n for n in form.given if n == "y" or n.startswith("final"))))
    return [*before, Step(recur(form=form), args, writes, group.nodes, 0, flops, ways * nbytes, variant)]


def _dtype(view: View | None) -> DType | None:
    return None if view is None else view.dtype


def _weights(group: Recurrence) -> Problem:
    """The weights of the states as the right operands of products, one for each direction and gate."""
    ways, gates, units, _ = group.r.shape
    way, gate, unit, source = group.r.strides
    b = Matrix(group.r.storage, group.r.offset, (way, gate), source, unit)
    return Problem(group.nodes, (ways, gates), 1, units, units, b, b, Expression((), (), ()), (), ())


def _params(form: Form) -> Params:
    found: dict[str, Any] = {}
    for name, (dtype, axes) in form.given.items():
        found |= {name: (dtype,), **{f"{name}_{axis}": i64 for axis in axes}}
    numbers = ("ways", "steps", "rows", "units", "forward", "blocks_most", "shared_from")
    return {**found, "memory": (form.dtype,), **dict.fromkeys(numbers, i64)}


@kernel(_params)
def recur(k: Kernel, *, form: Form, ways: Val, rows: Val, units: Val, blocks_most: Val, **given: Any) -> None:
    width = form.shape.units
    panels = (units + (width - 1)) // width
    tiles = (rows + (form.shape.rows - 1)) // form.shape.rows
    block = (tiles + (blocks_most - 1)) // blocks_most * form.shape.rows
    blocks = (rows + (block - 1)) // k.max(block, 1)
    items = ways * blocks
    is_long = (given["shared_from"] >= 0) & (given["steps"] >= given["shared_from"])
    is_shared = is_long & (items < k.threads) & (items <= SHARED_MOST)
    first, last = k.share_of(items)
    first, last = k.select(is_shared, 0, first), k.select(is_shared, items, last)
    counters, *_ = (k.counter() for _ in range(3 * SHARED_MOST))
    with k.loop(first, last) as item:
        top = item % blocks * block
        phases = _Phases(k, panels, is_shared, counters.at(k.select(is_shared, item, 0) * 3))
        known = {**given, "rows": rows, "units": units, "ways": ways}
        _Walk(k, form, known, item // blocks, phases, panels * width).run(top, k.min(top + block, rows))


class _Phases:
    """One phase after the other over all panels, which one thread goes through, or all that share them."""

    TAKEN, DONE, SLEEPERS = range(3)

    def __init__(self, k: Kernel, panels: Val, is_shared: Val, counters: Buf) -> None:
        self.k, self.panels, self.is_shared, self.counters = k, panels, is_shared, counters
        self.end = k.var(0)
        """Panels of all phases up to the one at hand."""
        self.run = k.max(panels // (k.threads * 2), 1)

    @contextmanager
    def phase(self) -> Iterator[Val]:
        """The panels that this thread takes."""
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
            spin, crew = k.context().load(Context.SPIN), TeamCpus(k, k.context(), k.thread)
            wait_while(k, done, self.end.get().__gt__, spin, sleepers, crew)

    def _take(self, first: Var, last: Var) -> Val:
        """The next panels of the phase that nobody has taken; whether there are any."""
        k, taken = self.k, self.counters.at(self.TAKEN)
        first.set(last.get())
        last.set(self.end.get())
        trying = k.var(self.k.cast(self.is_shared, i64))
        with k.loop_while(lambda: trying.get().ne(0)):
            first.set(taken.load_atomic())
            last.set(k.min(first.get() + self.run, self.end.get()))
            is_mine = taken.swap_atomic(0, first.get(), k.max(first.get(), last.get()))
            trying.set(k.cast(~is_mine, i64))
        return first.get() < last.get()


class _Walk:
    """The code of one direction and a block of its sequences, for some panels of units."""

    def __init__(self, k: Kernel, form: Form, given: dict[str, Any], way: Val, phases: _Phases, padded: Val) -> None:
        self.k, self.form, self.given, self.way, self.phases, self.padded = k, form, given, way, phases, padded
        self.shape = form.shape
        self.steps: Val = given["steps"]
        self.most = max(len(stage.gates) for stage in form.stages)
        self.sums = k.local(form.dtype, self.shape.rows * self.most * self.shape.units)

    def run(self, top: Val, bottom: Val) -> None:
        k, shape = self.k, self.shape
        with self.phases.phase() as panel, k.loop(top, bottom) as row, k.loop(0, shape.units, shape.lanes) as at:
            self._begin(row, self._tile(panel, at))
        with k.loop(0, self.steps) as t:
            for number, stage in enumerate(self.form.stages):
                with self.phases.phase() as panel, k.loop(top, bottom, shape.rows) as row:
                    rows = k.min(bottom - row, shape.rows)
                    self._sum(stage, t, panel, row, rows)
                    with k.loop(0, rows) as i, k.loop(0, shape.units, shape.lanes) as at:
                        sums = self.sums.at(i * (self.most * shape.units) + at)
                        self._finish(number, t, row + i, self._tile(panel, at), sums)

    # -- memory

    def _at(self, name: str, **indices: Val) -> Buf:
        """Where the units of some memory begin."""
        found: Buf = self.given[name]
        for axis, index in indices.items():
            found = found.at(index * self.given[f"{name}_{axis}"])
        return found

    def _slot(self, number: Operand, row: Val) -> Buf:
        """A vector of units of a sequence: 0 and 1 the first state, then the other states, then what is kept."""
        place = (self.k.value(number, i64) * self.given["ways"] + self.way) * self.given["rows"] + row
        buf: Buf = self.given["memory"]
        return buf.at(place * self.padded)

    def _state(self, i: int, t: Val, row: Val) -> Buf:
        """A state before step ``t``."""
        return self._slot(t & 1 if i == 0 else i + 1, row)

    def _kept(self, number: int, row: Val) -> Buf:
        return self._slot(1 + self.form.states + number, row)

    def _tile(self, panel: Val, at: Val) -> Tile:
        unit, lanes = panel * self.shape.units + at, self.shape.lanes
        return Tile(unit, lanes, None if self.form.is_whole else self.k.mask(self.given["units"] - unit, lanes))

    # -- before the first step and after the last

    def _begin(self, row: Val, u: Tile) -> None:
        """The states before the first step, which are the last ones too if there is none."""
        for i, dtype in enumerate(self.form.initial):
            zero = self.k.zeros(self.form.dtype, u.lanes)
            start = zero if dtype is None else self._at(f"initial{i}", way=self.way, row=row).load(u)
            self._state(i, self.k.const(0), row).store(u.index, start)
            self._end(i, row, u, start)

    def _end(self, i: int, row: Val, u: Tile, state: Val) -> None:
        if self.form.finals[i] is not None:
            self._at(f"final{i}", way=self.way, row=row).store(u, state)

    def _length(self, row: Val) -> Val:
        """How many steps a sequence has; one that is out of range is an error, and kept inside."""
        if self.form.lengths is None:
            return self.steps
        k, length = self.k, self.k.cast(self._at("lengths", row=row).load(), i64)
        with k.when((length < 0) | (length > self.steps), likely=False):
            k.fail(Code.INDEX, length)
        return k.max(k.min(length, self.steps), 0)

    # -- a step

    def _sum(self, stage: Stage, t: Val, panel: Val, row: Val, rows: Val) -> None:
        """The sums of a panel for a few sequences, into memory."""
        k, shape = self.k, self.shape
        source = self._state(0, t, row) if stage.source == 0 else self._kept(stage.source - 1, row)
        weights = [
            self._at("r", way=self.way).at(self.given["r_gate"] * gate + panel * (self.given["units"] * shape.units))
            for gate in stage.gates
        ]
        for low, high in zip((0, *shape.heights), shape.heights, strict=False):
            with k.when((rows > low) & (rows <= high)):
                given = [source.at(self.padded * k.min(rows - 1, i)) for i in range(high)]
                if high == 1:
                    self._tile_sums(given, weights, self.sums, shape.vectors)
                    continue
                with k.loop(0, shape.units, shape.lanes) as at:
                    self._tile_sums(given, [w.at(at) for w in weights], self.sums.at(at), 1)

    def _tile_sums(self, source: list[Buf], weights: list[Buf], to: Buf, vectors: int) -> None:
        k, units, dtype = self.k, self.given["units"], self.form.dtype
        lanes, width, chains = self.shape.lanes, self.shape.units, self.shape.chains
        is_fused = not k.isa.is_plain
        places = [(g, v * lanes) for g in range(len(weights)) for v in range(vectors)]
        zero = k.zeros(dtype, lanes)
        sums = [[[k.var(zero) for _ in range(chains)] for _ in places] for _ in source]

        def add(j: Val, chain: int) -> None:
            columns = [weights[g].load(j * width + at, lanes) for g, at in places]
            for row, elements in zip(sums, source, strict=True):
                x = k.splat(elements.load(j), lanes)
                for parts, w in zip(row, columns, strict=True):
                    parts[chain].set(k.fma(x, w, parts[chain]) if is_fused else parts[chain] + x * w)

        whole = units - units % chains
        with k.loop(0, whole, chains) as j:
            for chain in range(chains):
                add(j + chain, chain)
        if chains > 1:
            with k.loop(whole, units) as j:
                add(j, 0)
        for i, row in enumerate(sums):
            for (g, at), parts in zip(places, row, strict=True):
                to.store((i * self.most + g) * width + at, _added([p.get() for p in parts]))

    def _finish(self, number: int, t: Val, row: Val, u: Tile, sums: Buf) -> None:
        """What follows the sums of neighbouring units."""
        k, form, stage = self.k, self.form, self.form.stages[number]
        length = self._length(row)
        is_live = t < length
        is_backward = (self.way >= self.given["forward"]) & is_live
        at = k.select(is_backward, length - 1 - t, t)
        before = sum(len(s.expression.results) for s in form.stages[:number])
        old = [self._state(i, t, row) for i in range(form.states)]
        x = self._at("x", way=self.way, step=at, row=row)
        places: list[tuple[Buf, Operand | Tile]] = [
            *((x.at(self.given["x_gate"] * g), u) for g in range(form.gates)),
            *((sums, g * self.shape.units) for g in range(len(stage.gates))),
            *((state, u.index) for state in old),
            *((self._at(f"constant{i}", way=self.way), u) for i in range(len(form.constants))),
            *((self._kept(i, row), u.index) for i in range(before)),
        ]
        results = _evaluate(k, stage.expression, places, u.lanes)
        if stage is not form.stages[-1]:
            for i, value in enumerate(results):
                self._kept(before + i, row).store(u.index, value)
            return
        for i, value in enumerate(results):
            if form.lengths is not None:
                value = k.select(is_live, value, old[i].load(u.index, u.lanes))
            self._state(i, t + 1, row).store(u.index, value)
            with k.when(t.eq(self.steps - 1), likely=False):
                self._end(i, row, u, value)
            if i == 0 and form.y is not None:
                shown = value if form.lengths is None else k.select(is_live, value, 0)
                self._at("y", way=self.way, step=at, row=row).store(u, shown)


def _evaluate(k: Kernel, e: Expression, places: list[tuple[Buf, Operand | Tile]], lanes: int) -> list[Val]:
    """The results of an expression; operands are loaded if they are used."""
    used = {a for step in e.steps if isinstance(step, Apply) for a in step.args} | set(e.results)
    values: dict[int, Val] = {}
    for i, (buf, at) in enumerate(places):
        if i in used:
            values[i] = buf.load(at) if isinstance(at, Tile) else buf.load(at, lanes)
    for i, step in enumerate(e.steps):
        assert isinstance(step, Apply), "what follows sums works unit by unit"
        values[len(e.operands) + i] = apply(k, e, step, [values[a] for a in step.args])
    return [values[r] for r in e.results]


def _added(parts: list[Val]) -> Val:
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
