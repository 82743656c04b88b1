"""Many samples for a model from files: for calibration, and to judge what a model lost.

A folder has one sample in each file, or in each subfolder; its files are read as ``files`` reads them. An .npz has
arrays by the inputs' names, an .npy the values of one input; both are split along their first axis: as many at once as
the model's batch size, if that is fixed. ``NAME=FILE.npz:KEY`` names an array of another name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.bench.files import IMAGES, read_array, read_inputs
from sardonyx.errors import InvalidArgument
from sardonyx.session.metadata import NodeArg

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
READ = IMAGES | {".npy", ".npz", ".pb"}


def read_samples(declared: Sequence[NodeArg], given: Sequence[str], batch: int = 1, most: int = 0) -> list[Feeds]:
    """The samples of a folder, or of files with arrays of the inputs; ``most`` of them at most, 0 for all."""
    if len(given) == 1 and Path(given[0]).is_dir():
        found: Iterator[Feeds] = _folder(Path(given[0]), declared)
    else:
        found = _split(declared, _arrays(declared, given), batch)
    samples = list(islice(found, most or None))
    if not samples:
        raise InvalidArgument("there are no samples", where=", ".join(given))
    return samples


def _folder(folder: Path, declared: Sequence[NodeArg]) -> Iterator[Feeds]:
    """The samples in the order of their names; other files than those that are read are left out."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            parts = [f"{each}" for each in sorted(path.iterdir()) if each.suffix.lower() in READ and _is_input(each)]
            if not parts:
                continue
        elif path.suffix.lower() in READ:
            parts = [str(path)]
        else:
            continue
        feeds = read_inputs(declared, parts)
        if missing := [each.name for each in declared if each.name not in feeds]:
            raise InvalidArgument("a sample lacks inputs", where=str(path), got=missing)
        yield feeds


def _is_input(path: Path) -> bool:
    """ONNX's folders of test data have outputs, too."""
    return not path.name.startswith("output_")


def _arrays(declared: Sequence[NodeArg], given: Sequence[str]) -> Feeds:
    """The arrays of all samples by input."""
    names = [each.name for each in declared]
    found: Feeds = {}
    for text in given:
        name = next((n for n in sorted(names, key=len, reverse=True) if text.startswith(f"{n}=")), None)
        if name is not None:
            found[name] = read_array(text[len(name) + 1 :])
        elif Path(text).suffix == ".npz":
            found |= read_inputs(declared, [text])
        else:
            free = [n for n in names if n not in found]
            if not free:
                raise InvalidArgument("more files than inputs", expected=names, got=text)
            found[free[0]] = read_array(text)
    if missing := [name for name in names if name not in found]:
        raise InvalidArgument("no file gives these inputs", got=missing)
    return found


def _split(declared: Sequence[NodeArg], arrays: Feeds, batch: int) -> Iterator[Feeds]:
    parts = {each.name: _parts(arrays[each.name], each, batch) for each in declared}
    counts = {name: len(each) for name, each in parts.items()}
    if len(set(counts.values())) > 1:
        raise InvalidArgument("inputs have different numbers of samples", got=counts)
    for row in zip(*parts.values(), strict=True):
        yield dict(zip(parts, row, strict=True))


def _parts(array: Array, declared: NodeArg, batch: int) -> list[Array]:
    """The samples of an array: along its first axis if that is one more than the input has, else batches of rows."""
    rank = len(declared.shape)
    if array.ndim == rank + 1:
        return list(array)
    if array.ndim != rank or not rank:
        raise InvalidArgument(
            "the array's rank does not fit the input", where=declared.name, expected=list(declared.shape),
            got=list(array.shape),
        )  # fmt: skip
    size = declared.shape[0] if isinstance(declared.shape[0], int) else batch
    whole = len(array) // size * size if isinstance(declared.shape[0], int) else len(array)
    return [array[i : i + size] for i in range(0, whole, size)]
