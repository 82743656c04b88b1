"""Loop nests: loops with their axes split and permuted.

The axes of any loop can be split; those of a loop without reductions can also be permuted. ``Nest`` is a loop, or the
epilogue of a group, with every view over all axes: a result per row has stride 0 along the reduced axes.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Expression, Loop, Reduce, View
from sardonyx.lower.sizes import Refused, mul
from sardonyx.records import Record, replace

SubAxis = tuple[int, Known]
"""One of the axes into which an axis is split: the number of that axis, and the size."""


class Nest(Record):
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
        """The outputs in the form of ``Loop``: results per row without the reduced axes."""
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

    def split(self, sub_axes: Sequence[SubAxis]) -> Nest:
        """With axes split into ``sub_axes``, which are in order; axes of one element may be left out."""
        reduced = sum(axis >= self.outer for axis, _ in sub_axes)
        if reduced > 1 and any(isinstance(s, Reduce) and s.kind in ("argmax", "argmin") for s in self.expression.steps):
            raise Refused("argmax and argmin reduce one axis, which cannot be split")
        sub_axes = [*sub_axes, (len(self.extents) - 1, 1)] if self.reduced and not reduced else sub_axes
        return replace(
            self,
            extents=tuple(size for _, size in sub_axes),
            reduced=max(reduced, min(self.reduced, 1)),
            inputs=tuple(_split(v, sub_axes) for v in self.inputs),
            outputs=tuple(_split(v, sub_axes) for v in self.outputs),
        )

    def over_rows_of(self, box: Nest) -> Nest:
        """The same nest with the reduced axes of ``box`` added; its own axes are the rows of ``box``."""
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


def _split(view: View, sub_axes: Sequence[SubAxis]) -> View:
    strides: list[Known] = []
    last, step = -1, view.strides[0] if view.strides else 0
    for axis, size in reversed(sub_axes):
        step = step if axis == last else view.strides[axis]
        strides.append(step)
        last, step = axis, mul(step, size)
    return View(view.storage, tuple(size for _, size in sub_axes), tuple(reversed(strides)), view.offset)


def common_split(a: Sequence[Known], b: Sequence[Known]) -> tuple[list[SubAxis], list[SubAxis]] | None:
    """Split the axes of two boxes to the same sizes, in row-major order; None if the sizes do not divide each other."""
    mine: list[SubAxis] = []
    theirs: list[SubAxis] = []
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
    """The permutation of axes that gives a view the shape and strides of ``like``; None if there is none."""
    left, order = list(range(len(view.shape))), list[int]()
    for size, stride in zip(like.shape, like.strides, strict=True):
        found = next((i for i in left if view.shape[i] == size and view.strides[i] == stride), None)
        if found is None and size != 1:
            return None
        if found is not None:
            left.remove(found)
            order.append(found)
    return [*order, *left] if all(view.shape[i] == 1 for i in left) else None
