"""The order of nodes within layers: barycenters, sweep by sweep, so that few edges cross."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise

SWEEPS = 6


def order_layers(
    layers: Sequence[Sequence[int]], before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]
) -> list[list[int]]:
    """The layers' nodes in an order with few crossings. ``before`` and ``after`` are neighbours in adjacent layers."""
    current = [list(layer) for layer in layers]
    best, fewest = [list(layer) for layer in current], crossings(current, after)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        is_down = sweep % 2 == 0
        place = {node: i for layer in current for i, node in enumerate(layer)}
        for layer in current if is_down else reversed(current):
            near = before if is_down else after
            center = {n: sum(place[m] for m in near[n]) / len(near[n]) if near[n] else float(place[n]) for n in layer}
            layer.sort(key=center.__getitem__)
            place.update((node, i) for i, node in enumerate(layer))
        found = crossings(current, after)
        if found < fewest:
            best, fewest = [list(layer) for layer in current], found
    return best


def crossings(layers: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> int:
    """How many pairs of edges between adjacent layers cross."""
    total = 0
    for upper, lower in pairwise(layers):
        place = {node: i for i, node in enumerate(lower)}
        seen: list[int] = []
        for node in upper:
            targets = sorted(place[m] for m in after[node])
            for target in targets:
                total += len(seen) - bisect_right(seen, target)
            for target in targets:
                insort(seen, target)
    return total
