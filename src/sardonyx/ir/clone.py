"""A copy of a graph that shares nothing with it but constants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sardonyx.ir.graph import Graph, Model, Node, Value


def clone(model: Model) -> Model:
    """A model whose graph can be rewritten while the original stays as it is."""
    return replace(model, graph=_graph(model.graph, {}), opsets=dict(model.opsets), metadata=dict(model.metadata))


def _graph(graph: Graph, copies: dict[Value, Value]) -> Graph:
    new = Graph(graph.name, [_value(v, copies) for v in graph.inputs], doc=graph.doc)
    new.initializers = {name: _value(v, copies) for name, v in graph.initializers.items()}
    for node in graph.nodes:
        new.append(clone_node(node, copies))
    for value, name in zip(graph.outputs, graph.output_names, strict=True):
        new.add_output(copies.get(value, value), name)
    return new


def clone_node(node: Node, copies: dict[Value, Value]) -> Node:
    """A copy that belongs to no graph yet. Its inputs are looked up in ``copies``, and its outputs are added there."""
    inputs = [None if v is None else copies.get(v, v) for v in node.inputs]
    attrs = {key: _attr(attr, copies) for key, attr in node.attrs.items()}
    outputs = [_value(v, copies) for v in node.outputs]
    copy = Node(
        node.op_type,
        inputs,
        outputs,
        attrs,
        domain=node.domain,
        name=node.name,
        origin=node.origin,
        overload=node.overload,
    )
    copy.doc, copy.opset = node.doc, node.opset
    return copy


def _value(value: Value, copies: dict[Value, Value]) -> Value:
    copy = copies.get(value)
    if copy is None:
        copy = copies[value] = Value(value.name, value.type, const=value.const)
        copy.doc, copy.denotation, copy.overridable = value.doc, value.denotation, value.overridable
        copy.stated = value.stated
    return copy


def _attr(attr: Any, copies: dict[Value, Value]) -> Any:
    if isinstance(attr, Graph):
        return _graph(attr, copies)
    if isinstance(attr, list):
        return [_attr(item, copies) for item in attr]
    return attr
