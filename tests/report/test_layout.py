"""Layered layout: layers follow edges, boxes do not overlap, crossings are counted right and become fewer."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from sardonyx.report.layout.layered import GAP, LONGEST, draw
from sardonyx.report.layout.layers import assign_layers
from sardonyx.report.layout.order import crossings, order_layers
from sardonyx.report.layout.place import separated


def random_edges(count: int, seed: int, reach: int = 20) -> list[tuple[int, int]]:
    rng = np.random.default_rng(seed)
    edges = set()
    for target in range(1, count):
        for _ in range(int(rng.integers(1, 3))):
            edges.add((int(rng.integers(max(0, target - reach), target)), target))
    return sorted(edges)


@pytest.mark.parametrize("seed", range(3))
def test_every_edge_goes_down(seed: int) -> None:
    edges = random_edges(200, seed)
    layers = assign_layers(200, edges)
    assert all(layers[a] < layers[b] for a, b in edges)
    assert set(layers) == set(range(max(layers) + 1))


def test_sources_are_next_to_their_readers() -> None:
    layers = assign_layers(5, [(0, 1), (1, 2), (2, 4), (3, 4)])
    assert layers == [0, 1, 2, 2, 3]


@pytest.mark.parametrize("seed", range(3))
def test_boxes_do_not_overlap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [(float(w), 40.0) for w in rng.uniform(30, 200, 150)]
    edges = random_edges(150, seed)
    drawing = draw(sizes, edges)
    for i, j in combinations(range(150), 2):
        if drawing.y[i] == drawing.y[j]:
            assert abs(drawing.x[i] - drawing.x[j]) >= (sizes[i][0] + sizes[j][0]) / 2 + GAP - 0.2
    assert all(drawing.y[a] < drawing.y[b] for a, b in edges)


def test_an_edge_bends_once_for_each_layer_that_it_skips() -> None:
    chain = [(i, i + 1) for i in range(4)]
    drawing = draw([(50.0, 40.0)] * 5, [*chain, (0, 4)])
    assert [len(b) // 2 for b in drawing.bends] == [0, 0, 0, 0, 3]
    ys = drawing.bends[4][1::2]
    assert ys == sorted(ys) and drawing.y[0] < ys[0] and ys[-1] < drawing.y[4]


def test_long_edges_bend_at_their_ends_only() -> None:
    count = LONGEST + 10
    drawing = draw([(50.0, 40.0)] * count, [*((i, i + 1) for i in range(count - 1)), (0, count - 1)])
    assert len(drawing.bends[-1]) == 4


def test_a_graph_without_nodes_or_edges() -> None:
    assert draw([], []).x == []
    alone = draw([(50.0, 40.0)] * 3, [])
    assert len(set(alone.x)) == 3 and len(set(alone.y)) == 1


@pytest.mark.parametrize("seed", range(5))
def test_crossings_are_those_of_all_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    upper, lower = list(range(8)), list(range(8, 16))
    rng.shuffle(lower)
    edges = {(int(rng.integers(8)), int(rng.integers(8, 16))) for _ in range(20)}
    after = [[b for a, b in edges if a == n] for n in range(16)]
    at = {n: i for i, n in enumerate(lower)}
    expected = sum((a - c) * (at[b] - at[d]) < 0 for (a, b), (c, d) in combinations(edges, 2))
    assert crossings([upper, lower], after) == expected


def test_crossed_edges_are_uncrossed() -> None:
    after = [[3], [2], [], []]
    before = [[], [], [1], [0]]
    ordered = order_layers([[0, 1], [2, 3]], before, after)
    assert crossings(ordered, after) == 0


@pytest.mark.parametrize("seed", range(5))
def test_separation_is_least_squares(seed: int) -> None:
    """No small move of one position that keeps the gaps comes nearer to what was wanted."""
    rng = np.random.default_rng(seed)
    wanted, widths = list(rng.uniform(0, 300, 12)), list(rng.uniform(10, 60, 12))
    found = separated(wanted, widths, 5.0)
    gaps = [(a + b) / 2 + 5.0 for a, b in pairwise(widths)]
    assert all(b - a >= gap - 1e-9 for a, b, gap in zip(found, found[1:], gaps, strict=False))

    def cost(x: list[float]) -> float:
        return sum((a - b) ** 2 for a, b in zip(x, wanted, strict=True))

    for i in range(12):
        for step in (-0.01, 0.01):
            # Everything that would be pushed moves along.
            moved = [v + step if (j >= i if step > 0 else j <= i) else v for j, v in enumerate(found)]
            assert cost(moved) >= cost(found) - 1e-9
