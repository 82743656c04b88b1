"""A cache entry of plain values and arrays.

The plain values are its header; for each array they hold its position in the body, its type and its checksum.

If the arrays exceed ``MAX_NBYTES``, those that can be read or packed from the model's files are not stored: packing
BERT-base again takes 0.2 s, reading and verifying a second copy of 419 MB takes 1.4 s.
"""

from __future__ import annotations

import marshal
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from sardonyx import dtypes, entries
from sardonyx.entries import Damaged, Entry
from sardonyx.files import SourceFile
from sardonyx.folders import PrivateFolder
from sardonyx.providers.cpu.memory.allocator import allocate
from sardonyx.providers.cpu.program import constants
from sardonyx.providers.cpu.program.prepack import Scratch, Source, StreamSource
from sardonyx.session import log

ALIGNMENT = 64
STORED, FILE, STREAM = "stored", "file", "stream"
"""Where an array comes from: this entry, a file of the model, or the process's random numbers."""
MAX_NBYTES = 256 << 20
"""Largest total size of stored arrays."""
SINGLE_THREAD_NBYTES = 1 << 24
"""Total size up to which one thread reads the arrays: starting others would take longer."""


def plain_values(entry: Entry) -> dict[str, Any]:
    """An entry's plain values. Raises ``Damaged`` or ``ValueError`` if the entry is invalid."""
    stored: dict[str, Any] = marshal.loads(entry.head)
    if stored["nbytes"] != len(entry.body):
        raise Damaged("it is truncated")
    return stored


def arrays_of(entry: Entry, stored: dict[str, Any], threads: int = 1, files: Sequence[SourceFile] = ()) -> list[Any]:
    """An entry's arrays, which are shared with earlier readers of the same entry.

    Some may be read from the ``files`` of the model. Raises ``Damaged`` or ``ValueError`` if the entry is invalid.
    """
    scratch = Scratch()

    def maker(i: int, kind: str, row: Any) -> Callable[[], Any]:
        if kind == STORED:
            return partial(constants.once, (entry.digest, i), partial(_read, entry.body, *row))
        if kind == STREAM:
            return StreamSource(*row).array
        source = Source(*row)
        if source.span[0] >= len(files):
            raise Damaged("a file of the model is missing")
        return partial(source.array, files, scratch)

    makers = [maker(i, kind, row) for i, (kind, row) in enumerate(stored["arrays"])]
    return constants.made(makers, threads if stored["all_nbytes"] > SINGLE_THREAD_NBYTES else 1)


def is_large(arrays: Sequence[Any]) -> bool:
    """Whether those that a file of the model contains are not stored."""
    return bool(sum(a.nbytes for a in arrays) > MAX_NBYTES)


def write(
    folder: PrivateFolder,
    name: str,
    stored: dict[str, Any],
    arrays: Sequence[Any],
    sources: Sequence[Source | StreamSource | None] = (),
) -> bool:
    """Write values and arrays, unless they are too large; whether they were written.

    ``sources`` describe the first arrays that a file of the model contains.
    """
    all_nbytes, large = sum(a.nbytes for a in arrays), is_large(arrays)
    elsewhere = {i: s for i, s in enumerate(sources) if isinstance(s, StreamSource) or (s is not None and large)}
    here = {i: a for i, a in enumerate(arrays) if i not in elsewhere}
    if sum(a.nbytes for a in here.values()) > MAX_NBYTES or any(a.dtype.hasobject for a in arrays):
        return False
    rows: list[tuple[str, Any]] = []
    at = 0
    for i, array in enumerate(arrays):
        if i in elsewhere:
            rows.append((STREAM if isinstance(elsewhere[i], StreamSource) else FILE, tuple(elsewhere[i])))
            continue
        rows.append((STORED, (at, zlib.crc32(_flat(array)), dtypes.of_numpy(array.dtype).name, array.shape)))
        at += _rounded(array.nbytes)
    try:
        head = marshal.dumps({**stored, "arrays": rows, "nbytes": at, "all_nbytes": all_nbytes})
    except ValueError as error:
        log.emit(log.WARNING, f"the compiled model is not cached: {error}")
        return False
    digest = entries.write(folder, name, head, _chunks(list(here.values())), at)
    if digest is not None:
        for i, array in here.items():
            constants.share((digest, i), array)
    return digest is not None


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
