"""Groups whose output size depends on the data.

The output buffer has room for the largest result; the result is dense at its start, and ``count`` tells its length."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import Group, View


class NonZero(Group):
    """Coordinates of the true elements in row-major order, as a matrix (axes, count).

    ``mask`` is the flattened bool tensor of ``shape``; ``out`` is i64, ``count`` an i64 scalar.
    """

    mask: View
    shape: tuple[Known, ...]
    out: View
    count: View

    @property
    def reads(self) -> tuple[View, ...]:
        return (self.mask,)

    @property
    def writes(self) -> tuple[View, ...]:
        return self.out, self.count


class CountedGather(Group):
    """out[o, j, n] = x[o, indices[j], n] for j < ``count``. Indices are checked."""

    x: View
    indices: View
    count: View
    out: View

    @property
    def reads(self) -> tuple[View, ...]:
        return self.x, self.indices, self.count

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.out,)


class Unique(Group):
    """The distinct rows of the matrix ``x``.

    ``first``: index of the first occurrence of each; ``counts``: number of occurrences of each; ``inverse``: for every
    row of ``x``, its position among the distinct rows; all i64. The distinct rows are in ascending order, NaN last,
    or, unless ``is_sorted``, in order of first occurrence.
    """

    x: View
    first: View
    inverse: View
    counts: View
    count: View
    is_sorted: bool

    @property
    def reads(self) -> tuple[View, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[View, ...]:
        return self.first, self.inverse, self.counts, self.count


class NonMaxSuppression(Group):
    """Greedy selection of boxes by score, for each class; skips boxes that overlap a selected one too much.

    ``boxes``: (batch, boxes, 4), ``scores``: (batch, classes, boxes), f32. ``out`` gets i64 rows (batch, class, box),
    at most ``max_per_class`` of a class. ``iou_threshold`` and ``score_threshold`` are f32 scalars: a box is skipped
    if its intersection over union with a selected box exceeds the former or its score does not exceed the latter.
    """

    boxes: View
    scores: View
    iou_threshold: View
    score_threshold: View | None
    max_per_class: Known
    is_centered: bool
    """Boxes are (center x, center y, width, height), else two opposite corners."""
    out: View
    count: View

    @property
    def reads(self) -> tuple[View, ...]:
        threshold = () if self.score_threshold is None else (self.score_threshold,)
        return (self.boxes, self.scores, self.iou_threshold, *threshold)

    @property
    def writes(self) -> tuple[View, ...]:
        return self.out, self.count
