"""Samples that are read once and used many times: in memory, from a size on in temporary files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.quantization.data import feeds_of

MAX_NBYTES = 256 << 20
"""Bytes of samples that are kept in memory."""

Feeds = dict[str, Any]


class Samples:
    """What a reader gave, to be read again any number of times."""

    def __init__(self, source: Any, folder: Path, what: str, held_nbytes: float = MAX_NBYTES) -> None:
        self._held: list[Feeds | tuple[Path, list[str]]] = []
        nbytes = 0
        for feeds in feeds_of(source):
            if not hasattr(feeds, "items"):
                raise InvalidArgument(
                    f"a sample of the {what} data is no dictionary",
                    expected="a dictionary from input names to arrays",
                    got=type(feeds).__name__,
                )
            arrays = {str(name): np.asarray(value) for name, value in feeds.items()}
            _check(arrays, what, len(self._held))
            nbytes += sum(a.nbytes for a in arrays.values())
            if nbytes <= held_nbytes or any(a.dtype.hasobject for a in arrays.values()):
                self._held.append(arrays)
                continue
            path = folder / f"{what}-{len(self._held)}.npz"
            np.savez(path, *arrays.values())
            self._held.append((path, list(arrays)))
        if not self._held:
            raise InvalidArgument(
                f"there are no {what} data", hint="a reader that was read to its end gives nothing: make a new one"
            )

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Feeds]:
        for held in self._held:
            if isinstance(held, dict):
                yield held
            else:
                path, names = held
                with np.load(path) as arrays:
                    yield {name: arrays[f"arr_{i}"] for i, name in enumerate(names)}

    def first(self, count: int) -> list[Feeds]:
        return list(itertools.islice(self, count))


class Reader:
    """A CalibrationDataReader of samples."""

    def __init__(self, samples: Samples) -> None:
        self._rest = iter(samples)
        self._count = len(samples)

    def get_next(self) -> Feeds | None:
        return next(self._rest, None)

    def __len__(self) -> int:
        return self._count


def _check(arrays: Feeds, what: str, index: int) -> None:
    for name, array in arrays.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise InvalidArgument(f"the {what} data have NaN", where=f"input {name!r} of sample {index}")
