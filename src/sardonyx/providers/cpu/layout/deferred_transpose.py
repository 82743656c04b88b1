"""Moves Transposes past data-dependent sizes.

A part is cut at each data-dependent size (``dynamic_partition``), and values are materialized at the cut. Within a
section a Transpose is only addressing. Before a cut it would copy all elements, although a Gather after
NonMaxSuppression may read only a few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import count

from sardonyx.ir.clone import clone_node
from sardonyx.ir.graph import Graph, Node
from sardonyx.lower.lowering import COUNTED


def defer_transposes(graph: Graph, owned: Iterable[Node]) -> list[Node]:
    """Give every section that reads a Transpose of an earlier one its own copy of it; returns the copies."""
    mine, section = set(owned), 0
    places: dict[Node, int] = {}
    for node in graph.nodes:
        if node in mine:
            places[node] = section
            section += node.onnx_op in COUNTED
    made: list[Node] = []
    for node in [n for n in reversed(places) if section and n.onnx_op == "Transpose"]:
        later: dict[int, list[tuple[Node, int]]] = defaultdict(list)
        for user, i in node.output.uses:
            if places.get(user, 0) > places[node]:
                later[places[user]].append((user, i))
        for place, uses in later.items():
            copy = _copy_before(graph, node, uses)
            places[copy] = place
            made.append(copy)
        if node.output.is_dead:
            graph.remove(node)
    return made


def _copy_before(graph: Graph, node: Node, uses: list[tuple[Node, int]]) -> Node:
    """A separate Transpose for some readers, placed before the first of them."""
    readers = {user for user, _ in uses}
    first = next(n for n in graph.nodes if n in readers)
    copy = clone_node(node, {})
    taken = {value.name for n in graph.nodes for value in n.outputs}
    copy.output.name = next(name for i in count(1) if (name := f"{node.output.name}_{i}") not in taken)
    graph.insert(copy, before=first)
    for user, i in uses:
        user.set_input(i, copy.output)
    return copy
