"""Time stamps of a profiled run: of every step and thread."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.interpret.context import RunContext
from sardonyx.ir import dims
from sardonyx.ir.graph import Node, Value
from sardonyx.plan.buckets import bucket
from sardonyx.providers.cpu.language.context import Context, Stamp
from sardonyx.providers.cpu.memory.allocator import address
from sardonyx.providers.cpu.runtime.team import now, ticks_per_second

if TYPE_CHECKING:
    from sardonyx.interpret.profile import StepFacts, StepRun
    from sardonyx.lower.groups import View
    from sardonyx.providers.cpu.program.steps import Step
    from sardonyx.providers.cpu.runtime.step_table import StepTable
    from sardonyx.providers.cpu.runtime.team import Team

HEAVY = frozenset(("Attention", "Conv", "ConvTranspose", "Gemm", "MatMul"))
"""Operators that a step is named after, whatever is fused into it; other steps have the name of their last node."""


class Recorder:
    """Time stamps of every step and thread of one run."""

    def __init__(self, table: StepTable, threads: int, slots: Any) -> None:
        self._table = table
        stamps = np.zeros((1 + len(table.steps), threads, Stamp.WORDS), np.int64)
        self._team, self._stamps = stamps[0], stamps[1:]
        slots[Context.PROFILE] = address(stamps) + self._team.nbytes
        slots[Context.PROFILE_THREADS] = threads
        self._ticks, self._ns = now(), time.perf_counter_ns()

    def seconds(self) -> Any:
        """How long each step took, of all threads together."""
        return self._stamps[:, :, Stamp.TOTAL].sum(axis=1) / ticks_per_second()

    def report(self, context: RunContext, views: Mapping[Value, View], sizes: tuple[int, ...], team: Team) -> None:
        """Tell the context's recorders about the steps that ran; ``views`` and ``sizes`` tell the shapes."""
        if context.record_part is not None:
            workers = [0, *(team.ids.get(int(w) - 1, 0) for w in self._team[1:, Stamp.WORKER])]
            context.record_part(MeasuredRun(self._table, self._stamps, (self._ticks, self._ns), views, sizes, workers))
        elif context.record is not None:
            self._report_nodes(context, views, sizes)

    def _report_nodes(self, context: RunContext, views: Mapping[Value, View], sizes: tuple[int, ...]) -> None:
        """What several steps in a row do for one node is told of at once, and so are all trips of a loop."""
        assert context.record is not None
        named = dict(zip(self._table.binding.names, sizes, strict=True))
        scale = 1e9 / ticks_per_second()
        stamped = zip(self._table.steps, self._stamps, strict=True)
        ran = [(main_node(step.nodes), s[s[:, Stamp.FIRST] > 0]) for step, s in stamped if step.nodes and s.any()]
        for node, of_node in groupby(ran, key=itemgetter(0)):
            stamps = np.concatenate([of_step for _, of_step in of_node])
            begun, ended = stamps[:, Stamp.FIRST].min(), (stamps[:, Stamp.FIRST] + stamps[:, Stamp.TOTAL]).max()
            start, end = (self._ns + int((t - self._ticks) * scale) for t in (begun, ended))
            inputs, outputs = ([_stand_in(v, views, named) for v in side] for side in (node.inputs, node.outputs))
            context.record(node, start, end, inputs, outputs)


class MeasuredRun:
    """One run of a part (``interpret.profile.PartRun``); the facts of its steps are computed once for a shape."""

    def __init__(
        self,
        table: StepTable,
        stamps: Any,
        epoch: tuple[int, int],
        views: Mapping[Value, View],
        sizes: tuple[int, ...],
        workers: list[int],
    ) -> None:
        """``epoch``: ticks and nanoseconds at one moment."""
        self._table, self._stamps, self._epoch, self._views, self._sizes = table, stamps, epoch, views, sizes
        self.workers, self.has_loops, self.step_count = workers, table.has_loops, len(table.steps)

    def steps(self) -> list[StepRun]:
        from sardonyx.interpret.profile import StepRun, ThreadTimes

        ticks, ns = self._epoch
        scale = 1e9 / ticks_per_second()
        first, total, _, waited = np.moveaxis(self._stamps, 2, 0)
        starts = np.where(first > 0, ns + ((first - ticks) * scale).astype(np.int64), 0).tolist()
        busy, waits = (total * scale).astype(np.int64).tolist(), (waited * scale).astype(np.int64).tolist()
        return [
            StepRun(facts, tuple(map(ThreadTimes, range(len(starts[i])), starts[i], busy[i], waits[i])))
            for i, facts in enumerate(self._facts)
            if any(starts[i]) or any(waits[i])
        ]

    @property
    def _facts(self) -> list[StepFacts]:
        known: dict[tuple[int, ...], list[StepFacts]] = self._table.__dict__.setdefault("profiled", {})
        if self._sizes not in known:
            known[self._sizes] = self._found()
        return known[self._sizes]

    def _found(self) -> list[StepFacts]:
        table = self._table
        named = dict(zip(table.binding.names, self._sizes, strict=True))
        values = np.array(table.evaluate(self._sizes), np.int64)
        flops, traffic = values[table.flops].tolist(), values[table.traffic].tolist()
        part = next((step.nodes[0].label for step in table.steps if step.nodes), "")
        live = self._live_nbytes(values)
        return [
            _facts_of(step, i, part, self._views, named, (flops[i], traffic[i], live[table.intervals[i]]))
            for i, step in enumerate(table.steps)
        ]

    def _live_nbytes(self, values: Any) -> list[int]:
        """The bytes of intermediates that live in each interval."""
        table = self._table
        live = np.zeros(max(table.intervals, default=0) + 1, np.int64)
        for nbytes, (first, last) in zip(values[table.nbytes].tolist(), table.lives, strict=True):
            live[first : last + 1] += bucket(nbytes)[1]
        found: list[int] = live.tolist()
        return found


def _facts_of(
    step: Step,
    index: int,
    part: str,
    views: Mapping[Value, View],
    sizes: Mapping[str, int],
    numbers: tuple[int, int, int],
) -> StepFacts:
    node = main_node(step.nodes) if step.nodes else None
    flops, nbytes, live = numbers
    sides: tuple[Sequence[Value | None], ...] = ((), ()) if node is None else (node.inputs, node.outputs)
    inputs, outputs = (tuple(_stand_in(v, views, sizes) for v in side) for side in sides)
    from sardonyx.interpret.profile import StepFacts  # runs that only try numbers of threads do without

    return StepFacts(
        part, index, step.spec.name, step.variant, node, step.nodes, inputs, outputs, flops, nbytes,
        min(_weights_nbytes(step, sizes), nbytes), _arithmetic(step), live,
    )  # fmt: skip


def _weights_nbytes(step: Step, sizes: Mapping[str, int]) -> int:
    from sardonyx.providers.cpu.program.steps import Ref

    storages = {given.storage for given in step.args.values() if isinstance(given, Ref)}
    found = 0
    for s in storages:
        if s.kind == "constant":
            elements = dims.evaluate(s.elements, sizes)
            found += elements * s.dtype.itemsize if isinstance(elements, int) else 0
    return found


def _arithmetic(step: Step) -> str:
    """The arithmetic that a step's kernel and operands tell."""
    from sardonyx.providers.cpu.program.steps import Ref

    args = step.args.items()
    reads = {a.storage.dtype.name for name, a in args if isinstance(a, Ref) and name not in step.writes}
    if "f64" in reads:
        return "f64"
    is_quantized = step.choice is not None and step.choice.variant.family == "quantized"
    return "i8" if is_quantized and reads & {"i8", "u8"} else "f32"


def main_node(nodes: tuple[Node, ...]) -> Node:
    """The node that a step is named after."""
    return next((n for n in nodes if n.onnx_op in HEAVY), nodes[-1])


def _stand_in(value: Value | None, views: Mapping[Value, View], sizes: Mapping[str, int]) -> Any:
    """An array of a value's type and shape that takes no memory."""
    if value is None or value.dtype is None:
        return None
    given = views[value].shape if value in views else value.const.shape if value.const is not None else None
    shape = None if given is None else [dims.evaluate(d, sizes) for d in given]
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return np.broadcast_to(np.zeros((), value.dtype.numpy), tuple(int(d) for d in shape if d is not None))
