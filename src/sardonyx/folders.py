"""The cache folder: private to the user, or not used at all. Files are written whole, and told apart."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from functools import lru_cache

from sardonyx import knobs

OFF = "off"


def chosen() -> str | None:
    """The folder that ``SARDONYX_CACHE`` names, when it can be trusted; None when it is unset."""
    named = knobs.CACHE.get()
    return private(named) if named and named != OFF else None


def usual() -> str | None:
    """The chosen folder, or the user's own when none is named; None when caching is off or it is not private."""
    named = knobs.CACHE.get()
    if named == OFF:
        return None
    if named:
        return private(named)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return private(os.path.join(home, "sardonyx")) if os.path.isabs(home) else None


@lru_cache(maxsize=64)
def private(where: str) -> str | None:
    """A folder that belongs to the user alone, made if it is not there; else None, and the reason is logged, once."""
    try:
        os.makedirs(where, mode=0o700, exist_ok=True)
        info = os.lstat(where)
    except OSError as error:
        logging.getLogger("sardonyx").warning("the cache folder cannot be used: %s", error)
        return None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
        logging.getLogger("sardonyx").warning(
            "the cache folder %s is not private (mode 0700, yours, no link): caching is off", where
        )
        return None
    return where


def write_whole(path: str, chunks: Iterable[bytes | memoryview], *, private: bool = False) -> None:
    """Write a file under another name and rename it: readers see all of it or nothing.

    What is ``private`` is the user's alone; other files have the permissions that the process gives to new ones.
    """
    import tempfile

    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".", suffix=".tmp")
    try:
        with os.fdopen(fd, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
        if not private:
            os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
