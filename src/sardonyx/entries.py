"""Entries of the cache folder: a header and a body in one file, verified before they are used.

Layout: a magic number with the format's version; the sizes of header and body; a digest over the entry's name, these
sizes and the header; the header; and the body, aligned to a cache line. The header holds checksums of the body's
sections, which are checked when the sections are read. An entry's name is a digest of everything that its contents
depend on.

A damaged entry, or one that others could have written, is deleted and rebuilt. The digest detects accidental damage and
renamed entries. It does not protect against someone who can write to the folder; ``folders`` makes sure that only the
user can.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from sardonyx.digests import blake2b
from sardonyx.errors import SardonyxError
from sardonyx.files import SourceFile
from sardonyx.folders import PrivateFolder
from sardonyx.writing import Chunks

T = TypeVar("T")

MARK = b"sardonyx cache 1"
ALIGNMENT = 64
MAX_HEAD_NBYTES = 1 << 28
MAX_NBYTES = 1 << 31
_DIGEST_NBYTES = 32
_reported: set[tuple[object, object]] = set()
"""Folders, or file systems, and what was warned of: damage, and the errors that writing to them gave."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that all folders of a file system give."""
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of writing to a folder that was filled ahead of time and is only read: nothing to warn of."""
_FRONT_NBYTES = len(MARK) + 8 + 8 + _DIGEST_NBYTES


class Damaged(Exception):
    """An entry's contents are not what was written."""


class Entry(NamedTuple):
    head: bytes
    body: SourceFile
    """Not verified yet. Offsets count from the body's first byte."""
    digest: bytes
    """Identifies this entry's contents."""


def read(folder: PrivateFolder, name: str, use: Callable[[Entry], T]) -> T | None:
    """The result of ``use`` on an entry. None if there is no such entry, or if it is unusable and was deleted."""
    try:
        return use(_read(folder, name))
    except FileNotFoundError:
        return None
    except (Damaged, OSError, SardonyxError, ValueError, EOFError, TypeError, KeyError, AttributeError) as error:
        refuse(folder, name, error)
        return None


def peek(folder: PrivateFolder, name: str) -> bytes | None:
    """The header of an entry, which is not counted as used; None if there is no such entry, or if it is unusable."""
    try:
        return _read(folder, name, is_use=False).head
    except (Damaged, OSError, SardonyxError):
        return None


def refuse(folder: PrivateFolder, name: str, why: object) -> None:
    """Delete an unusable entry and log the reason: a warning for the first in a folder, which may be one of many."""
    _report(folder, "damage", f"the cache entry {os.path.join(folder.path, name)} cannot be used and is rebuilt: {why}")
    folder.remove(name)


def write(folder: PrivateFolder, name: str, head: bytes, body: Chunks = (), body_nbytes: int = 0) -> bytes | None:
    """Write an entry and return its digest. A full or broken disk is logged once, not raised."""
    digest = _digest(name, len(head), body_nbytes, head)
    try:
        folder.write(name, _chunks(digest, head, body, body_nbytes))
    except OSError as error:
        said = f"the cache in {folder.path} cannot be written: {error.strerror}"
        _report(folder, error.errno, said, is_warning=error.errno not in _READ_ONLY)
        return None
    return digest


def _report(folder: PrivateFolder, what: object, said: str, *, is_warning: bool = True) -> None:
    """Log what went wrong, as a warning if it did not happen in this folder, or on this full disk, before."""
    import logging  # 3 ms of a start that logs nothing

    known = (folder.device if what in _FULL else folder.path, what)
    is_first = known not in _reported
    _reported.add(known)
    logging.getLogger("sardonyx").log(logging.WARNING if is_first and is_warning else logging.INFO, "%s", said)


def checksum(content: bytes | memoryview) -> bytes:
    """A digest of a section of a body."""
    return blake2b(content, digest_size=_DIGEST_NBYTES).digest()


def check_body(entry: Entry, expected: bytes) -> None:
    """Raise ``Damaged`` unless the whole body is what was written."""
    digest, piece = blake2b(digest_size=_DIGEST_NBYTES), 1 << 20
    for start in range(0, len(entry.body), piece):
        digest.update(entry.body.bytes(start, min(start + piece, len(entry.body))))
    if digest.digest() != expected:
        raise Damaged("its body is damaged")


def _read(folder: PrivateFolder, name: str, *, is_use: bool = True) -> Entry:
    file = SourceFile(folder.open(name, is_use=is_use), os.path.join(folder.path, name))
    if not _FRONT_NBYTES <= len(file) <= MAX_NBYTES:
        raise Damaged(f"it has {len(file)} bytes")
    front = file.bytes(0, _FRONT_NBYTES)
    if front[: len(MARK)] != MARK:
        raise Damaged("it is of another version")
    numbers, digest = front[len(MARK) : -_DIGEST_NBYTES], front[-_DIGEST_NBYTES:]
    head_nbytes, body_nbytes = int.from_bytes(numbers[:8], "little"), int.from_bytes(numbers[8:], "little")
    start = _aligned(_FRONT_NBYTES + head_nbytes)
    if head_nbytes > MAX_HEAD_NBYTES or start + body_nbytes != len(file):
        raise Damaged("it is not whole")
    head = file.bytes(_FRONT_NBYTES, _FRONT_NBYTES + head_nbytes)
    if _digest(name, head_nbytes, body_nbytes, head) != digest:
        raise Damaged("its digest is wrong")
    file.start, file.size = start, body_nbytes
    return Entry(head, file, digest)


def _digest(name: str, head_nbytes: int, body_nbytes: int, head: bytes) -> bytes:
    digest = blake2b(f"{name}\0{head_nbytes}\0{body_nbytes}\0".encode(), digest_size=_DIGEST_NBYTES)
    digest.update(MARK)
    digest.update(head)
    return digest.digest()


def _chunks(digest: bytes, head: bytes, body: Chunks, body_nbytes: int) -> Chunks:
    front = MARK + len(head).to_bytes(8, "little") + body_nbytes.to_bytes(8, "little") + digest + head
    yield front.ljust(_aligned(len(front)), b"\0")
    yield from body


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
