"""Orders the nodes of a graph so that few parts run one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from sardonyx.ir.graph import Graph, Node
from sardonyx.ops import registry

CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")

Owned = TypeVar("Owned")
Groups = list[tuple[Owned, list[Node]]]


def grouped(graph: Graph, owners: Sequence[Owned]) -> Groups[Owned]:
    """The nodes of a graph in groups of one owner each; ``owners`` has the owner of each node, in the graph's order.

    The order is the graph's where no other has fewer groups. Files alternate between owners where none needs the
    other, as a row of encoders of text and of numbers does. Nodes that draw random numbers stay in order.
    """
    found: Groups[Owned] = []
    for node, owner in zip(graph.nodes, owners, strict=True):
        if not found or found[-1][0] is not owner:
            found.append((owner, []))
        found[-1][1].append(node)
    if len(found) > 2:
        schedule = _Schedule(graph, owners)
        for first in {id(owner): owner for owner, _ in found}.values():
            found = min(found, schedule.groups(first), key=len)
    return found


class _Schedule(Generic[Owned]):
    """Which nodes wait for which."""

    def __init__(self, graph: Graph, owners: Sequence[Owned]) -> None:
        self.nodes, self.owners = list(graph.nodes), owners
        at = {node: i for i, node in enumerate(self.nodes)}
        self.followers: list[list[int]] = [[] for _ in self.nodes]
        self.waits: Counter[int] = Counter()
        drawn: int | None = None
        for i, node in enumerate(self.nodes):
            captured = [v for _, sub in node.subgraphs() for v in sub.captures()]
            before = {at[v.producer] for v in (*node.inputs, *captured) if v is not None and v.producer in at}
            if draws(node):
                before |= set() if drawn is None else {drawn}
                drawn = i
            for j in before:
                self.followers[j].append(i)
            self.waits[i] = len(before)

    def groups(self, first: Owned) -> Groups[Owned]:
        """Groups that begin with an owner, each of as many nodes as the ones before it allow."""
        waits, owner, found = self.waits.copy(), first, Groups[Owned]()
        ready: dict[int, list[int]] = {id(each): [] for each in self.owners}
        for i, each in enumerate(self.owners):
            if not waits[i]:
                ready[id(each)].append(i)
        for places in ready.values():
            heapify(places)
        while any(ready.values()):
            if not ready[id(owner)]:
                owner = self.owners[min(places[0] for places in ready.values() if places)]
            nodes = list[Node]()
            while ready[id(owner)]:
                i = heappop(ready[id(owner)])
                nodes.append(self.nodes[i])
                for j in self.followers[i]:
                    waits[j] -= 1
                    if not waits[j]:
                        heappush(ready[id(self.owners[j])], j)
            found.append((owner, nodes))
        return found


def draws(node: Node) -> bool:
    """Whether a node draws random numbers, or may do other things than to compute its outputs."""
    meaning = registry.find(node.domain, node.op_type)
    inside = [inner for _, sub in node.subgraphs() for inner in sub.nodes]
    is_pure = node.onnx_op in CONTROL_FLOW if meaning is None else meaning.pure
    return not is_pure or any(map(draws, inside))
