"""A graph as a flat list of steps over numbered slots.

Everything that does not depend on the data is decided once: which function runs a node, the slots of its inputs and
outputs, and after which step a value is freed. A subgraph is a program of its own whose captures are further inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from sardonyx.errors import Fail, InvalidArgument, OutOfBudget, RuntimeException, SardonyxError
from sardonyx.forks import cached_property
from sardonyx.interpret import work
from sardonyx.interpret.context import ModelNeeded, RunContext
from sardonyx.interpret.live import Live
from sardonyx.ir.graph import Graph, Node, Value

Kernel = Callable[..., Any]
"""From a node's input values to its outputs: one value, or a tuple of them."""

ABSENT = 0
"""The slot of an omitted input; it always holds None."""


SILENT = frozenset(("sardonyx.ops.movement", "sardonyx.ops.sequence", "sardonyx.ops.text"))
"""Modules of operators that compute no numbers."""


class Step(NamedTuple):
    kernel: Kernel
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    drops: tuple[int, ...]
    """Slots that are not read after this step."""
    takes_context: bool
    node: Node


class Program:
    """Runs the nodes of a graph, or of a part, in order."""

    def __init__(
        self,
        nodes: Iterable[Node],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        bind: Callable[[Node], tuple[Kernel, Sequence[Value], bool]],
    ) -> None:
        """``bind`` returns a node's kernel, the values that it reads besides its inputs, and whether it takes the
        context.
        """
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._slots: dict[Value, int] = {}
        self._constants: list[tuple[int, Value]] = []
        self._width = 1
        self._template: list[Any] | None = None
        fed = tuple(self._slot(v) for v in inputs)
        nodes = list(nodes)
        bound = [(node, *bind(node)) for node in nodes]
        read: list[tuple[int, ...]] = []
        made: list[tuple[int, ...]] = []
        for node, _, captured, _ in bound:
            read.append(tuple(self._slot(v) for v in (*node.inputs, *captured)))
            made.append(tuple(self._slot(v) for v in node.outputs))
        self._fed, self._given = fed, tuple(self._slot(v) for v in outputs)
        drops = _last_uses(read, made, keep={ABSENT, *self._given, *(slot for slot, _ in self._constants)})
        self.steps = [
            Step(kernel, read[i], made[i], drops[i], takes_context, node)
            for i, (node, kernel, _, takes_context) in enumerate(bound)
        ]

    def _slot(self, value: Value | None) -> int:
        if value is None:
            return ABSENT
        slot = self._slots.get(value)
        if slot is None:
            slot = self._slots[value] = self._width
            self._width += 1
            if value.const is not None and value not in self.inputs:
                self._constants.append((slot, value))
        return slot

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        """The values of ``outputs`` for those of ``inputs``; they may share memory with each other and ``args``."""
        if self._template is None:
            template: list[Any] = [None] * self._width
            for slot, value in self._constants:
                template[slot] = value.numpy()
            self._template = template
        frame = self._template.copy()
        for slot, arg in zip(self._fed, args, strict=True):
            frame[slot] = arg
        if context.budget is None and self._is_silent:
            self._walk(frame, context)  # bodies silence numpy themselves
            return [frame[slot] for slot in self._given]
        with np.errstate(all="ignore"):
            if context.budget is None:
                self._walk(frame, context)
            else:
                live = Live(context.budget, args)
                try:
                    self._walk(frame, context, live)
                finally:
                    live.end()
        return [frame[slot] for slot in self._given]

    @cached_property
    def _is_silent(self) -> bool:
        """Whether numpy warns of nothing in these steps: they run bodies, or compute no numbers."""
        return all(step.takes_context or _module(step.kernel) in SILENT for step in self.steps)

    def bodies(self) -> Iterator[Any]:
        """The compiled bodies of control flow."""
        for step in self.steps:
            yield from getattr(step.kernel, "keywords", {}).get("bodies", {}).values()

    def _walk(self, frame: list[Any], context: RunContext, live: Live | None = None) -> None:
        watched = context.deadline is not None
        record, budget = context.record, context.budget
        step: Step | None = None
        try:
            for step in self.steps:
                if context.stop or watched:
                    context.check()
                args = [frame[i] for i in step.inputs]
                if budget is not None:
                    budget.check_work(work.seconds(step.node, args))
                start = time.perf_counter_ns() if record is not None else 0
                result = step.kernel(*args, context=context) if step.takes_context else step.kernel(*args)
                if type(result) is not tuple:
                    result = (result,)
                if record is not None:
                    record(step.node, start, time.perf_counter_ns(), args, result)
                for slot, value in zip(step.outputs, result, strict=False):
                    frame[slot] = value if type(value) is np.ndarray else _unwrapped(value)
                if live is not None:
                    for slot in step.outputs:
                        live.add(frame[slot])
                    for slot in step.drops:
                        live.drop(frame[slot])
                for slot in step.drops:
                    frame[slot] = None
        except ModelNeeded:
            raise
        except Exception as e:
            assert step is not None
            raise located(e, step.node, [frame[i] for i in step.inputs]) from e


def _module(kernel: Kernel) -> str:
    """The module of the function that a kernel is."""
    return str(getattr(getattr(kernel, "func", kernel), "__module__", ""))


def _unwrapped(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic | int | float | bool) else value


def _last_uses(read: list[tuple[int, ...]], made: list[tuple[int, ...]], keep: set[int]) -> list[tuple[int, ...]]:
    last: dict[int, int] = {}
    for i, slots in enumerate(made):
        last.update(dict.fromkeys(slots, i))
    for i, slots in enumerate(read):
        last.update(dict.fromkeys(slots, i))
    drops: list[list[int]] = [[] for _ in read]
    for slot, i in last.items():
        if slot not in keep:
            drops[i].append(slot)
    return [tuple(d) for d in drops]


def located(error: Exception, node: Node, args: list[Any]) -> Exception:
    """The error as a SardonyxError that names the node and describes its inputs."""
    if isinstance(error, SardonyxError):
        if error.where is None:
            error.where = node.label
        return error
    given = ", ".join(describe(a) for a in args)
    what = f"Non-zero status code returned while running {node.label}: {error or type(error).__name__}"
    if isinstance(error, MemoryError):
        return OutOfBudget(what, got=given)
    if isinstance(error, (ValueError, IndexError, KeyError)):
        return InvalidArgument(what, got=given) if isinstance(error, IndexError) else RuntimeException(what, got=given)
    if isinstance(error, RecursionError):
        return Fail(what, got=given)
    return RuntimeException(what, got=given)


def describe(value: Any) -> str:
    """A value in a message: type and shape, never its contents."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    return "nothing" if value is None else type(value).__name__


def program_of(graph: Graph, bind: Callable[[Node], tuple[Kernel, Sequence[Value], bool]]) -> Program:
    """A program for a whole graph; a subgraph's captures follow its inputs."""
    captured = [v for v in graph.captures() if not v.is_const] if graph.parent is not None else []
    return Program(graph.nodes, [*graph.inputs, *captured], graph.outputs, bind)
