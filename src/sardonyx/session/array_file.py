"""A cache entry of plain values and arrays.

The plain values are its header; for each array they hold its position in the body, its type and its checksum.

If the arrays exceed ``MAX_NBYTES``, those that can be read or packed from the model's files are not stored: packing
BERT-base again takes 0.2 s, reading and verifying a second copy of 419 MB takes 1.4 s.
"""

from __future__ import annotations

import marshal
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
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
STORED, FILE, STREAM, SHARED = "stored", "file", "stream", "shared"
"""Where an array comes from: this entry, a file of the model, the process's random numbers, or another entry."""
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


def arrays_of(
    entry: Entry,
    stored: dict[str, Any],
    threads: int = 1,
    files: Sequence[SourceFile] = (),
    others: Sequence[Any] = (),
) -> list[Any]:
    """An entry's arrays, which are shared with earlier readers of the same entry.

    Some may be read from the ``files`` of the model, or be among the ``others``, which belong to another entry. Raises
    ``Damaged`` or ``ValueError`` if the entry is invalid.
    """
    scratch = Scratch()

    def maker(i: int, kind: str, row: Any) -> Callable[[], Any]:
        if kind == STORED:
            return partial(constants.once, (entry.digest, i), partial(_read, entry.body, *row))
        if kind == STREAM:
            return StreamSource(*row).array
        if kind == SHARED:
            if not 0 <= row < len(others):
                raise Damaged("an array of another entry is missing")
            return partial(others.__getitem__, row)
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
    shared: Mapping[int, int] = MappingProxyType({}),
) -> bytes | None:
    """Write values and arrays; the entry's digest, or None if they are too large or could not be written.

    ``sources`` describe the first arrays that a file of the model contains. ``shared`` arrays, by position, belong to
    another entry and have a position there.
    """
    own = [a for i, a in enumerate(arrays) if i not in shared]
    all_nbytes, large = sum(a.nbytes for a in own), is_large(own)
    elsewhere = {i: s for i, s in enumerate(sources) if isinstance(s, StreamSource) or (s is not None and large)}
    here = {i: a for i, a in enumerate(arrays) if i not in elsewhere and i not in shared}
    if sum(a.nbytes for a in here.values()) > MAX_NBYTES or any(a.dtype.hasobject for a in arrays):
        return None
    rows: list[tuple[str, Any]] = []
    at = 0
    for i, array in enumerate(arrays):
        if i in shared:
            rows.append((SHARED, shared[i]))
            continue
        if i in elsewhere:
            rows.append((STREAM if isinstance(elsewhere[i], StreamSource) else FILE, tuple(elsewhere[i])))
            continue
        rows.append((STORED, (at, zlib.crc32(flat(array)), dtypes.of_numpy(array.dtype).name, array.shape)))
        at += _rounded(array.nbytes)
    try:
        head = marshal.dumps({**stored, "arrays": rows, "nbytes": at, "all_nbytes": all_nbytes})
    except ValueError as error:
        log.emit(log.WARNING, f"the compiled model is not cached: {error}")
        return None
    digest = entries.write(folder, name, head, _chunks(list(here.values())), at)
    if digest is not None:
        for i, array in here.items():
            constants.share((digest, i), array)
    return digest


def _chunks(arrays: Sequence[Any]) -> Iterator[bytes | memoryview]:
    for array in arrays:
        yield flat(array)
        yield bytes(_rounded(array.nbytes) - array.nbytes)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def flat(array: Any) -> memoryview:
    """The bytes of an array."""
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
