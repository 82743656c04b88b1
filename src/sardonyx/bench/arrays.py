"""Named values by kind in an .npz file, through which processes hand each other feeds and answers.

The key of an array is ``KIND:NAME``. Types that numpy's format lacks (bfloat16 and the like) are stored as integers
under ``KIND@TYPE:NAME``, strings as numpy's own. A sequence or map is JSON under ``KIND!:NAME``; the tensors in it are
arrays ``KIND!NUMBER:NAME``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import writing
from sardonyx.errors import InvalidArgument

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


def stored(path: Path, kind: str) -> dict[str, Any]:
    """The values of one kind in a file, by name."""
    found: dict[str, Any] = {}
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: _loaded(key, file[key]) for key in file}
    for key, array in arrays.items():
        head, _, name = key.partition(":")
        of = head.partition("@")[0]
        if of == kind and name:
            found[name] = array
        if of == f"{kind}!" and name:
            inside = {_number(k, kind): a for k, a in arrays.items() if k.partition(":")[2] == name}
            found[name] = _assembled(json.loads(str(array[()])), inside)
    return found


def store(path: Path, **kinds: Mapping[str, Any]) -> None:
    """Write tensors, sequences and maps by kind and name; the file appears whole or not at all."""
    arrays: dict[str, Array] = {}
    for kind, named in kinds.items():
        for name, value in named.items():
            if not isinstance(value, (list, Mapping)):
                arrays |= [_stored(kind, name, value)]
                continue
            inside: list[Array] = []
            arrays[f"{kind}!:{name}"] = np.array(json.dumps(_taken_apart(value, name, inside)))
            arrays |= [_stored(f"{kind}!{i}", name, array) for i, array in enumerate(inside)]
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    writing.write_whole(str(path), [file.getbuffer()])


def _taken_apart(value: Any, name: str, inside: list[Array]) -> Any:
    """What JSON keeps of a value: lists, pairs of a map, scalars, and the numbers of tensors."""
    if isinstance(value, list):
        return {"list": [_taken_apart(item, name, inside) for item in value]}
    if isinstance(value, Mapping):
        return {"map": [[key, _taken_apart(item, name, inside)] for key, item in value.items()]}
    if value is None or isinstance(value, (str, int, float)):
        return {"value": value}
    inside.append(value)
    return {"tensor": len(inside) - 1}


def _assembled(kept: Mapping[str, Any], inside: Mapping[int, Array]) -> Any:
    if "list" in kept:
        return [_assembled(item, inside) for item in kept["list"]]
    if "map" in kept:
        return {key: _assembled(item, inside) for key, item in kept["map"]}
    return inside[kept["tensor"]] if "tensor" in kept else kept["value"]


def _number(key: str, kind: str) -> int:
    """Of a tensor in a sequence or map; -1 for other keys."""
    of, _, number = key.partition(":")[0].partition("@")[0].partition("!")
    return int(number) if of == kind and number else -1


def _loaded(key: str, array: Array) -> Array:
    head = key.partition(":")[0]
    if array.dtype.kind == "U" and not head.endswith("!"):
        return array.astype(object)
    return _typed(array, head.partition("@")[2])


def _stored(kind: str, name: str, array: Array) -> tuple[str, Array]:
    if not isinstance(array, np.ndarray):
        raise InvalidArgument("only tensors, sequences and maps can be stored", where=name, got=type(array).__name__)
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
