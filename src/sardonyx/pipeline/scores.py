"""Steps from a classifier's scores to answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.ir.graph import Value
from sardonyx.pipeline.writer import Writer


@dataclass(frozen=True)
class Flatten:
    """Flatten all axes but the first."""

    names = ("scores",)

    def write(self, op: Writer, *values: Value) -> tuple[Value, ...]:
        return (op.Flatten(values[0], axis=1), *values[1:])


@dataclass(frozen=True)
class Softmax:
    """Scores to probabilities."""

    axis: int = -1
    names = ("probabilities",)

    def write(self, op: Writer, *values: Value) -> tuple[Value, ...]:
        return (op.Softmax(values[0], axis=self.axis), *values[1:])


@dataclass(frozen=True)
class TopK:
    """The k largest scores in descending order, and their indices."""

    k: int = 5
    axis: int = -1
    names = ("scores", "indices")

    def write(self, op: Writer, *values: Value) -> tuple[Value, ...]:
        best: tuple[Value, ...] = op.TopK(values[0], [self.k], axis=self.axis, outputs=2)
        return best


@dataclass(frozen=True)
class ArgMax:
    """The index of the largest score."""

    axis: int = -1
    names = ("index",)

    def write(self, op: Writer, *values: Value) -> tuple[Value, ...]:
        return (op.ArgMax(values[0], axis=self.axis, keepdims=0),)


@dataclass(frozen=True)
class Labels:
    """Class names in addition to scores or, after ArgMax, instead of indices."""

    labels: Sequence[str]
    names = ("scores", "labels")

    def write(self, op: Writer, *values: Value) -> tuple[Value, ...]:
        *others, index = values
        return (*others, op.Gather(op.const(np.array(self.labels, object)), index, axis=0))
