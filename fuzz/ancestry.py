"""The operators that a result is computed by."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def computed_by(model: onnx.ModelProto, operator: str) -> set[str]:
    """The operators of a name, and all that make what they read, with those of bodies and local functions."""
    functions = {(f.domain, f.name): {n.op_type for n in f.node} for f in model.functions}
    nodes = list(_nodes(model.graph))
    makers = {name: node for node in nodes for name in node.output if name}
    found, seen, todo = set[str](), set[int](), [n for n in nodes if _is_named(n, operator)]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        inner = [n for a in node.attribute if a.HasField("g") for n in _nodes(a.g)]
        found |= {node.op_type} | functions.get((node.domain, node.op_type), set())
        todo += [*inner, *(makers[name] for name in _read(node) if name in makers)]
    return found


def _is_named(node: onnx.NodeProto, operator: str) -> bool:
    return operator in (node.op_type, f"{node.domain}.{node.op_type}")


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for a in node.attribute:
            if a.HasField("g"):
                yield from _nodes(a.g)


def _read(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for a in node.attribute:
        if a.HasField("g"):
            yield from (v.name for v in a.g.output)
