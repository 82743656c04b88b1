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


def label(node: onnx.NodeProto) -> str:
    """How messages name a node of the file."""
    return f"{node.op_type} node {node.name!r}" if node.name else f"{node.op_type} node -> {list(node.output)[:1]}"
