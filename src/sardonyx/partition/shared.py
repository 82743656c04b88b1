"""Results that share memory with arguments, constants or each other are copied before callers get them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def copy_shared(results: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """The results; those that share memory with an argument, a constant or an earlier result are copied."""
    seen: set[int] = set()
    for arg in args:
        _note(arg, seen)
    return [_owned(value, seen) for value in results]


def _note(value: Any, seen: set[int]) -> None:
    if type(value) is np.ndarray:
        seen.add(id(value if value.base is None else _root(value)))
    elif isinstance(value, list):
        for item in value:
            _note(item, seen)


def _root(array: np.ndarray[Any, Any]) -> Any:
    """The object that owns an array's memory."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base


def _owned(value: Any, seen: set[int]) -> Any:
    if type(value) is np.ndarray:
        root = _root(value)
        if (
            type(root) is not np.ndarray
            or id(root) in seen
            or not root.flags.writeable
            or not value.flags.writeable
            or not value.flags.c_contiguous
        ):
            return value.copy(order="C")
        seen.add(id(root))
        return value
    if isinstance(value, list):
        return [dict(item) if type(item) is dict else _owned(item, seen) for item in value]
    if isinstance(value, dict):
        return dict(value)
    return value
