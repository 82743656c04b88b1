"""Nodes that onnx's inference must not see: it would read or write outside of its memory, or never end.

Sizes and ranks that it has worked out itself count as well, so they are looked at after an inference without such
nodes. What stays hidden gets its types from our own rules.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from sardonyx.errors import InvalidGraph
from sardonyx.model.protos import every_node, label

DOMAIN = "sardonyx.hidden"
"""The domain of hidden nodes, which onnx knows nothing of."""

OPERATORS = frozenset(("GatherND", "LayerNormalization"))


def hide(graph: onnx.GraphProto) -> bool:
    """Hide all such nodes; whether there are any."""
    found = [node for node in every_node(graph.node) if not node.domain and _may_be_unsafe(node)]
    for node in found:
        node.domain = DOMAIN
    return bool(found)


def _may_be_unsafe(node: onnx.NodeProto) -> bool:
    """The shape of LayerNormalization's first output is that of its input, whatever the axis."""
    return node.op_type == "GatherND" or (node.op_type == "LayerNormalization" and len(node.output) > 1)


def show(graph: onnx.GraphProto, found: onnx.GraphProto | None = None) -> bool:
    """Show hidden nodes again; with ``found``, those of the main graph that are safe with the types inferred so far.

    Returns whether one was shown.
    """
    types = {} if found is None else {v.name: v.type for v in (*found.input, *found.value_info)}
    shapes = {t.name: list(t.dims) for t in graph.initializer}
    for name, t in types.items():
        if t.tensor_type.HasField("shape"):
            shapes[name] = [d.dim_value if d.HasField("dim_value") else None for d in t.tensor_type.shape.dim]
    shown = False
    for node in every_node(graph.node) if found is None else graph.node:
        if node.domain == DOMAIN and (found is None or _is_safe(node, [shapes.get(name) for name in node.input])):
            node.domain = ""
            shown = True
    return shown


def _is_safe(node: onnx.NodeProto, shapes: list[list[int] | list[int | None] | None]) -> bool:
    known = [shape for shape in shapes[:2] if shape is not None]
    attrs = {a.name: a.i for a in node.attribute}
    if node.op_type == "GatherND":
        if len(known) < 2 or not known[1]:
            return False
        last, batch = known[1][-1], attrs.get("batch_dims", 0)
        return batch >= 0 and last is not None and 0 <= last + batch <= len(known[0])
    rank = len(known[0]) if known and shapes[0] is not None else 0
    return bool(-rank <= attrs.get("axis", -1) < rank)


def check_equations(graph: onnx.GraphProto) -> None:
    """Raise for an Einsum that onnx's inference would never come to the end of."""
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
