"""Gather and scatter by index tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.lower.groups import Gather, GatherElements, Group, Scatter
from sardonyx.lower.interpret.expression import wide
from sardonyx.lower.interpret.memory import Array, Memory, meaning


def checked(group: Group, indices: Array, count: int) -> Array:
    """Indices counted from the front."""
    if indices.size and not -count <= indices.min() <= indices.max() < count:
        raise InvalidArgument("an index is out of range", where=group.nodes[0].label, expected=count)
    return np.where(indices < 0, indices + count, indices)


@meaning(Gather)
def gather(memory: Memory, group: Gather) -> None:
    data, indices = memory.at(group.data), memory.at(group.indices)
    at = checked(group, indices, data.shape[group.axis])
    memory.at(group.out)[...] = np.take(data, at, axis=group.axis)


@meaning(GatherElements)
def gather_elements(memory: Memory, group: GatherElements) -> None:
    data, indices = memory.at(group.data), memory.at(group.indices)
    at = checked(group, indices, data.shape[group.axis])
    reach = tuple(slice(None) if a == group.axis else slice(n) for a, n in enumerate(indices.shape))
    memory.at(group.out)[...] = np.take_along_axis(data[reach], at, group.axis)


_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


@meaning(Scatter)
def scatter(memory: Memory, group: Scatter) -> None:
    out, updates = memory.at(group.out), memory.at(group.updates)
    out[...] = memory.at(group.data)
    at = checked(group, memory.at(group.indices), memory.size(group.size)) * memory.size(group.pitch)
    flat, combine = memory.arrays[group.out.storage], _REDUCTIONS[group.reduction]
    strides, start = list(map(memory.size, group.places.strides)), memory.size(group.places.offset)
    for box in np.ndindex(updates.shape):
        place = start + sum(i * s for i, s in zip(box, strides, strict=True)) + int(at[box])
        old, new = (wide(a[i : i + 1]) for a, i in ((flat, place), (updates[box].reshape(1), 0)))
        flat[place] = combine(old, new).astype(flat.dtype)[0]
