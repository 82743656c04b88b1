"""Plain values and arrays in one entry of the cache.

The plain values are its head. They tell of each array where it lies in the body, what it is, and its checksum.

Of arrays of more than ``MAX_NBYTES`` those stay away that the model's file has, packed or not: for BERT-base, packing
them once more took 0.2 s, where reading and checking 419 MB of a second copy took 1.4 s.
"""

from __future__ import annotations

import marshal
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from sardonyx import dtypes, entries
from sardonyx.entries import Damaged, Entry
from sardonyx.files import SourceFile
from sardonyx.folders import PrivateFolder
from sardonyx.providers.cpu.memory.allocator import allocate
from sardonyx.providers.cpu.program import constants
from sardonyx.providers.cpu.program.prepack import Scratch, Source
from sardonyx.session import log

ALIGNMENT = 64
MAX_NBYTES = 256 << 20
"""Bytes of arrays up to which they are kept."""
ALONE_NBYTES = 1 << 24
"""Bytes of arrays up to which one thread makes them ready: others would only have begun."""


def arrays_of(entry: Entry, threads: int = 1, model: SourceFile | None = None) -> tuple[dict[str, Any], list[Any]]:
    """The plain values and arrays of an entry, which whoever read it before shares.

    Some may be made of the ``model``'s file. ``Damaged`` or ``ValueError`` where the entry is not sound.
    """
    told = marshal.loads(entry.head)
    if told["nbytes"] != len(entry.body):
        raise Damaged("it is not whole")
    rows: list[tuple[bool, Any]] = told["arrays"]
    if model is None and not all(is_here for is_here, _ in rows):
        raise Damaged("it has not all arrays")
    scratch = Scratch()
    makers: list[Callable[[], Any]] = [
        partial(constants.once, (entry.digest, i), partial(_read, entry.body, *row))
        if is_here
        else partial(Source(*row).array, cast(SourceFile, model), scratch)
        for i, (is_here, row) in enumerate(rows)
    ]
    return told, constants.made(makers, threads if told["all_nbytes"] > ALONE_NBYTES else 1)


def write(
    folder: PrivateFolder,
    name: str,
    told: dict[str, Any],
    arrays: Sequence[Any],
    sources: Sequence[Source | None] = (),
) -> None:
    """Keep values and arrays, if these are not too many.

    ``sources`` tell of the first arrays where the model's file has them.
    """
    all_nbytes = sum(a.nbytes for a in arrays)
    left = dict(enumerate(sources)) if all_nbytes > MAX_NBYTES else {}
    here = [a for i, a in enumerate(arrays) if left.get(i) is None]
    if sum(a.nbytes for a in here) > MAX_NBYTES or any(a.dtype.hasobject for a in arrays):
        return
    rows: list[tuple[bool, Any]] = []
    at = 0
    for i, array in enumerate(arrays):
        source = left.get(i)
        if source is not None:
            rows.append((False, tuple(source)))
            continue
        rows.append((True, (at, zlib.crc32(_flat(array)), dtypes.of_numpy(array.dtype).name, array.shape)))
        at += _rounded(array.nbytes)
    try:
        head = marshal.dumps({**told, "arrays": rows, "nbytes": at, "all_nbytes": all_nbytes})
    except ValueError as error:
        log.logger.warning("the start is not kept: %s", error)
        return
    digest = entries.write(folder, name, head, _chunks(here), at)
    if digest is not None:
        for i, array in enumerate(arrays):
            constants.share((digest, i), array)


def _chunks(arrays: Sequence[Any]) -> Iterator[bytes | memoryview]:
    for array in arrays:
        yield _flat(array)
        yield bytes(_rounded(array.nbytes) - array.nbytes)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _flat(array: Any) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _read(body: SourceFile, at: int, checksum: int, dtype: str, shape: tuple[int, ...]) -> Any:
    """An array of the body, in memory of its own, as kernels want it."""
    t = dtypes.of_name(dtype).numpy
    nbytes = math.prod(shape) * t.itemsize
    if at < 0 or at + nbytes > len(body):
        raise Damaged("an array lies outside of it")
    memory = allocate(nbytes)
    body.read_into(memory, at)
    if zlib.crc32(memory.data) != checksum:
        raise Damaged("an array is damaged")
    return memory.view(t).reshape(shape)
