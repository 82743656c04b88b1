"""Walks over protos that several readers need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
from onnx import AttributeProto


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among a node's attributes."""
    for a in node.attribute:
        kind = a.type
        if kind == AttributeProto.GRAPH or (kind == 0 and a.HasField("g")):
            yield a.g
        elif kind in (0, AttributeProto.GRAPHS):
            yield from a.graphs


def every_node(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and those of all graphs below them, outer before inner."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from every_node(graph.node)


def external_locations(model: onnx.ModelProto) -> set[str]:
    """The files that any tensor of a model names, in its graphs, attributes and functions."""
    nodes = [*every_node(model.graph.node), *(n for f in model.functions for n in every_node(f.node))]
    graphs = [model.graph, *(graph for node in nodes for graph in subgraphs(node))]
    tensors = [t for graph in graphs for t in graph.initializer]
    sparse = [s for graph in graphs for s in graph.sparse_initializer]
    for node in nodes:
        for a in node.attribute:
            tensors += [a.t, *a.tensors]
            sparse += [a.sparse_tensor, *a.sparse_tensors]
    tensors += [t for s in sparse for t in (s.values, s.indices)]
    return {e.value for t in tensors for e in t.external_data if e.key == "location"}


def label(node: onnx.NodeProto) -> str:
    """How messages name a node of the file."""
    return f"{node.op_type} node {node.name!r}" if node.name else f"{node.op_type} node -> {list(node.output)[:1]}"
