"""Which nodes can be lowered, and why the others cannot."""

from __future__ import annotations

from sardonyx.ir import dims
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.lower.build import emit
from sardonyx.lower.facts import Learned
from sardonyx.lower.lowering import Lowering
from sardonyx.lower.sizes import Refused


def refusals(graph: Graph, learned: Learned | None = None) -> dict[Node, str | None]:
    """For every node of a graph: None, or why it cannot be lowered."""
    learned = Learned.of(graph) if learned is None else learned
    return {node: refusal(node, learned) for node in graph.nodes}


def refusal(node: Node, learned: Learned | None = None) -> str | None:
    """None, or why a node cannot be lowered. The test is to lower it alone."""
    if learned is None:
        assert node.graph is not None
        learned = Learned.of(node.graph)
    low = Lowering(learned)
    try:
        known: set[str] = set()
        for value in dict.fromkeys(v for v in node.inputs if v is not None):
            known |= _names(learned, value)
            if not value.is_const:
                low.take(value)
        for value in node.outputs:
            if not value.is_dead:
                low.dtype(value)
                if any(n.startswith(dims.FRESH) and n not in known for n in _names(learned, value)):
                    return f"the shape of {value.name!r} follows from data"
        emit(low, node)
    except Refused as why:
        return str(why)
    return None


def _names(learned: Learned, value: Value) -> set[str]:
    """The names that a value's shape and elements are made of."""
    sizes = (*learned.shape(value), *(learned.content(value) or ()))
    return {name for d in sizes for name in dims.names(d)}
