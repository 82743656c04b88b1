"""Files that a session depends on, read into its own memory.

Files are not mapped: the system kills a process that touches the mapping of a truncated file, and a file that is
rewritten in place changes the numbers that its readers see. Here a shortened file is a short read, and after each read
the file must have the size and modification time that it had when it was opened. A file that is deleted or replaced
stays readable, because its descriptor is held open.
"""

from __future__ import annotations

import os
import stat
import weakref
from typing import Any

from sardonyx.errors import Fail


def identity_of(info: os.stat_result) -> tuple[int, ...]:
    """Values that distinguish a file from every other file, and from itself after a change."""
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


class SourceFile:
    """A file that any thread may read at any offset. A read returns what the file held when it was opened, or
    raises.
    """

    def __init__(self, fd: int, path: str, *, start: int = 0) -> None:
        """``fd`` is closed with this object. Offsets count from ``start``."""
        try:
            self.info = os.fstat(fd)
        except BaseException:
            os.close(fd)
            raise
        weakref.finalize(self, _close, fd, self.info)
        self._fd, self.path, self.start = fd, path, start
        self.size = self.info.st_size - start

    @classmethod
    def open(cls, path: str, *, flags: int = 0) -> SourceFile:
        """Open a regular file. Raises ``IsNotRegular`` for other kinds, ``OSError`` if the file cannot be opened."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
        made = cls(fd, path)
        if not stat.S_ISREG(made.info.st_mode):
            raise IsNotRegular(path)
        return made

    @property
    def identity(self) -> tuple[int, ...]:
        return identity_of(self.info)

    def __len__(self) -> int:
        return self.size

    def bytes(self, start: int, stop: int) -> bytes:
        """Bytes ``start`` to ``stop``."""
        content = bytearray(stop - start)
        self.read_into(content, start)
        return bytes(content)

    def read_into(self, memory: Any, offset: int) -> None:
        """Fill a writable buffer. Raises ``Fail`` if the file has changed or cannot be read."""
        left, at = memoryview(memory), self.start + offset
        fd = self._checked()
        try:
            while left:
                count = os.preadv(fd, [left], at)
                if not count:
                    raise self._changed(os.fstat(fd))
                left, at = left[count:], at + count
        except OSError as error:
            raise Fail(f"the file cannot be read ({error.strerror})", where=self.path) from None
        self._checked()

    def check(self) -> None:
        """Raise ``Fail`` if the file has changed."""
        self._checked()

    def _checked(self) -> int:
        """The descriptor, after a check that the file is unchanged."""
        try:
            info = os.fstat(self._fd)
        except OSError:
            info = None
        if info is None or not os.path.samestat(info, self.info):
            info = self._reopen()
        if (info.st_size, info.st_mtime_ns) != (self.info.st_size, self.info.st_mtime_ns):
            raise self._changed(info)
        return self._fd

    def _reopen(self) -> os.stat_result:
        """Open the path again: daemons close descriptors that they did not open."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise Fail(
                f"the file's descriptor was closed, and it cannot be opened again ({error.strerror})", where=self.path
            ) from None
        info = os.fstat(fd)
        if not os.path.samestat(info, self.info):
            os.close(fd)
            raise Fail("the file's descriptor was closed, and its path names another file now", where=self.path)
        weakref.finalize(self, _close, fd, info)
        self._fd = fd
        return info

    def _changed(self, info: os.stat_result) -> Fail:
        return Fail(
            "the file was changed while a session was using it",
            where=self.path,
            expected=f"{self.info.st_size} bytes, modified at {self.info.st_mtime_ns} ns",
            got=f"{info.st_size} bytes, modified at {info.st_mtime_ns} ns",
            hint="make a new session; to replace a model, write another file and rename it over the old one",
        )


class IsNotRegular(OSError):
    """A folder, a device or a pipe where a file is expected."""


def _close(fd: int, info: os.stat_result) -> None:
    """Close a descriptor, unless other code closed it already and the number now belongs to another file."""
    try:
        if os.path.samestat(os.fstat(fd), info):
            os.close(fd)
    except OSError:
        return
