"""External data: files next to the model, and never outside its folder.

A location is a relative path without ``..``. With every link resolved it must lie in the model's folder. If the model
file is itself a link, the folder that it resolves to is allowed as well, as in the Hugging Face cache. A file with
several hard links is accepted only if all of them lie in its own folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from sardonyx.errors import BrokenGraph
from sardonyx.files import IsNotRegular, SourceFile


class Folder:
    """The folders that a model's external data may lie in, and the files opened there so far."""

    def __init__(self, model_path: str | os.PathLike[str] | None = None, *, folder: str | None = None) -> None:
        if folder is None:
            folder = os.path.dirname(os.path.abspath(model_path)) if model_path is not None else os.getcwd()
        self.base = folder
        roots = {os.path.realpath(folder)}
        if model_path is not None:
            roots.add(os.path.dirname(os.path.realpath(model_path)))
        self.roots = sorted(roots)
        self.in_memory: dict[str, memoryview] = {}
        """Contents that the caller gave for a location, instead of a file."""
        self._here = object()
        self.opened: dict[str, SourceFile] = {}
        """The files opened so far, by location."""

    def open(self, location: str, where: str) -> memoryview | SourceFile:
        """The bytes of one external file."""
        found = self.in_memory.get(location, self.opened.get(location))
        if found is None:
            found = self.opened[location] = _open(self._resolve(location, where), where)
        return found

    def identity(self, location: str) -> object:
        """Values that distinguish an external file from every other file, and from itself after a change."""
        found = self.open(location, location)
        return found.identity if isinstance(found, SourceFile) else (self._here, location)

    def _resolve(self, location: str, where: str) -> str:
        parts = location.replace("\\", "/").split("/")
        if not location or "\0" in location or os.path.isabs(location) or ".." in parts or ":" in parts[0]:
            raise BrokenGraph(
                "external data must be named by a path inside the model's folder", where=where, got=repr(location)
            )
        path = os.path.join(self.base, *parts)
        real = os.path.realpath(path)
        if not any(_inside(real, root) for root in self.roots):
            raise BrokenGraph(
                "External data path validation failed: it leads out of the model's folder",
                where=where,
                expected=self.base,
                got=repr(location),
            )
        return real


def _inside(path: str, root: str) -> bool:
    return os.path.commonpath([path, root]) == root


def _open(real: str, where: str) -> SourceFile:
    try:
        file = SourceFile.open(real, flags=os.O_NOFOLLOW)
    except IsNotRegular:
        raise BrokenGraph("external data is not a regular file", where=where, got=real) from None
    except FileNotFoundError:
        raise BrokenGraph("external data file is missing", where=where, got=real) from None
    except OSError as e:
        raise BrokenGraph(f"external data cannot be opened ({e.strerror})", where=where, got=real) from None
    if file.info.st_nlink > 1 and _links_beside(Path(real), file.info) < file.info.st_nlink:
        raise BrokenGraph(
            "external data is a hard link to a file elsewhere", where=where, got=real, hint="copy the file instead"
        )
    return file


def _links_beside(path: Path, info: os.stat_result) -> int:
    """How many hard links of this file lie in its own folder."""
    with os.scandir(path.parent) as entries:
        return sum(1 for e in entries if e.is_file(follow_symlinks=False) and e.inode() == info.st_ino)
