"""A graph as parts, each run by its owner, in order. Bodies of control flow are made ready the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.partition.assign import Owner, assign, cut, prepare
from sardonyx.partition.provider import Declined, Executable, Part, Provider, RunContext


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

    @property
    def whole(self) -> Executable | None:
        """The only part's executable, where that part takes exactly the inputs and gives exactly the outputs."""
        if len(self.compiled) != 1:
            return None
        part, executable = self.compiled[0]
        return executable if part.inputs == self.inputs and part.outputs == self._outputs else None

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        env: dict[Value, Any] = dict(zip(self.inputs, args, strict=True))
        for part, executable in self.compiled:
            env.update(zip(part.outputs, executable.run([env[v] for v in part.inputs], context), strict=True))
        return [v.numpy() if v not in env and v.const is not None else env[v] for v in self._outputs]


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
