"""Models that are unsafe for onnx's inference: it would access memory out of bounds, or not terminate."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from sardonyx.errors import InvalidGraph
from sardonyx.model.protos import every_node, label

OPERATORS = frozenset(("GatherND", "LayerNormalization"))
"""Operators whose inference accesses memory out of bounds for some shapes and attributes; our own rules infer their
types.
"""


def check_equations(graph: onnx.GraphProto) -> None:
    """Raise for an Einsum on which onnx's inference would not terminate."""
    for node in every_node(graph.node):
        if node.op_type == "Einsum" and not node.domain:
            for term in _terms(node):
                if term.count("...") > 1 or "." in term.replace("...", ""):
                    raise InvalidGraph(
                        "a term of an Einsum has dots that are not one ellipsis", where=label(node), got=term
                    )


def _terms(node: onnx.NodeProto) -> Iterator[str]:
    for a in node.attribute:
        if a.name == "equation":
            yield from a.s.decode("utf-8", "replace").replace(" ", "").replace("->", ",").split(",")
