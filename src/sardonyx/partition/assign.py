"""Gives every node an owner with a reason, and cuts the graph into parts."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.report import Report
from sardonyx.partition.order import grouped
from sardonyx.partition.provider import Part, Provider
from sardonyx.records import Record


class Owner(Record):
    provider: Provider
    reason: str


def assign(graph: Graph, providers: Sequence[Provider]) -> dict[Node, Owner]:
    """The first provider that claims a node owns it; a node that nobody claims has no owner."""
    claims = [(p, p.claims(graph)) for p in providers]
    chosen = "the only provider in the chain" if len(claims) == 1 else "first in the provider order to claim it"
    owners: dict[Node, Owner] = {}
    for node in graph.nodes:
        refused: list[str] = []
        for provider, claimed in claims:
            why_not = claimed[node]
            if why_not is None:
                owners[node] = Owner(provider, "; ".join(refused) or chosen)
                break
            refused.append(f"{provider.name}: {why_not}")
    return owners


def prepare(graph: Graph, owners: dict[Node, Owner]) -> Report:
    """Let every provider rewrite its nodes, and assign it the nodes that it adds; returns the providers' reports."""
    report = Report()
    by_provider: dict[int, tuple[Provider, list[Node]]] = {}
    for node, owner in owners.items():
        by_provider.setdefault(id(owner.provider), (owner.provider, []))[1].append(node)
    for provider, nodes in by_provider.values():
        told = provider.prepare(graph, nodes)
        if told is not None:
            report.extend(told)
        for node in graph.nodes:
            if node not in owners:
                owners[node] = Owner(provider, f"written by {provider.name} for {', '.join(node.origin)}")
    return report


def cut(graph: Graph, owners: dict[Node, Owner]) -> list[tuple[Provider, Part]]:
    """The nodes of each owner in few parts, in the order in which these run."""
    groups = grouped(graph, [owners[node].provider for node in graph.nodes])
    return [(provider, part_of(graph, nodes)) for provider, nodes in groups]


def part_of(graph: Graph, nodes: Sequence[Node]) -> Part:
    """A part of these nodes, in order; the graph's own inputs and outputs come first."""
    inside = set(nodes)
    made = {out for node in nodes for out in node.outputs}
    inputs: dict[Value, None] = {}
    outputs: dict[Value, None] = {}
    for node in nodes:
        captured = [v for _, sub in node.subgraphs() for v in sub.captures()]
        for v in (*node.inputs, *captured):
            if v is not None and v not in made and not v.is_const:
                inputs[v] = None
        for out in node.outputs:
            if out.is_output or any(_outermost(user, graph) not in inside for user in out.consumers):
                outputs[out] = None
    return Part(tuple(nodes), _in_order(inputs, graph.inputs), _in_order(outputs, graph.outputs))


def _in_order(values: dict[Value, None], first: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys((*(v for v in first if v in values), *values)))


def _outermost(node: Node, graph: Graph) -> Node:
    """The node of ``graph`` that contains a reader, which may lie deep in subgraphs."""
    while node.graph is not None and node.graph is not graph and node.graph.parent is not None:
        node = node.graph.parent
    return node
