"""Branches whose condition is known."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.ir.builder import Builder
from sardonyx.ir.clone import clone_node
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.manager import Log, optimization


@optimization("InlineBranches")
def inline_branches(graph: Graph, log: Log) -> None:
    """If(constant, then, else)  ->  the nodes of the branch that is taken."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            inline_branches(sub, log)
        inline(graph, node, log)


def inline(graph: Graph, node: Node, log: Log) -> list[Node]:
    """The nodes that take the place of an If whose condition is a constant."""
    condition = node.inputs[0] if node.op_type == "If" and not node.domain else None
    if condition is None or not condition.is_scalar_const:
        return []
    key = "then_branch" if condition.item() else "else_branch"
    branch: Graph = node.attrs[key]
    op = Builder(graph, node, prefix=node.name or node.outputs[0].name, origin=node.origin)
    taken = splice(op, branch, [])
    own = {out for made in op.made for out in made.outputs}
    results = []
    for out, new in zip(node.outputs, taken, strict=True):
        if out.is_output and graph.parent is not None and new not in own:
            new = op.Identity(new)
        results.append(new)
    done = log.replace(graph, [node], node.outputs, results, op.made, f"inlined: {key} is always taken")
    return op.made if done else []


def splice(op: Builder, body: Graph, inputs: Sequence[Value]) -> list[Value]:
    """The nodes of a body where a builder stands, reading these inputs; gives the body's outputs."""
    copies = dict(zip(body.inputs, inputs, strict=True))
    for v in body.initializers.values():
        assert v.const is not None
        copies[v] = op.graph.add_const(v.const, v.name)
    for inner in body.nodes:
        assert op.before is not None
        op.made.append(op.graph.insert(clone_node(inner, copies), before=op.before))
    return [copies.get(v, v) for v in body.outputs]
