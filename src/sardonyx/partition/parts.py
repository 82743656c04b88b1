"""A graph as parts, each run by its owner, in order. Bodies of control flow are made ready the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.partition.assign import Owner, assign, cut, prepare
from sardonyx.partition.provider import Declined, Executable, Part, Provider, Quick, RunContext

Again = Callable[[Sequence[Any]], "Sequence[Any] | None"]


class Step(NamedTuple):
    """An executable. A frame holds the inputs of the graph, and then the outputs of one step after the other."""

    run: Callable[[Sequence[Any], RunContext], list[Any]]
    run_again: Again | None
    """Without a context, for shapes that ran before."""
    taken: Callable[[list[Any]], Sequence[Any]]
    """Its inputs, out of a frame."""


def _step(part: Part, executable: Executable, slots: dict[Value, int]) -> Step:
    again = executable.run_again if isinstance(executable, Quick) else None
    return Step(executable.run, again, _taker([slots[v] for v in part.inputs]))


def _taker(slots: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """Picks these out of a list, without a loop in Python."""
    first = slots[0] if slots else 0
    if list(slots) == list(range(first, first + len(slots))):
        return itemgetter(slice(first, first + len(slots)))
    return itemgetter(*slots)


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
        made = [v for part, _ in self.compiled for v in part.outputs]
        slots = {v: i for i, v in enumerate((*self.inputs, *made))}
        self._steps = [_step(part, executable, slots) for part, executable in self.compiled]
        self._given = [(v, slots.get(v)) for v in self._outputs]
        self._made = [slots[v] for v in self._outputs if v in made]
        self._taken = _taker(self._made)

    @property
    def whole(self) -> Executable | None:
        """The only part's executable, where that part takes exactly the inputs and gives exactly the outputs."""
        if len(self.compiled) != 1:
            return None
        part, executable = self.compiled[0]
        return executable if part.inputs == self.inputs and part.outputs == self._outputs else None

    @property
    def again(self) -> Again | None:
        """Runs all parts without a context, where every one of them can and no two outputs are the same value."""
        if isinstance(self.whole, Quick):
            return self.whole.run_again
        is_plain = len(set(self._made)) == len(self._outputs)
        return self._run_again if is_plain and all(step.run_again is not None for step in self._steps) else None

    def _run_again(self, args: Sequence[Any]) -> Sequence[Any] | None:
        frame = list(args)
        for _, run_again, taken in self._steps:
            made = run_again(taken(frame))  # type: ignore[misc]
            if made is None:
                return None
            frame += made
        return self._taken(frame)

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        may_hurry = context.record is None and context.deadline is None and not context.held and not context.places
        frame = list(args)
        for step in self._steps:
            if context.stop:
                context.check()
            given = step.taken(frame)
            made = step.run_again(given) if may_hurry and step.run_again is not None else None
            if made is None:
                made = step.run(given, context)
            frame += made
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
