"""The table that LabelEncoder and CategoryMapper look elements up in."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_NONE = np.empty(0, np.int64)


class LabelTable:
    """``values`` at the first key equal to an element (NaN equals NaN), else ``default``."""

    def __init__(self, keys: Array, values: Array, default: Any) -> None:
        self.values = np.full(len(values) + 1, default, values.dtype)
        self.values[:-1] = values
        self._missing = len(values)
        self._order, self._first = np.empty(0, keys.dtype), np.empty(0, np.int64)
        self._places: dict[Any, int] = {}
        if keys.dtype == object:
            self._places = dict(zip(reversed(keys.tolist()), reversed(range(len(keys))), strict=True))
        else:
            self._order, self._first = np.unique(keys, return_index=True)

    def look_up(self, x: Array) -> Array:
        at: Any
        if x.dtype == object:
            get, missing = self._places.get, self._missing
            at = [get(each, missing) for each in x.reshape(-1).tolist()] if x.size else _NONE
        elif not len(self._order):
            at = np.full(x.size, self._missing)
        else:
            order, given = self._order, x.reshape(-1)
            near = np.minimum(np.searchsorted(order, given), len(order) - 1)
            hit = (order[near] == given) | ((order[near] != order[near]) & (given != given))
            at = np.where(hit, self._first[near], self._missing)
        found: Array = self.values[at].reshape(x.shape)
        return found
