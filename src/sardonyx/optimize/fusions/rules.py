"""Rewrites of nodes with a variable number of inputs or outputs, which patterns do not support."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.fusion import Refused, take_back
from sardonyx.optimize.manager import Log

Found: TypeAlias = "tuple[list[Value], list[Node]]"
"""New values for a node's outputs, and further nodes to remove if unused, readers first."""

Rule: TypeAlias = "Callable[[Builder, Node], Found | None]"
"""Returns None for other expressions; raises ``Refused`` if the expression matches but a condition does not hold."""


def each(graph: Graph, op_type: str, rule: Rule, log: Log) -> None:
    """Apply a rule to every node of an operator, also in subgraphs."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            each(sub, op_type, rule, log)
        if node.op_type != op_type or node.domain:
            continue
        op = Builder(graph, node, prefix=node.name or node.outputs[0].name, origin=node.origin)
        try:
            found = rule(op, node)
        except Refused as why:
            take_back(graph, op.made)
            log.declined(node, str(why))
            continue
        if found is not None:
            new, others = found
            made = ", ".join(n.op_type for n in op.made) or "nothing"
            what = f"{' + '.join(n.op_type for n in [*reversed(others), node])} -> {made}"
            log.replace(graph, [node, *others], node.outputs, new, op.made, what)
