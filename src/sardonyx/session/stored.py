"""Plain values and arrays in one file.

A mark, the length and the digest of the plain values, these, and the arrays, each on the border of a cache line. The
plain values tell of each array where it lies, what it is, and its checksum.
"""

from __future__ import annotations

import hashlib
import marshal
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from sardonyx import dtypes, folders
from sardonyx.session import log

ALIGNMENT = 64
MAX_NBYTES = 256 << 20
"""Bytes of arrays up to which they are kept."""
MARK = b"sardonyx start 2"


def read(path: str) -> tuple[dict[str, Any], list[Any]] | None:
    """What a file holds; None where there is none, or it is not whole, not sound, or not the user's.

    Whoever reads a file shares its arrays with those who did before.
    """
    from sardonyx.providers.cpu import constants

    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid() or file.read(len(MARK)) != MARK:
                return None
            nbytes = int.from_bytes(file.read(8), "little")
            digest, head = file.read(32), file.read(nbytes)
            if hashlib.sha256(head).digest() != digest:
                raise ValueError("it is damaged")
            told = marshal.loads(head)
            first = _rounded(file.tell())
            if first + told["nbytes"] != os.fstat(file.fileno()).st_size:
                raise ValueError("it is not whole")
            return told, [
                constants.once((path, digest, i), partial(_read, file, first, *row))
                for i, row in enumerate(told["arrays"])
            ]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, TypeError, KeyError) as error:
        refuse(path, error)
        return None


def refuse(path: str, why: object) -> None:
    """Say that a file is of no use."""
    log.logger.warning("the kept start %s is not readable and will be written anew: %s", path, why)


def write(path: str, told: dict[str, Any], arrays: Sequence[Any]) -> None:
    """Keep values and arrays, if these are not too many; a full disk only means that they are not kept."""
    from sardonyx.providers.cpu import constants

    if sum(a.nbytes for a in arrays) > MAX_NBYTES or any(a.dtype.hasobject for a in arrays):
        return
    rows, at = [], 0
    for array in arrays:
        rows.append((at, zlib.crc32(_flat(array)), dtypes.of_numpy(array.dtype).name, array.shape))
        at += _rounded(array.nbytes)
    try:
        head = marshal.dumps({**told, "arrays": rows, "nbytes": at})
        digest = hashlib.sha256(head).digest()
        folders.write_whole(path, _chunks(digest, head, arrays), private=True)
    except (OSError, ValueError) as error:
        log.logger.warning("the start is not kept: %s", error)
        return
    for i, array in enumerate(arrays):
        constants.share((path, digest, i), array)


def _chunks(digest: bytes, head: bytes, arrays: Sequence[Any]) -> Iterator[bytes | memoryview]:
    front = MARK + len(head).to_bytes(8, "little") + digest + head
    yield front.ljust(_rounded(len(front)), b"\0")
    for array in arrays:
        yield _flat(array)
        yield bytes(_rounded(array.nbytes) - array.nbytes)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _flat(array: Any) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _read(file: Any, first: int, at: int, checksum: int, dtype: str, shape: tuple[int, ...]) -> Any:
    """An array of the file, in memory of its own, as kernels want it."""
    from sardonyx.providers.cpu.memory import allocate

    t = dtypes.of_name(dtype).numpy
    memory = allocate(math.prod(shape) * t.itemsize)
    file.seek(first + at)
    file.readinto(memory.data)
    if zlib.crc32(memory.data) != checksum:
        raise ValueError("it is damaged")
    return memory.view(t).reshape(shape)
