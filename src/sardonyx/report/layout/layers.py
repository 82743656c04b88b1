"""The layer of every node: sources on top, each node below those that it reads, edges short."""

from __future__ import annotations

from collections.abc import Sequence


def assign_layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of each of ``count`` nodes. Edges must go from lower to higher numbers, as in execution order."""
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        assert source < target
        before[target].append(source)
        after[source].append(target)
    layers = [0] * count
    for node in range(count):
        layers[node] = max((layers[p] + 1 for p in before[node]), default=0)
    for node in reversed(range(count)):
        # Moving a node down shortens its outgoing edges and lengthens its incoming ones.
        if (after[node] and len(before[node]) < len(after[node])) or (after[node] and not before[node]):
            layers[node] = min(layers[s] for s in after[node]) - 1
    used = {layer: i for i, layer in enumerate(sorted(set(layers)))}
    return [used[layer] for layer in layers]
