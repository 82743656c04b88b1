"""A layered drawing of a graph: layers from top to bottom, dummy nodes along edges that skip layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sardonyx.report.layout.layers import assign_layers
from sardonyx.report.layout.order import order_layers
from sardonyx.report.layout.place import place

GAP, LAYER_GAP, DUMMY_WIDTH = 28.0, 44.0, 10.0
LONGEST = 24
"""Edges over more layers have a dummy node only next to each end: else the dummies of a deep graph would outnumber its
nodes many times."""


class Drawing(NamedTuple):
    x: list[float]
    """Centres of nodes."""
    y: list[float]
    bends: list[list[float]]
    """For each edge, x and y of the points between its ends, flattened."""


def draw(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Drawing:
    """Positions for nodes of these widths and heights. Edges must go from lower to higher numbers."""
    count = len(sizes)
    layer_of = assign_layers(count, sorted(set(edges)))
    layers: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for node, layer in enumerate(layer_of):
        layers[layer].append(node)
    widths = [width for width, _ in sizes]
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    paths: list[list[int]] = []
    """The dummy nodes of each edge."""
    at_layer = list(layer_of)

    def link(source: int, target: int) -> None:
        after[source].append(target)
        before[target].append(source)

    def dummy(layer: int) -> int:
        node = len(widths)
        widths.append(DUMMY_WIDTH)
        before.append([])
        after.append([])
        layers[layer].append(node)
        at_layer.append(layer)
        return node

    for source, target in edges:
        top, bottom = layer_of[source], layer_of[target]
        if bottom - top <= LONGEST:
            path = [dummy(layer) for layer in range(top + 1, bottom)]
            for a, b in zip([source, *path], [*path, target], strict=True):
                link(a, b)
        else:
            path = [dummy(top + 1), dummy(bottom - 1)]
            link(source, path[0])
            link(path[1], target)
        paths.append(path)
    ordered = order_layers(layers, before, after)
    x = place(ordered, before, after, widths, GAP)
    tops, at = [], 0.0
    for nodes in ordered:
        height = max((sizes[n][1] for n in nodes if n < count), default=0.0)
        tops.append(at + height / 2)
        at += height + LAYER_GAP
    y = [tops[layer] for layer in at_layer]
    bends = [[c for node in path for c in (round(x[node], 1), y[node])] for path in paths]
    return Drawing([round(v, 1) for v in x[:count]], y[:count], bends)
