"""Assignment to a slice, as exporters spell it: a ScatterND whose indices are the constant grid of a box.

The update is copied into its window, and the data around it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.lower import views
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering
from sardonyx.lower.sizes import add, sub

MAX_ELEMENTS = 1 << 20
"""Of indices that are looked at."""


def box_of(indices: np.ndarray[Any, Any]) -> list[tuple[int, int | None]] | None:
    """For each indexed axis where the box begins, and which axis of the indices counts along it; None for no box."""
    *outer, depth = indices.shape
    found: list[tuple[int, int | None]] = []
    for column in (indices[..., j] for j in range(depth)):
        start = int(column.flat[0])
        moving = [k for k, n in enumerate(outer) if n > 1 and (np.diff(column, axis=k) != 0).any()]
        steps: np.ndarray[Any, Any] = np.zeros((), np.int64)
        if moving:
            steps = np.arange(outer[moving[0]]).reshape([-1 if k == moving[0] else 1 for k in range(len(outer))])
        if len(moving) > 1 or not np.array_equal(column, np.broadcast_to(start + steps, column.shape)):
            return None
        if start < 0 < start + steps.size:
            return None
        found.append((start, moving[0] if moving else None))
    used = [axis for _, axis in found if axis is not None]
    return found if sorted(used) == [k for k, n in enumerate(outer) if n > 1] else None


def assign(low: Lowering, data: View, indices: View, updates: View, out: View) -> bool:
    """Copy what a box of indices says; False where they are not one."""
    tensor = indices.storage.tensor
    if tensor is None or not views.is_whole(indices) or not 0 < tensor.size <= MAX_ELEMENTS:
        return False
    box = box_of(tensor.numpy().reshape([d for d in indices.shape if isinstance(d, int)]))
    if box is None:
        return False
    outer = len(indices.shape) - 1
    kept = [axis for _, axis in box if axis is not None]
    update = views.permuted(
        updates, [*kept, *(k for k in range(outer) if k not in kept), *range(outer, len(updates.shape))]
    )
    for _ in range(outer - len(kept)):
        update = views.selected(update, len(kept))
    for axis, (start, along) in enumerate(box):
        if along is None:
            update = views.inserted(update, axis)
        size, length = data.shape[axis], update.shape[axis]
        low.require_least("ScatterND: an index is out of range", size, -start if start < 0 else start + _number(length))
        first = add(size, start) if start < 0 else start
        end = add(first, length)
        for begin, count in ((0, first), (end, sub(size, end))):
            if count != 0:
                low.copy(*(views.sliced(v, axis, begin, count) for v in (data, out)))
        data, out = (views.sliced(v, axis, first, length) for v in (data, out))
    low.copy(update, out)
    return True


def _number(length: object) -> int:
    assert isinstance(length, int)
    return length
