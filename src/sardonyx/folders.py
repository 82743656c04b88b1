"""The cache folder: private to the user, or not used at all.

Files in it are executed as code, so nobody else may be able to write there. Every folder on the path must belong to the
user or to root and must not be writable by others, unless it is sticky (like /tmp). The folder itself must belong to
the user, with mode 0700. It is then held open and its files are opened relative to it, so that renaming a folder on the
path later has no effect.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from sardonyx import forks, knobs, writing

OFF = "off"
MAX_LINKS = 16
SUFFIXES = ("start", "graph", "o", "rates")
"""Of compiled models, optimized graphs, kernels, and rates of the machine."""
MIN_STEM = 40
"""Hexadecimal digits of the shortest digest."""
USE_INTERVAL_S = 60
"""A file's time of last use is at most this much too early."""
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Place(NamedTuple):
    """Where a cache folder is, or will be."""

    path: str
    is_named: bool
    """Whether the user has named it."""

    def open(self, *, make: bool = True) -> PrivateFolder | None:
        """The folder; None if it is not private, or if it is missing and ``make`` is not set."""
        return private(self.path, make=make, is_named=self.is_named)


def place() -> Place | None:
    """Where ``SARDONYX_CACHE`` says that the cache is: ``~/.cache/sardonyx`` if it is unset; None if caching is off."""
    named = knobs.CACHE.get()
    if named == OFF:
        return None
    if named:
        return Place(os.path.abspath(named), True)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Place(os.path.join(home, "sardonyx"), False) if os.path.isabs(home) else None


def cache_folder(*, make: bool = True) -> PrivateFolder | None:
    """The folder at ``place()``. None if caching is off or the folder is not private."""
    at = place()
    return None if at is None else at.open(make=make)


def why_off() -> str:
    """Why there is no cache folder."""
    if knobs.CACHE.get() == OFF:
        return "caching is off: SARDONYX_CACHE=off"
    return "\n".join(_refused.values()) or "there is no home folder for a cache; name a folder in SARDONYX_CACHE"


def kernels_of(folder: PrivateFolder, *, make: bool = True) -> PrivateFolder | None:
    """The subfolder of compiled objects."""
    return private(os.path.join(folder.path, "kernels"), make=make)


class PrivateFolder:
    """A folder that only the user can write to, held open."""

    def __init__(self, path: str, fd: int) -> None:
        self.path, self.fd = path, fd
        self._info = os.fstat(fd)
        self._is_swept = False

    @property
    def device(self) -> int:
        """The file system that the folder is on."""
        return self._info.st_dev

    @property
    def is_usable(self) -> bool:
        """Whether the folder that was opened still exists and is still private."""
        try:
            info = os.fstat(self.fd)
        except OSError:
            return False
        return os.path.samestat(info, self._info) and info.st_nlink > 0 and _why_not_private(info) is None

    def open(self, name: str, *, is_use: bool = True) -> int:
        """A descriptor for reading a file; if this ``is_use``, its access time becomes now. ``OSError`` if it is no
        regular file, or if others can write to it.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=self.fd)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
                raise PermissionError("it is not a file of the user's alone")
            now = time.time_ns()
            if is_use and now - info.st_atime_ns > USE_INTERVAL_S * 10**9:
                with contextlib.suppress(OSError):  # a file system that is read-only
                    os.utime(fd, ns=(now, info.st_mtime_ns))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """The cache's files in the folder, without those that are being written. Others are the user's: the variable
        may name a folder that holds more than the cache.
        """
        with contextlib.suppress(OSError), os.scandir(self.fd) as found:
            for each in found:
                with contextlib.suppress(OSError):
                    if is_ours(each.name) and each.is_file(follow_symlinks=False):
                        yield each.name, each.stat(follow_symlinks=False)

    def has(self, name: str) -> bool:
        """Whether the folder has an entry of this name."""
        return os.access(name, os.F_OK, dir_fd=self.fd, follow_symlinks=False)

    def write(self, name: str, chunks: writing.Chunks) -> None:
        """Write a file atomically; ``OSError`` on failure."""
        if not self._is_swept:
            self._is_swept = True
            writing.sweep(self.fd, is_ours)
        writing.write_in(self.fd, name, chunks)

    def remove(self, name: str) -> None:
        """Delete a file; failures are ignored."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self.fd)


def is_ours(name: str) -> bool:
    """Whether a file has a name that only the cache gives: a digest, and what the file holds."""
    stem, _, suffix = name.partition(".")
    return suffix in SUFFIXES and len(stem) >= MIN_STEM and not stem.strip("0123456789abcdef-")


_held: dict[str, PrivateFolder] = {}
_refused: dict[str, str] = {}
"""Why folders cannot be used."""
_lock = forks.lock()


def private(where: str, *, make: bool = True, is_named: bool = True) -> PrivateFolder | None:
    """The folder at ``where`` if only the user can write to it; else None, and the reason is logged once.

    A missing folder is created if ``make`` is set; otherwise the result is None. That a folder cannot be used is a
    warning only if the user has named it.
    """
    where = os.path.abspath(where)
    found = _held.get(where)
    if found is not None and found.is_usable:
        return found
    with _lock:
        try:
            _held[where] = PrivateFolder(where, _open_path(where, make))
            return _held[where]
        except OSError as error:
            if not make and isinstance(error, FileNotFoundError):
                return None
            said = f"the cache folder {where} is not private or cannot be used ({error}): caching is off"
        if _refused.get(where) != said:
            import logging  # 3 ms of a start that logs nothing

            _refused[where] = said
            logging.getLogger("sardonyx").log(logging.WARNING if is_named else logging.INFO, "%s", said)
        return None


def _open_path(where: str, make: bool) -> int:
    """Open the folder at a path after checking every folder and link on the way; ``OSError`` says what is wrong."""
    for _ in range(MAX_LINKS):
        found = _walk(where, make)
        if isinstance(found, int):
            return found
        where = found
    raise PermissionError(f"{where}: there are too many links on the way to it")


def _walk(where: str, make: bool) -> int | str:
    """The folder at a path; or, if a folder on the way is a link, the path with that link resolved."""
    parts = [part for part in where.split("/") if part]
    if not parts:
        _refuse(where, "it is the root folder")
    at, place = os.open("/", _PATH), "/"
    try:
        _check_ancestor(os.fstat(at), place, is_root=True)
        for i, name in enumerate(parts):
            target = _link_target(name, at)
            if target is not None:
                return os.path.normpath(os.path.join(place, target, *parts[i + 1 :]))
            if i == len(parts) - 1:
                break
            inner = _open_child(name, at, _PATH, make)
            os.close(at)
            at, place = inner, os.path.join(place, name)
            _check_ancestor(os.fstat(at), place)
        made = _open_child(parts[-1], at, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, make)
    finally:
        os.close(at)
    why = _why_not_private(os.fstat(made))
    if why is not None:
        os.close(made)
        _refuse(where, why)
    return made


def _link_target(name: str, at: int) -> str | None:
    """The target of a link that nobody else can change; None if the name is no link."""
    try:
        target = os.readlink(name, dir_fd=at)
    except OSError:
        return None
    if os.lstat(name, dir_fd=at).st_uid not in (0, os.getuid()):
        _refuse(name, "a link on its path belongs to another user")
    return target


def _open_child(name: str, at: int, flags: int, make: bool) -> int:
    """Open a subfolder. A missing one is created with mode 0700 if ``make`` is set, else ``FileNotFoundError``."""
    try:
        return os.open(name, flags, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=at)
    return os.open(name, flags, dir_fd=at)


def _why_not_private(info: os.stat_result) -> str | None:
    if info.st_uid != os.getuid():
        return "it belongs to another user"
    if stat.S_IMODE(info.st_mode) & 0o077:
        return f"its mode is {stat.S_IMODE(info.st_mode):04o}, not 0700"
    return None


def _check_ancestor(info: os.stat_result, place: str, *, is_root: bool = False) -> None:
    """Refuse a folder in which others could replace the next folder of the path."""
    if not is_root and info.st_uid not in (0, os.getuid()):
        _refuse(place, "it belongs to another user")
    if info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX:
        _refuse(place, f"others may write to it: its mode is {stat.S_IMODE(info.st_mode):04o}")


def _refuse(place: str, why: str) -> NoReturn:
    raise PermissionError(f"{place}: {why}")
