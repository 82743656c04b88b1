"""What the steps of the demo found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sardonyx.records import Record


class Loaded(Record):
    model: str
    nbytes: int
    load_s: float
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


class Read(Record):
    """Digits that were read, and whether they were read right."""

    right: int
    count: int
    first: Any
    """The first images, and what they were taken for."""
    answers: tuple[int, ...]
    sure: tuple[float, ...]
    mistaken: tuple[tuple[int, int], ...]
    """What each wrong answer is, and what it should be."""
    as_onnxruntime: bool | None
    """Whether onnxruntime gives the same answers; None where it is not installed."""

    @property
    def share(self) -> float:
        return self.right / self.count


class Optimized(Record):
    model: str
    before: int
    after: int
    """Nodes."""
    passes: Mapping[str, int]
    """Rewrites of each pass."""
    is_same: bool
    """Whether the saved model gives the same answers."""


class Placed(Record):
    """Which provider runs which operators."""

    nodes: int
    providers: Mapping[str, Mapping[str, int]]
