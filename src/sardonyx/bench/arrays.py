"""Named arrays by kind in an .npz file, through which processes hand each other feeds and answers.

The key of an array is ``KIND:NAME``. Types that numpy's format lacks (bfloat16 and the like) are stored as integers
under ``KIND@TYPE:NAME``, strings as numpy's own.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import writing
from sardonyx.errors import InvalidArgument

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


def stored(path: Path, kind: str) -> Feeds:
    """The arrays of one kind in a file, by name."""
    found = {}
    with np.load(path, allow_pickle=False) as file:
        for key in file:
            head, _, name = key.partition(":")
            of, _, type_name = head.partition("@")
            if of == kind and name:
                array = file[key]
                found[name] = array.astype(object) if array.dtype.kind == "U" else _typed(array, type_name)
    return found


def store(path: Path, **kinds: Mapping[str, Array]) -> None:
    """Write arrays by kind and name; the file appears whole or not at all."""
    arrays = dict(_stored(kind, name, array) for kind, named in kinds.items() for name, array in named.items())
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    writing.write_whole(str(path), [file.getbuffer()])


def _stored(kind: str, name: str, array: Array) -> tuple[str, Array]:
    if not isinstance(array, np.ndarray):
        raise InvalidArgument("only tensors can be stored", where=name, got=type(array).__name__)
    if array.dtype == object:
        return f"{kind}:{name}", array.astype(str)
    if array.dtype.kind == "V":
        bits = np.dtype(f"u{array.dtype.itemsize}")
        return f"{kind}@{array.dtype.name}:{name}", array.view(bits)
    return f"{kind}:{name}", array


def _typed(array: Array, type_name: str) -> Array:
    if not type_name:
        return array
    import ml_dtypes

    return array.view(np.dtype(getattr(ml_dtypes, type_name)))
