"""Which nodes can be lowered, and why the others cannot."""

from __future__ import annotations

from sardonyx import knobs
from sardonyx.errors import EngineError
from sardonyx.ir import dims
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.lower import rules
from sardonyx.lower.analysis.facts import Learned
from sardonyx.lower.lowering import COUNTED, RULES, TYPES, Lowering
from sardonyx.lower.rules.pointwise import program_for
from sardonyx.lower.sizes import Later, Refused


class Awaited(str):
    """A reason that a run does away with, when it tells ranks and the elements of operands."""


assert rules, "importing the families registers their rules"


def refusals(graph: Graph, learned: Learned | None = None) -> dict[Node, str | None]:
    """For every node of a graph: None, or why it cannot be lowered."""
    learned = Learned.of(graph) if learned is None else learned
    return {node: refusal(node, learned) for node in graph.nodes}


def refusal(node: Node, learned: Learned | None = None) -> str | None:
    """None, or why a node cannot be lowered, ``Awaited`` if it can be during a run. The test is to lower it alone.

    A rule that fails on a node leaves it to another provider, which says what is wrong with it, or runs it.
    """
    if learned is None:
        assert node.graph is not None
        learned = Learned.of(node.graph)
    low = Lowering(learned)
    try:
        known: set[str] = set()
        captured = [v for _, body in node.subgraphs() for v in body.captures()]
        for value in dict.fromkeys(v for v in (*node.inputs, *captured) if v is not None):
            known |= _names(learned, value)
            if not value.is_const:
                low.take(value)
        for value in node.outputs:
            if not value.is_dead:
                low.dtype(value)
                if node.op_type not in COUNTED and _new(learned, value) - known:
                    raise Later(f"the shape of {value.name!r} follows from data")
        low.emit([node])
        if any(node.subgraphs()) and (unknown := _unknown(low) - known):
            return f"sizes in its bodies follow from data: {', '.join(sorted(unknown))}"
    except Later as why:
        return Awaited(why) if _may_be_lowered(node) else str(why)
    except Refused as why:
        return str(why)
    except OverflowError:
        return "a size has more than 64 bits"
    except EngineError as defect:
        if knobs.VERIFY.get():
            raise
        return f"a defect of Sardonyx: {defect.what}"
    return None


def _unknown(low: Lowering) -> set[str]:
    """Names in sizes of groups that no model wrote."""
    sizes = (d for g in low.groups for v in (*g.reads, *g.writes) for d in (*v.shape, *v.strides))
    return {name for d in sizes for name in dims.names(d) if name.startswith(dims.FRESH)}


def _may_be_lowered(node: Node) -> bool:
    """Whether there is a rule for an operator, it has no bodies, and its values have types that are compiled."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and not (v.is_dead and v.producer is node)]
    has_rule = (node.domain, node.op_type) in RULES or (not node.domain and program_for(node) is not None)
    return has_rule and not any(node.subgraphs()) and all(v.dtype in TYPES for v in values)


def _new(learned: Learned, value: Value) -> set[str]:
    """Names of sizes that were made up, since nothing tells them."""
    return {name for name in _names(learned, value) if name.startswith(dims.FRESH)}


def _names(learned: Learned, value: Value) -> set[str]:
    """The names that a value's shape and elements are made of."""
    sizes = (*learned.shape(value), *(learned.content(value) or ()))
    return {name for d in sizes for name in dims.names(d)}
