"""Plain values and arrays in one file.

A mark, the length and the digest of the plain values, these, and the arrays, each on the border of a cache line. The
plain values tell of each array where it lies, what it is, and its checksum.

Of arrays of more than ``MAX_NBYTES`` those stay away that the model's file has, packed or not: for BERT-base, packing
them once more took 0.2 s, where reading and checking 419 MB of a second copy took 1.4 s.
"""

from __future__ import annotations

import hashlib
import marshal
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from sardonyx import dtypes, folders
from sardonyx.files import SourceFile
from sardonyx.providers.cpu import constants
from sardonyx.providers.cpu.memory import allocate
from sardonyx.providers.cpu.packing import Scratch, Source
from sardonyx.session import log

ALIGNMENT = 64
MAX_NBYTES = 256 << 20
"""Bytes of arrays up to which they are kept."""
ALONE_NBYTES = 1 << 24
"""Bytes of arrays up to which one thread makes them ready: others would only have begun."""
MARK = b"sardonyx start 3"


def read(path: str, threads: int = 1, model: SourceFile | None = None) -> tuple[dict[str, Any], list[Any]] | None:
    """What a file holds; None where there is none, or it is not whole, not sound, or not the user's.

    Whoever reads a file shares its arrays with those who did before. Some may be made of the ``model``'s file.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            info = os.fstat(file.fileno())
            if info.st_uid != os.getuid() or file.read(len(MARK)) != MARK:
                return None
            nbytes = int.from_bytes(file.read(8), "little")
            digest, head = file.read(32), file.read(min(nbytes, info.st_size))
            if hashlib.sha256(head).digest() != digest:
                raise ValueError("it is damaged")
            told = marshal.loads(head)
            first = _rounded(file.tell())
            if first + told["nbytes"] != info.st_size:
                raise ValueError("it is not whole")
            rows: list[tuple[bool, Any]] = told["arrays"]
            if model is None and not all(is_here for is_here, _ in rows):
                raise ValueError("it has not all arrays")
            scratch = Scratch()
            makers: list[Callable[[], Any]] = [
                partial(constants.once, (path, digest, i), partial(_read, file.fileno(), first, *row))
                if is_here
                else partial(Source(*row).array, cast(SourceFile, model), scratch)
                for i, (is_here, row) in enumerate(rows)
            ]
            return told, constants.made(makers, threads if told["all_nbytes"] > ALONE_NBYTES else 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, TypeError, KeyError) as error:
        refuse(path, error)
        return None


def refuse(path: str, why: object) -> None:
    """Say that a file is of no use."""
    log.logger.warning("the kept start %s is not readable and will be written anew: %s", path, why)


def write(path: str, told: dict[str, Any], arrays: Sequence[Any], sources: Sequence[Source | None] = ()) -> None:
    """Keep values and arrays, if these are not too many; a full disk only means that they are not kept.

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
        digest = hashlib.sha256(head).digest()
        folders.write_whole(path, _chunks(digest, head, here), private=True)
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


def _read(file: int, first: int, at: int, checksum: int, dtype: str, shape: tuple[int, ...]) -> Any:
    """An array of the file, in memory of its own, as kernels want it."""
    t = dtypes.of_name(dtype).numpy
    memory = allocate(math.prod(shape) * t.itemsize)
    os.preadv(file, [memory.data], first + at)
    if zlib.crc32(memory.data) != checksum:
        raise ValueError("it is damaged")
    return memory.view(t).reshape(shape)
