"""Fused groups: the nodes that kernels compute together, from the steps of compiled parts."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.records import Record

NUMPY = "numpy"


class Group(Record):
    """Nodes that are computed together. Without kernels they only give memory another shape."""

    nodes: tuple[Node, ...]
    kernels: tuple[str, ...]
    provider: str
    reason: str
    """The variant that was chosen, and those that declined."""


def compiled_parts(compiled: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """The parts and executables of an engine, those inside others included."""
    for part, executable in compiled:
        nested = getattr(executable, "compiled", None)
        if nested:
            yield from compiled_parts(nested)
        else:
            yield part, executable


def groups_of(graph: Graph, compiled: Iterable[tuple[Any, Any]]) -> list[Group]:
    """The groups of a graph's nodes, each after those that it reads."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    root = {node: node for node in order}
    provider = dict.fromkeys(order, "reference")

    def top(node: Node) -> Node:
        while root[node] is not node:
            root[node] = node = root[root[node]]
        return node

    steps = []
    for part, executable in compiled_parts(compiled):
        table = getattr(executable, "table", None)
        if table is None:
            continue
        provider.update((node, "cpu") for node in part.nodes if node in order)
        for step in table.steps:
            nodes = [node for node in step.nodes if node in order]
            steps += [(step, nodes[0])] if nodes else []
            for node in nodes[1:]:
                root[top(node)] = top(nodes[0])
    members: dict[Node, list[Node]] = {}
    for node in order:
        members.setdefault(top(node), []).append(node)
    kernels: dict[Node, list[str]] = {}
    reasons: dict[Node, dict[str, None]] = {}
    for step, node in steps:
        kernels.setdefault(top(node), []).append(step.spec.name)
        reasons.setdefault(top(node), {}).update(dict.fromkeys(_reasons(step)))
    found = []
    for key, nodes in _sorted(members, top):
        owner = provider[nodes[0]]
        made = (NUMPY,) if owner == "reference" else tuple(kernels.get(key, ()))
        found.append(Group(tuple(nodes), made, owner, "\n".join(reasons.get(key, ()))))
    return found


def _sorted(members: Mapping[Node, list[Node]], top: Callable[[Node], Node]) -> Iterator[tuple[Node, list[Node]]]:
    """Groups by their keys, in the order of the graph as far as each comes after those that it reads: a group's first
    node may come long before another group that it reads. Groups that read each other, as where a node is computed in
    two kernels, come in the order of the graph.
    """
    rank = {key: i for i, key in enumerate(members)}
    waits: dict[Node, set[Node]] = {}
    readers: dict[Node, list[Node]] = {key: [] for key in members}
    for key, nodes in members.items():
        made = (v.producer for node in nodes for v in (*node.inputs, *_captured(node)) if v is not None)
        waits[key] = {top(n) for n in made if n is not None and n.graph is key.graph} - {key}
        for other in waits[key]:
            readers[other].append(key)
    ready = [rank[key] for key in members if not waits[key]]
    keys = list(members)
    heapq.heapify(ready)
    left = dict.fromkeys(keys)
    while left:
        key = keys[heapq.heappop(ready)] if ready else next(iter(left))
        if key not in left:
            continue
        del left[key]
        yield key, members[key]
        for reader in readers[key]:
            waits[reader].discard(key)
            if not waits[reader] and reader in left:
                heapq.heappush(ready, rank[reader])


def _captured(node: Node) -> Iterator[Value]:
    for _, body in node.subgraphs():
        yield from body.captures()


def _reasons(step: Any) -> Iterator[str]:
    if step.variant:
        yield step.variant
    if step.choice is not None:
        yield f"variant {step.choice.name}"
        for name, why in step.choice.refusals:
            yield f"not {name}: {why}"
