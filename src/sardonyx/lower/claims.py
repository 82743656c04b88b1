"""Which nodes can be lowered, and why the others cannot."""

from __future__ import annotations

from sardonyx import knobs
from sardonyx.errors import EngineError
from sardonyx.ir import dims
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.lower.analysis.facts import GraphFacts
from sardonyx.lower.lowering import COUNTED, ROOM, TYPES, Lowering, rule_of
from sardonyx.lower.rules.pointwise import program_for
from sardonyx.lower.sizes import DataDependent, Refused


class DeferredRefusal(str):
    """A reason that no longer holds during a run, once ranks and the elements of operands are known."""


def refusals(graph: Graph, facts: GraphFacts | None = None) -> dict[Node, str | None]:
    """For every node of a graph: None, or why it cannot be lowered."""
    facts = GraphFacts.of(graph) if facts is None else facts
    return {node: refusal(node, facts) for node in graph.nodes}


def refusal(node: Node, facts: GraphFacts | None = None) -> str | None:
    """None, or why a node cannot be lowered; a ``DeferredRefusal`` if it can be lowered during a run.

    The test is to lower the node by itself. If a rule fails on it, another provider runs it or reports what is wrong.
    """
    if facts is None:
        assert node.graph is not None
        facts = GraphFacts.of(node.graph)
    low = Lowering(facts)
    try:
        known: set[str] = {ROOM}
        captured = [v for _, body in node.subgraphs() for v in body.captures()]
        for value in dict.fromkeys(v for v in (*node.inputs, *captured) if v is not None):
            known |= _names(facts, value)
            if not value.is_const:
                low.take(value)
        for value in node.outputs:
            if not value.is_dead:
                low.dtype(value)
                if node.onnx_op not in COUNTED and _new(facts, value) - known:
                    raise DataDependent(f"the shape of {value.name!r} depends on the data")
        low.emit([node])
        if any(node.subgraphs()) and (unknown := _unknown(low) - known):
            return f"sizes in its bodies depend on the data: {', '.join(sorted(unknown))}"
    except DataDependent as why:
        return DeferredRefusal(why) if _may_be_lowered(node) else str(why)
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
    """Made-up names in the sizes of groups."""
    sizes = (d for g in low.groups for v in (*g.reads, *g.writes) for d in (*v.shape, *v.strides))
    return {name for d in sizes for name in dims.names(d) if name.startswith(dims.FRESH)}


def _may_be_lowered(node: Node) -> bool:
    """Whether an operator has a rule and no subgraphs, and its values have types that are compiled."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and not (v.is_dead and v.producer is node)]
    has_rule = rule_of(node) is not None or program_for(node) is not None
    return has_rule and not any(node.subgraphs()) and all(v.dtype in TYPES for v in values)


def _new(facts: GraphFacts, value: Value) -> set[str]:
    """Names of a value's sizes that were made up because nothing determines them."""
    return {name for name in _names(facts, value) if name.startswith(dims.FRESH)}


def _names(facts: GraphFacts, value: Value) -> set[str]:
    """The named sizes in a value's shape and elements."""
    sizes = (*facts.shape(value), *(facts.content(value) or ()))
    return {name for d in sizes if not isinstance(d, int) for name in dims.names(d)}
