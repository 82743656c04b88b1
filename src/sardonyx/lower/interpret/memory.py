"""Storages as numpy arrays, and the table of the groups' numpy meanings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.check import Check
from sardonyx.lower.groups import Group, Storage, View

Array = np.ndarray[Any, Any]


class Memory:
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.arrays: dict[Storage, Array] = {}

    def size(self, d: Known) -> int:
        found = dims.evaluate(d, self.sizes)
        assert isinstance(found, int), d
        return found

    def at(self, view: View) -> Array:
        """The elements of a view, in place; asserts that they lie inside its storage."""
        flat = self.arrays.get(view.storage)
        if flat is None:
            if view.storage.tensor is not None:
                flat = view.storage.tensor.numpy().reshape(-1)
            else:
                flat = np.full(self.size(view.storage.elements), 77, view.storage.dtype.numpy)
            self.arrays[view.storage] = flat
        shape = tuple(map(self.size, view.shape))
        if 0 in shape:
            return np.empty(shape, flat.dtype)
        strides, offset = list(map(self.size, view.strides)), self.size(view.offset)
        reach = [(d - 1) * s for d, s in zip(shape, strides, strict=True)]
        low, high = offset + sum(min(r, 0) for r in reach), offset + sum(max(r, 0) for r in reach)
        assert low >= 0 and high < flat.size, (view, shape, flat.size)
        plain = flat.view(f"u{flat.itemsize}")[offset:]  # as_strided supports only numpy's own types
        return np.lib.stride_tricks.as_strided(plain, shape, [s * flat.itemsize for s in strides]).view(flat.dtype)


def enforce(check: Check, sizes: Mapping[str, int]) -> None:
    """Raise if a condition on sizes does not hold."""
    size = dims.evaluate(check.size, sizes)
    allowed = [dims.evaluate(d, sizes) for d in check.allowed]
    if not isinstance(size, int) or (size < check.least if check.least is not None else size not in allowed):
        raise InvalidArgument(check.what, where=check.node.label, expected=allowed or check.least, got=size)


Kind = TypeVar("Kind", bound=Group)
MEANINGS: dict[type[Group], Callable[[Memory, Any], None]] = {}


def meaning(
    kind: type[Kind],
) -> Callable[[Callable[[Memory, Kind], None]], Callable[[Memory, Kind], None]]:
    """Register the numpy meaning of a kind of group."""

    def register(fn: Callable[[Memory, Kind], None]) -> Callable[[Memory, Kind], None]:
        MEANINGS[kind] = fn
        return fn

    return register
