"""Results as long as the data make them. They lie dense at the start of a place for the longest."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import Group, View


@dataclass(frozen=True)
class Find(Group):
    """The coordinates of what is true, in row-major order: first all of the first axis, then all of the next.

    ``mask`` is a row of bools, of a tensor of ``shape``. ``out`` is a place for i64, ``count`` an i64 without axes.
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


@dataclass(frozen=True)
class Keep(Group):
    """out[o, j, n] = x[o, chosen[j], n] for the first ``count`` elements of ``chosen``, which are checked.

    ``x`` has three axes.
    """

    x: View
    chosen: View
    count: View
    out: View

    @property
    def reads(self) -> tuple[View, ...]:
        return self.x, self.chosen, self.count

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.out,)


@dataclass(frozen=True)
class Distinct(Group):
    """The different rows of ``x``, a matrix: where each occurs first, which one each row is, how often each occurs.

    ``is_sorted`` orders them as numbers, NaN last, else by where they occur first. ``first`` and ``counts`` are places
    for i64, as long as there are rows. ``inverse`` has an element for each row.
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


@dataclass(frozen=True)
class Suppress(Group):
    """Boxes kept, class by class: the best of those left, without those that overlap one kept already.

    ``boxes``: (batch, boxes, 4), ``scores``: (batch, classes, boxes), f32. Rows (batch, class, box) of i64 go to
    ``out``, at most ``most`` of a class. ``overlap`` and ``least``, f32 without axes, are the intersection over union
    above which a box goes, and the score that a box must exceed.
    """

    boxes: View
    scores: View
    overlap: View
    least: View | None
    most: Known
    is_centered: bool
    """Boxes are (x, y, width, height) of their middle, else two corners."""
    out: View
    count: View

    @property
    def reads(self) -> tuple[View, ...]:
        return (self.boxes, self.scores, self.overlap, *(() if self.least is None else (self.least,)))

    @property
    def writes(self) -> tuple[View, ...]:
        return self.out, self.count
