"""Walks over protos that several readers need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among a node's attributes."""
    for a in node.attribute:
        if a.HasField("g"):
            yield a.g
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
