"""The size of the cache folder: files that were not used for the longest time are deleted first.

A process that has opened an entry keeps it: deleting a file removes its name only. A process that needs a deleted entry
rebuilds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sardonyx import folders, knobs
from sardonyx.folders import PrivateFolder

KEPT = 0.9
"""The share of the limit that is left after files were deleted, so that not every new entry deletes others."""


class CacheFile(NamedTuple):
    folder: PrivateFolder
    name: str
    nbytes: int
    used_at: float
    """When it was last read or written, in seconds since the epoch."""

    def remove(self) -> None:
        self.folder.remove(self.name)


def files(folder: PrivateFolder) -> Iterator[CacheFile]:
    """All files of the cache in a folder."""
    for each in (folder, folders.kernels_of(folder, make=False)):
        if each is not None:
            for name, info in each.files():
                yield CacheFile(each, name, info.st_size, max(info.st_atime, info.st_mtime))


def evict(folder: PrivateFolder) -> None:
    """Delete the least recently used files of a cache that is larger than ``SARDONYX_CACHE_NBYTES``; before them the
    files that do not leave room for others, for which all of those would have to go, and they themselves next.
    """
    limit, found = knobs.CACHE_NBYTES.get(), list(files(folder))
    nbytes = sum(file.nbytes for file in found)
    if nbytes <= limit:
        return
    for file in sorted(found, key=lambda file: (file.nbytes <= KEPT * limit, file.used_at)):
        file.remove()
        nbytes -= file.nbytes
        if nbytes <= KEPT * limit:
            return
