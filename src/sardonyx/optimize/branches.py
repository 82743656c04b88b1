"""Branches whose condition is known."""

from __future__ import annotations

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
    copies: dict[Value, Value] = {}
    for v in branch.initializers.values():
        assert v.const is not None
        copies[v] = graph.add_const(v.const, v.name)
    for inner in branch.nodes:
        op.made.append(graph.insert(clone_node(inner, copies), before=node))
    own = {out for made in op.made for out in made.outputs}
    results = []
    for out, v in zip(node.outputs, branch.outputs, strict=True):
        new = copies.get(v, v)
        if out.is_output and graph.parent is not None and new not in own:
            new = op.Identity(new)
        results.append(new)
    done = log.replace(graph, [node], node.outputs, results, op.made, f"inlined: {key} is always taken")
    return op.made if done else []
