"""Time stamps of a profiled run, reported node by node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.interpret.context import RunContext
from sardonyx.ir import dims
from sardonyx.ir.graph import Node, Value
from sardonyx.providers.cpu.language.context import Context, Stamp
from sardonyx.providers.cpu.memory.allocator import address
from sardonyx.providers.cpu.runtime.team import now, ticks_per_second

if TYPE_CHECKING:
    from sardonyx.lower.groups import View
    from sardonyx.providers.cpu.runtime.step_table import StepTable

HEAVY = frozenset(("Attention", "Conv", "ConvTranspose", "Gemm", "MatMul"))
"""Operators that a step is named after, whatever is fused into it; other steps have the name of their last node."""


class Recorder:
    """Time stamps of every step and thread of one run."""

    def __init__(self, table: StepTable, threads: int, slots: Any) -> None:
        self._table = table
        self._stamps = np.zeros((len(table.steps), threads, Stamp.WORDS), np.int64)
        slots[Context.PROFILE] = address(self._stamps)
        slots[Context.PROFILE_THREADS] = threads
        self._ticks, self._ns = now(), time.perf_counter_ns()

    def seconds(self) -> Any:
        """How long each step took, of all threads together."""
        return self._stamps[:, :, Stamp.TOTAL].sum(axis=1) / ticks_per_second()

    def report(self, context: RunContext, views: Mapping[Value, View], sizes: tuple[int, ...]) -> None:
        """Tell the context's recorder about every node that ran; ``views`` and ``sizes`` tell the shapes.

        What several steps in a row do for one node is told of at once, and so are all trips of a loop.
        """
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


def main_node(nodes: tuple[Node, ...]) -> Node:
    """The node that a step is named after."""
    return next((n for n in nodes if n.op_type in HEAVY), nodes[-1])


def _stand_in(value: Value | None, views: Mapping[Value, View], sizes: Mapping[str, int]) -> Any:
    """An array of a value's type and shape that takes no memory."""
    if value is None or value.dtype is None:
        return None
    given = views[value].shape if value in views else value.const.shape if value.const is not None else None
    shape = None if given is None else [dims.evaluate(d, sizes) for d in given]
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return np.broadcast_to(np.zeros((), value.dtype.numpy), tuple(int(d) for d in shape if d is not None))
