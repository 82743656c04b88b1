"""Removes dead code, and merges equal constants and equal computations."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ops import registry
from sardonyx.optimize.manager import Log, optimization

SHARED_NBYTES = 1024
"""Largest constants that are compared by content; larger ones would have to be read from the file."""


@optimization("RemoveDeadCode")
def remove_dead_code(graph: Graph, log: Log) -> None:
    """Remove nodes without used results, and unused constants."""
    for node in list(graph.reversed_nodes()):
        if all(out.is_dead for out in node.outputs):
            log.did(node, "removed: nobody reads its results")
            graph.remove(node)
        else:
            for _, sub in node.subgraphs():
                remove_dead_code(sub, log)
    graph.initializers = {name: v for name, v in graph.initializers.items() if v.overridable or not v.is_dead}


@optimization("ShareConstants")
def share_constants(graph: Graph, log: Log) -> None:
    """Merge equal small constants."""
    first: dict[Hashable, Value] = {}
    for name, value in list(graph.initializers.items()):
        if not value.is_const or value.const is None or value.const.nbytes > SHARED_NBYTES:
            continue
        kept = first.setdefault(_content(value.const), value)
        if kept is not value:
            graph.replace_uses(value, kept)
            if value.is_dead:
                del graph.initializers[name]


@optimization("ShareDuplicates")
def share_duplicates(graph: Graph, log: Log) -> None:
    """Merge nodes that compute the same from the same inputs."""
    first: dict[Hashable, Node | dict[Hashable, Node]] = {}
    for node in graph.nodes:
        if any(True for _ in node.subgraphs()):
            for _, sub in node.subgraphs():
                share_duplicates(sub, log)
            continue
        meaning = registry.find(node.domain, node.op_type)
        if meaning is None or not meaning.pure:
            continue
        kept = _earlier(first, node)
        if kept is not node:
            log.replace(graph, [node], node.outputs, kept.outputs, [], f"computed once, by {kept.label}")


def _earlier(first: dict[Hashable, Node | dict[Hashable, Node]], node: Node) -> Node:
    """The first node that computes the same. Attributes, of which a forest has a million, are looked at only where two
    nodes have the same inputs."""
    key = (node.domain, node.op_type, tuple(node.inputs), len(node.outputs), tuple(sorted(node.attrs)))
    alike = first.setdefault(key, node)
    if alike is node:
        return node
    if isinstance(alike, Node):
        alike = first[key] = {_attributes(alike): alike}
    return alike.setdefault(_attributes(node), node)


def _attributes(node: Node) -> Hashable:
    return tuple(sorted((key, _frozen(value)) for key, value in node.attrs.items()))


def _frozen(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return _content(value) if value.nbytes <= SHARED_NBYTES else (id(value),)
    if isinstance(value, list) and any(isinstance(v, Tensor) for v in value[:1]):
        return ("list", *(_frozen(v) for v in value))
    return (type(value).__name__, repr(value))


def _content(tensor: Tensor) -> Hashable:
    array = tensor.numpy()
    data = tuple(array.reshape(-1).tolist()) if tensor.dtype.kind == "string" else array.tobytes()
    return (tensor.dtype.name, tensor.shape, data)
