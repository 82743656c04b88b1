"""Nets with open shapes, and the shapes in which they run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.zoo import open_shapes
from sardonyx.bench.arrays import Feeds

Shape = tuple[int, ...]
NETS: dict[str, Callable[[], bytes]] = {"transformer": open_shapes.transformer, "detector": open_shapes.detector}
LARGEST = {"transformer": (8, 256), "detector": (512, 512)}
LEAST = {"transformer": (1, 1), "detector": (64, 64)}
SEEN = {"transformer": ((1, 128),), "detector": ((128, 128),)}
NEAR = {
    "transformer": tuple((1, n) for n in range(66, 128, 2)),
    "detector": tuple((96 + i, 128 - i) for i in range(1, 31)),
}
"""All in the bucket of the shape that was seen."""


def shapes_of(net: str, count: int) -> list[Shape]:
    """The largest among random ones; of one, the largest alone."""
    rng = np.random.default_rng(7)
    found = [tuple(map(int, rng.integers(LEAST[net], LARGEST[net], endpoint=True))) for _ in range(count - 1)]
    return [*found[: count // 2], LARGEST[net], *found[count // 2 :]]


def feeds_of(net: str, shape: Shape) -> Feeds:
    rng = np.random.default_rng(shape)
    if net == "detector":
        return {"image": rng.standard_normal((1, 3, *shape), np.float32)}
    return {"ids": rng.integers(0, 2000, shape), "mask": np.ones(shape, np.int64)}
