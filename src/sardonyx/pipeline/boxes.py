"""Steps from a detector's output to objects. A box is x, y, x, y of two corners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ir.graph import Value
from sardonyx.pipeline.writer import Writer, pair

FAR = 8192.0
"""Offset between boxes of different classes, so that they do not suppress each other."""


@dataclass(frozen=True)
class YoloBoxes:
    """Boxes and scores of YOLOv8 and similar detectors: (batch, 4 + classes, boxes), centre and size first."""

    names = ("boxes", "scores")

    def write(self, op: Writer, *values: Value) -> tuple[Value, ...]:
        rows = op.Transpose(values[0], perm=[0, 2, 1])
        return _corners(op, *(_columns(op, rows, a, b) for a, b in ((0, 2), (2, 4)))), _columns(op, rows, 4, None)


@dataclass(frozen=True)
class YoloxBoxes:
    """Boxes and scores of YOLOX: (batch, boxes, 5 + classes), with positions in cells of grids over ``size``."""

    size: int | tuple[int, int]
    strides: Sequence[int] = (8, 16, 32)
    names = ("boxes", "scores")

    def __post_init__(self) -> None:
        pair(self.size, "YoloxBoxes")

    def write(self, op: Writer, *values: Value) -> tuple[Value, ...]:
        (rows,) = values
        height, width = pair(self.size, "YoloxBoxes")
        grids = [np.mgrid[: height // s, : width // s][::-1].reshape(2, -1).T for s in self.strides]
        cells = np.concatenate(grids).astype(np.float32)
        steps = np.repeat(np.array(self.strides, np.float32), [len(g) for g in grids])[:, None]
        count = rows.shape[1] if rows.shape is not None else None
        if isinstance(count, int) and count != len(cells):
            raise InvalidArgument("YoloxBoxes: the grids do not fit the model", expected=count, got=len(cells))
        center = op.Mul(op.Add(_columns(op, rows, 0, 2), op.const(cells)), op.const(steps))
        span = op.Mul(op.Exp(_columns(op, rows, 2, 4)), op.const(steps))
        return _corners(op, center, span), op.Mul(_columns(op, rows, 5, None), _columns(op, rows, 4, 5))


def _columns(op: Writer, rows: Value, start: int, end: int | None) -> Value:
    made: Value = op.Slice(rows, [start], [(1 << 31) - 1 if end is None else end], [2])
    return made


def _corners(op: Writer, center: Value, span: Value) -> Value:
    half = op.Mul(span, op.floats(0.5))
    made: Value = op.Concat(op.Sub(center, half), op.Add(center, half), axis=2)
    return made


@dataclass(frozen=True)
class NonMaxSuppression:
    """Keep the best of overlapping boxes of a class: at most ``max_boxes`` with scores above ``score``.

    Boxes overlap if their intersection over union exceeds ``iou``. Each box counts with its best class. The results,
    for one image, are boxes (n, 4), scores (n) and classes (n), best first.
    """

    iou: float = 0.45
    score: float = 0.25
    max_boxes: int = 300
    names = ("boxes", "scores", "classes")

    def write(self, op: Writer, *values: Value) -> tuple[Value, ...]:
        if len(values) != 2:
            raise InvalidArgument("NonMaxSuppression takes boxes and scores", got=f"{len(values)} values")
        boxes, scores = values
        best, kind = op.ReduceMax(scores, [2], keepdims=0), op.ArgMax(scores, axis=2, keepdims=0)
        apart = op.Mul(op.Cast(op.Unsqueeze(kind, [2]), to=1), op.floats(FAR))
        chosen = op.NonMaxSuppression(
            op.Add(boxes, apart), op.Unsqueeze(best, [1]), [self.max_boxes], op.floats(self.iou), op.floats(self.score)
        )
        index = op.Squeeze(op.Slice(chosen, [2], [3], [1]), [1])
        return tuple(op.Gather(op.Squeeze(x, [0]), index, axis=0) for x in (boxes, best, kind))


@dataclass(frozen=True)
class ToImage:
    """Convert boxes, the first of the values, to pixels of the original image, clipped to it."""

    names = ("boxes", "scores", "classes")

    def write(self, op: Writer, *values: Value) -> tuple[Value, ...]:
        picture = op.picture
        if picture is None or picture.image is None:
            raise InvalidArgument("ToImage needs steps before the model")
        boxes, *others = values
        for change in picture.undo:
            boxes = change(op, boxes)
        height, width = picture.image
        return (op.Min(op.Max(boxes, op.floats(0)), op.corners(width, height)), *others)
