"""Assignment to a slice: a ScatterND whose constant indices enumerate a box of the data.

Exporters write ``x[a:b, c:d] = y`` so. It becomes copies: of the updates into the box, and of the data around it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.lower import views
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering
from sardonyx.lower.sizes import add, sub

MAX_ELEMENTS = 1 << 20
"""Elements of indices up to which they are examined."""


def box_of(indices: np.ndarray[Any, Any]) -> list[tuple[int, int | None]] | None:
    """For each indexed axis, the start of the box and the axis of ``indices`` that runs along it; None if it is no
    box."""
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


def assign_slice(low: Lowering, data: View, indices: View, updates: View, out: View) -> bool:
    """Lower a ScatterND to copies if its indices are a box; returns whether they are."""
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
