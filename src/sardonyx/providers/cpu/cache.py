"""Compiled objects on disk, under the digest of what they were compiled from.

The folder is private to the user, or nothing is kept. A file is written whole and renamed into place; it begins with a
checksum of the rest, and one that fails it is removed and compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import cache

from sardonyx import folders

CHECKSUM = hashlib.sha256().digest_size


@cache
def compiler_version() -> str:
    """What LLVM is known by without loading it: llvmlite's version, and the size of its library."""
    import llvmlite

    folder = os.path.join(os.path.dirname(llvmlite.__file__), "binding")
    libraries = sorted(name for name in os.listdir(folder) if "llvmlite" in name)
    return f"{llvmlite.__version__}-{[os.stat(os.path.join(folder, name)).st_size for name in libraries]}"


def _path(key: str) -> str | None:
    folder = folders.usual()
    inner = None if folder is None else folders.private(os.path.join(folder, "kernels"))
    return None if inner is None else os.path.join(inner, f"{hashlib.sha256(key.encode()).hexdigest()}.o")


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
        with contextlib.suppress(OSError):
            os.unlink(path)
        return None
    return content[CHECKSUM:]


def write(key: str, content: bytes) -> None:
    """Keep an object; a full or read-only disk only means that it is compiled again."""
    path = _path(key)
    if path is not None:
        try:
            folders.write_whole(path, [hashlib.sha256(content).digest(), content], private=True)
        except OSError:
            return
