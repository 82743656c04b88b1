"""The object cache: compiled objects on disk by the digest of their source, in a private folder, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from sardonyx import digests, entries, folders, limits
from sardonyx.folders import Place, PrivateFolder

_chosen: ContextVar[tuple[Place | None] | None] = ContextVar("chosen", default=None)
"""The cache of the session that compiles; None if there is no session."""


@cache
def compiler_version() -> str:
    """An identification of LLVM that does not load it: llvmlite's version and the size of its library."""
    import llvmlite

    folder = os.path.join(os.path.dirname(llvmlite.__file__), "binding")
    libraries = sorted(name for name in os.listdir(folder) if "llvmlite" in name)
    return f"{llvmlite.__version__}-{[os.stat(os.path.join(folder, name)).st_size for name in libraries]}"


def place() -> Place | None:
    """The cache that holds the objects: the session's, or what ``SARDONYX_CACHE`` names by now."""
    chosen = _chosen.get()
    return folders.place() if chosen is None else chosen[0]


@contextmanager
def kept_in(cache: Place | None) -> Iterator[None]:
    """Read and write the objects of this cache, or of none, in the block and the tasks that it begins."""
    token = _chosen.set((cache,))
    try:
        yield
    finally:
        _chosen.reset(token)


def _folder(*, make: bool) -> PrivateFolder | None:
    at = place()
    folder = None if at is None else at.open(make=make)
    return None if folder is None else folders.kernels_of(folder, make=make)


def _name(key: str) -> str:
    return f"{digests.hexdigest(key.encode())}.o"


def read(key: str) -> bytes | None:
    """The object compiled for a key, or None."""
    folder = _folder(make=False)
    return None if folder is None else entries.read(folder, _name(key), lambda entry: entry.head)


def write(key: str, content: bytes) -> None:
    """Store an object. Failure is harmless, and objects of untrusted models are not stored: they are compiled again."""
    if limits.current() is not None:
        return
    folder = _folder(make=True)
    if folder is not None:
        entries.write(folder, _name(key), content)
