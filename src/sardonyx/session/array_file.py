"""A cache entry of plain values and arrays.

The plain values are its header; for each array they hold its position in the body, its type and its checksum.

If the arrays exceed ``MAX_NBYTES``, those that can be read or packed from the model's file are not stored: packing
BERT-base again takes 0.2 s, reading and verifying a second copy of 419 MB takes 1.4 s.
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
"""Largest total size of stored arrays."""
SINGLE_THREAD_NBYTES = 1 << 24
"""Total size up to which one thread reads the arrays: starting others would take longer."""


def arrays_of(entry: Entry, threads: int = 1, model: SourceFile | None = None) -> tuple[dict[str, Any], list[Any]]:
    """An entry's plain values and arrays, which are shared with earlier readers of the same entry.

    Some may be read from the ``model``'s file. Raises ``Damaged`` or ``ValueError`` if the entry is invalid.
    """
    stored = marshal.loads(entry.head)
    if stored["nbytes"] != len(entry.body):
        raise Damaged("it is truncated")
    rows: list[tuple[bool, Any]] = stored["arrays"]
    if model is None and not all(is_here for is_here, _ in rows):
        raise Damaged("arrays are missing")
    scratch = Scratch()
    makers: list[Callable[[], Any]] = [
        partial(constants.once, (entry.digest, i), partial(_read, entry.body, *row))
        if is_here
        else partial(Source(*row).array, cast(SourceFile, model), scratch)
        for i, (is_here, row) in enumerate(rows)
    ]
    return stored, constants.made(makers, threads if stored["all_nbytes"] > SINGLE_THREAD_NBYTES else 1)


def write(
    folder: PrivateFolder,
    name: str,
    stored: dict[str, Any],
    arrays: Sequence[Any],
    sources: Sequence[Source | None] = (),
) -> None:
    """Write values and arrays, unless they are too large.

    ``sources`` describe the first arrays that the model's file contains.
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
        head = marshal.dumps({**stored, "arrays": rows, "nbytes": at, "all_nbytes": all_nbytes})
    except ValueError as error:
        log.logger.warning("the compiled model is not cached: %s", error)
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
    """Copy an array from the body to memory with the alignment that kernels need."""
    t = dtypes.of_name(dtype).numpy
    nbytes = math.prod(shape) * t.itemsize
    if at < 0 or at + nbytes > len(body):
        raise Damaged("an array lies outside of it")
    memory = allocate(nbytes)
    body.read_into(memory, at)
    if zlib.crc32(memory.data) != checksum:
        raise Damaged("an array is damaged")
    array = memory.view(t).reshape(shape)
    array.flags.writeable = False
    return array
