"""Compiled objects on disk, under the digest of what they were compiled from.

The folder is private to the user, or nothing is kept. A file is written whole and renamed into place; it begins with a
checksum of the rest, and one that fails it is removed and compiled again.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from sardonyx import folders

CHECKSUM = hashlib.sha256().digest_size


@cache
def compiler_version() -> str:
    """What LLVM is known by without loading it: llvmlite's version, and the size of its library."""
    import llvmlite

    libraries = sorted(Path(llvmlite.__file__).parent.glob("binding/*llvmlite*.*"))
    return f"{llvmlite.__version__}-{[path.stat().st_size for path in libraries]}"


def _path(key: str) -> Path | None:
    folder = folders.usual()
    inner = None if folder is None else folders.private(str(folder / "kernels"))
    return None if inner is None else inner / f"{hashlib.sha256(key.encode()).hexdigest()}.o"


def read(key: str) -> bytes | None:
    """The object compiled for a key, or None."""
    path = _path(key)
    if path is None:
        return None
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            content = file.read()
    except OSError:
        return None
    if hashlib.sha256(content[CHECKSUM:]).digest() != content[:CHECKSUM]:
        path.unlink(missing_ok=True)
        return None
    return content[CHECKSUM:]


def write(key: str, content: bytes) -> None:
    """Keep an object; a full or read-only disk only means that it is compiled again."""
    path = _path(key)
    if path is not None:
        try:
            folders.write_whole(str(path), [hashlib.sha256(content).digest(), content], private=True)
        except OSError:
            return
