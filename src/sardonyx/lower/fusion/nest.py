"""Loops under another choice of axes.

A box may be walked with its axes split, and, where nothing is reduced, in any order. ``Nest`` is a loop, or what a
contraction does after its sums, with every view over all axes: a result of one number per row has stride 0 along
the reduced ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Expression, Loop, Reduce, View
from sardonyx.lower.sizes import Refused, mul

Piece = tuple[int, Known]
"""A part of an axis: which, and how long."""


@dataclass(frozen=True)
class Nest:
    extents: tuple[Known, ...]
    reduced: int
    inputs: tuple[View, ...]
    expression: Expression
    outputs: tuple[View, ...]
    rows: tuple[bool, ...]
    """Which outputs are stored once per row."""

    @property
    def outer(self) -> int:
        return len(self.extents) - self.reduced

    @staticmethod
    def of(loop: Loop) -> Nest:
        outer = len(loop.extents) - loop.reduced
        rows = tuple(len(v.shape) < len(loop.extents) for v in loop.outputs)
        outputs = tuple(
            _repeated(v, loop.extents[outer:]) if row else v for v, row in zip(loop.outputs, rows, strict=True)
        )
        return Nest(loop.extents, loop.reduced, loop.inputs, loop.expression, outputs, rows)

    def stored(self) -> tuple[View, ...]:
        """The outputs as a loop has them."""
        return tuple(
            replace(v, shape=v.shape[: self.outer], strides=v.strides[: self.outer]) if row else v
            for v, row in zip(self.outputs, self.rows, strict=True)
        )

    def permuted(self, perm: Sequence[int]) -> Nest:
        assert not self.reduced
        return replace(
            self,
            extents=tuple(self.extents[p] for p in perm),
            inputs=tuple(views.permuted(v, perm) for v in self.inputs),
            outputs=tuple(views.permuted(v, perm) for v in self.outputs),
        )

    def split(self, pieces: Sequence[Piece]) -> Nest:
        """Over parts of axes, in order; axes of one element may be left out."""
        reduced = sum(axis >= self.outer for axis, _ in pieces)
        if reduced > 1 and any(isinstance(s, Reduce) and s.kind in ("argmax", "argmin") for s in self.expression.steps):
            raise Refused("an index is along one axis")
        pieces = [*pieces, (len(self.extents) - 1, 1)] if self.reduced and not reduced else pieces
        return replace(
            self,
            extents=tuple(size for _, size in pieces),
            reduced=max(reduced, min(self.reduced, 1)),
            inputs=tuple(_split(v, pieces) for v in self.inputs),
            outputs=tuple(_split(v, pieces) for v in self.outputs),
        )

    def over_rows_of(self, box: Nest) -> Nest:
        """The same for every row of a box that has reduced axes, where this box is its rows."""
        assert not self.reduced
        inner = box.extents[box.outer :]
        return Nest(
            (*self.extents, *inner),
            box.reduced,
            tuple(_repeated(v, inner) for v in self.inputs),
            self.expression,
            tuple(_repeated(v, inner) for v in self.outputs),
            (True,) * len(self.outputs),
        )


def _repeated(view: View, extents: Sequence[Known]) -> View:
    return replace(view, shape=(*view.shape, *extents), strides=(*view.strides, *[0] * len(extents)))


def _split(view: View, pieces: Sequence[Piece]) -> View:
    strides: list[Known] = []
    last, step = -1, view.strides[0] if view.strides else 0
    for axis, size in reversed(pieces):
        step = step if axis == last else view.strides[axis]
        strides.append(step)
        last, step = axis, mul(step, size)
    return View(view.storage, tuple(size for _, size in pieces), tuple(reversed(strides)), view.offset)


def common(a: Sequence[Known], b: Sequence[Known]) -> tuple[list[Piece], list[Piece]] | None:
    """Two boxes of equally many elements cut to the same parts, in row-major order; None where they do not divide."""
    mine: list[Piece] = []
    theirs: list[Piece] = []
    i, j = len(a) - 1, len(b) - 1
    x: Known = a[i] if i >= 0 else 1
    y: Known = b[j] if j >= 0 else 1
    while True:
        if x == 1 and i >= 0:
            i, x = i - 1, a[i - 1] if i > 0 else 1
        elif y == 1 and j >= 0:
            j, y = j - 1, b[j - 1] if j > 0 else 1
        elif i < 0 or j < 0:
            return (mine[::-1], theirs[::-1]) if i < 0 and j < 0 else None
        else:
            shorter = x if x == y or dims.exact_div(y, x) is not None else y
            left, right = dims.exact_div(x, shorter), dims.exact_div(y, shorter)
            if left is None or right is None:
                return None
            mine.append((i, shorter))
            theirs.append((j, shorter))
            x, y = left, right


def matching_order(view: View, like: View) -> list[int] | None:
    """The order of axes under which a view's strides are those of another view, axis by axis."""
    left, order = list(range(len(view.shape))), list[int]()
    for size, stride in zip(like.shape, like.strides, strict=True):
        found = next((i for i in left if view.shape[i] == size and view.strides[i] == stride), None)
        if found is None and size != 1:
            return None
        if found is not None:
            left.remove(found)
            order.append(found)
    return [*order, *left] if all(view.shape[i] == 1 for i in left) else None
