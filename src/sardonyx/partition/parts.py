"""A graph as parts, each run by its owner, in order. Bodies of control flow are made ready the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.partition.assign import Owner, assign, cut, prepare
from sardonyx.partition.provider import Declined, Executable, Part, Provider, Quick, RunContext


class Step(NamedTuple):
    """An executable, and where in a frame its inputs and outputs are."""

    run: Callable[[Sequence[Any], RunContext], list[Any]]
    run_again: Callable[[Sequence[Any]], list[Any] | None] | None
    """Without a context, for shapes that ran before."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def _step(part: Part, executable: Executable, slots: dict[Value, int]) -> Step:
    again = executable.run_again if isinstance(executable, Quick) else None
    return Step(executable.run, again, tuple(slots[v] for v in part.inputs), tuple(slots[v] for v in part.outputs))


class Parts:
    """The compiled parts of a graph between its inputs and outputs."""

    def __init__(self, graph: Graph, owners: dict[Node, Owner], last: Provider) -> None:
        """``owners`` is what ``assign`` gave for the graph; ``last`` takes what another declines to compile."""
        prepare(graph, owners)
        captured = [v for v in graph.captures() if not v.is_const] if graph.parent is not None else []
        self.inputs = (*graph.inputs, *captured)
        self._outputs = tuple(graph.outputs)
        self.compiled: list[tuple[Part, Executable]] = []
        for owner, part in cut(graph, owners):
            try:
                self.compiled.append((part, owner.compile(part)))
            except Declined as why:
                self.compiled.append((part, last.compile(part)))
                owners.update(dict.fromkeys(part.nodes, Owner(last, f"{owner.name}: {why}")))
        made = dict.fromkeys(v for part, _ in self.compiled for v in part.outputs)
        slots = {v: i for i, v in enumerate(dict.fromkeys((*self.inputs, *made)))}
        self._empty = [None] * (len(slots) - len(self.inputs))
        self._steps = [_step(part, executable, slots) for part, executable in self.compiled]
        self._given = [(v, slots.get(v)) for v in self._outputs]

    @property
    def whole(self) -> Executable | None:
        """The only part's executable, where that part takes exactly the inputs and gives exactly the outputs."""
        if len(self.compiled) != 1:
            return None
        part, executable = self.compiled[0]
        return executable if part.inputs == self.inputs and part.outputs == self._outputs else None

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        may_hurry = context.record is None and context.deadline is None and not context.held and not context.places
        frame = [*args, *self._empty]
        for step in self._steps:
            if context.stop:
                context.check()
            given = [frame[i] for i in step.inputs]
            made = step.run_again(given) if may_hurry and step.run_again is not None else None
            if made is None:
                made = step.run(given, context)
            for i, value in zip(step.outputs, made, strict=True):
                frame[i] = value
        return [v.numpy() if i is None else frame[i] for v, i in self._given]


LEAST_NODES = 4
"""A body of fewer nodes is run by the last provider of the chain, which has nothing to prepare."""


class Bodies:
    """Makes bodies ready on the providers that the graph around them has."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        self.providers = providers
        self.owners: dict[Node, Owner] = {}
        """Who runs each node of each body."""

    def __call__(self, graph: Graph) -> Parts:
        owners = assign(graph, self.providers if len(graph) >= LEAST_NODES else self.providers[-1:])
        made = Parts(graph, owners, self.providers[-1])
        self.owners |= owners
        return made
