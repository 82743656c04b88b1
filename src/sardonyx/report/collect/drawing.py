"""Nodes and edges of any graph to a drawn graph: sizes of boxes, layout, and the number that a page can show."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.report.layout.layered import draw
from sardonyx.report.records import DrawnGraph, GraphNode

MAX_NODES = 6000
"""A page with more nodes would be slow; the rest of the graph is left out, and the page says so."""
BOLD, CHARACTER, MARGIN, HEIGHT, WIDEST = 8.0, 6.6, 30.0, 40.0, 250.0


def drawn(
    name: str, about: str, nodes: Sequence[GraphNode], edges: Sequence[tuple[int, int, str]], limit: int = MAX_NODES
) -> DrawnGraph:
    """A graph with its layout. Nodes are in execution order; edges against it are drawn upwards."""
    kept = nodes[:limit]
    inside = [e for e in edges if e[0] < len(kept) and e[1] < len(kept) and e[0] != e[1]]
    drawing = draw([_size(n) for n in kept], [(min(a, b), max(a, b)) for a, b, _ in inside])
    bends = [
        tuple(points if a < b else _turned(points)) for (a, b, _), points in zip(inside, drawing.bends, strict=True)
    ]
    return DrawnGraph(
        name,
        about,
        tuple(kept),
        tuple(inside),
        tuple(drawing.x),
        tuple(drawing.y),
        tuple(bends),
        len(nodes) - len(kept),
    )


def _size(node: GraphNode) -> tuple[float, float]:
    """The box of a node, as ``assets/paint.js`` draws it."""
    text = max(BOLD * len(node.op_type.split(".")[-1]), CHARACTER * min(len(node.label), 22))
    return min(WIDEST, MARGIN + text), HEIGHT


def _turned(points: list[float]) -> list[float]:
    pairs = list(zip(points[::2], points[1::2], strict=True))
    return [c for pair in reversed(pairs) for c in pair]
