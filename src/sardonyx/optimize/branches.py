"""Inlines branches of If whose condition is known."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.ir.builder import Builder
from sardonyx.ir.clone import clone_node
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ops.rules import Content
from sardonyx.optimize.manager import Log, optimization


@optimization("InlineBranches")
def inline_branches(graph: Graph, log: Log) -> None:
    """If(constant, then, else)  ->  the nodes of the branch that is taken."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            inline_branches(sub, log)
        inline(graph, node, log)


def inline(graph: Graph, node: Node, log: Log) -> list[Node]:
    """Replace an If with a constant condition by the nodes of the branch; returns the new nodes."""
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
    """Copy the nodes of a body to a builder's position, with these inputs; returns the body's outputs."""
    copies = dict(zip(body.inputs, inputs, strict=True))
    for v in body.initializers.values():
        assert v.const is not None
        copies[v] = op.graph.add_const(v.const, v.name)
    for inner in body.nodes:
        assert op.before is not None
        op.made.append(op.graph.insert(clone_node(inner, copies), before=op.before))
    return [copies.get(v, v) for v in body.outputs]


def squeezed_axis(node: Node, content: Content) -> tuple[Value, int] | None:
    """For If(size of an axis is 1, Squeeze(x, axis), x), which scripts make of x.squeeze(axis): x and the axis.

    Only if the If's readers could not take x itself: then a Squeeze, which fails for any other size, is equivalent.
    """
    then, other = (node.attrs.get(key) for key in ("then_branch", "else_branch"))
    if node.domain or len(node.outputs) != 1 or not isinstance(then, Graph) or not isinstance(other, Graph):
        return None
    squeeze, x = then.outputs[0].producer, _skip_identities(other.outputs[0], other)
    if squeeze is None or squeeze.onnx_op != "Squeeze" or squeeze.graph is not then or squeeze.inputs[0] is not x:
        return None
    axes = squeeze.input(1)
    if axes is None or not axes.is_scalar_const or x.shape is None or len(then) != 1:
        return None
    axis = int(axes.item())
    if not -len(x.shape) <= axis < len(x.shape) or not _is_one(node.inputs[0], dims.known(x.shape[axis]), content):
        return None
    return (x, axis) if _needs_rank(node.outputs[0], len(x.shape) - 1, node.graph) else None


def _skip_identities(value: Value, graph: Graph) -> Value:
    """The value that a value of a graph is a copy of."""
    while value.producer is not None and value.producer.onnx_op == "Identity" and value.producer.graph is graph:
        assert value.producer.inputs[0] is not None
        value = value.producer.inputs[0]
    return value


def _is_one(condition: Value | None, size: dims.Known | None, content: Content) -> bool:
    """Whether a condition says that a size is 1."""
    equal = None if condition is None else condition.producer
    if equal is None or equal.onnx_op != "Equal" or size is None:
        return False
    found = [content(v) if v is not None else None for v in equal.inputs]
    sides = [c.flat[0] for c in found if c is not None and c.size == 1]
    return len(sides) == 2 and 1 in sides and size in sides


RANK_PRESERVING = frozenset(("Cast", "Identity", "LeakyRelu", "Relu", "Sigmoid", "Sqrt", "Tanh"))
"""Operators whose result has the rank of their input."""


MAX_DEPTH = 8
"""Levels of readers that are inspected."""


def _needs_rank(value: Value, rank: int, graph: Graph | None, depth: int = MAX_DEPTH) -> bool:
    """Whether some reader of a value fails unless it has this rank."""
    for node, i in value.uses if depth else ():
        if node.graph is not graph or node.domain or i:
            continue
        kind, second = node.op_type, node.input(1)
        if kind in ("LSTM", "GRU", "RNN"):
            found = rank == 3
        elif kind in ("Conv", "ConvTranspose"):
            found = second is not None and second.shape is not None and rank == len(second.shape)
        elif kind == "Gemm":
            found = rank == 2
        elif kind == "Transpose":
            found = rank == len(node.attrs.get("perm", ()))
        elif kind == "Unsqueeze" and second is not None and second.is_const and second.dtype is dtypes.i64:
            found = _needs_rank(node.outputs[0], rank + len(second.numpy().reshape(-1)), graph, depth - 1)
        else:
            found = kind in RANK_PRESERVING and _needs_rank(node.outputs[0], rank, graph, depth - 1)
        if found:
            return True
    return False
