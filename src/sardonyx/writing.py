"""Atomic file writes: a file is written under a temporary name and renamed. Readers see all of a file or none of it.

A killed process leaves its temporary file behind, without a lock; the next writer in that folder deletes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Sequence

Chunks = Iterable[bytes | memoryview]

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
TEMPORARY = ".tmp"
_NUMBER_NBYTES = 8
_MAX_NAME = 200
"""Characters of a file's name that its temporary name takes on; file systems end at 255 bytes."""


def write_whole(path: str, chunks: Chunks) -> None:
    """Write a file atomically. It gets the permissions of the file that it replaces, or those of a new file."""
    write_together([(path, chunks)])


def write_together(files: Sequence[tuple[str, Chunks]]) -> None:
    """Write several files, all or none. Chunks are read in order, so later ones may depend on earlier ones.

    An OSError never names a temporary file, but the one to write. A link is followed. A target that is no regular file
    (a device, a pipe) is written to directly.
    """
    pending: list[Pending] = []
    path = ""
    try:
        for path, chunks in files:
            real = os.path.realpath(path)
            found = _stat(real)
            if found is not None and not stat.S_ISREG(found.st_mode):
                with open(real, "wb") as file:
                    file.writelines(chunks)
                continue
            folder, name = os.path.split(real)
            at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sweep(at, name[:_MAX_NAME].__eq__)
                pending.append(Pending(at, name, None if found is None else stat.S_IMODE(found.st_mode), 0o666))
            except BaseException:
                os.close(at)
                raise
            pending[-1].write(chunks)
            os.fsync(pending[-1].fd)
        _rename(pending)
    except OSError as error:
        if error.filename is None or str(error.filename).endswith(TEMPORARY):
            error.filename, error.filename2 = path, None
        raise
    finally:
        for each in pending:
            each.close()
            os.close(each.folder)


def write_in(folder: int, name: str, chunks: Chunks) -> None:
    """Write a private file into an open folder. After a power failure it may be incomplete."""
    pending = Pending(folder, name, 0o600, 0o600)
    try:
        pending.write(chunks)
        pending.commit()
    finally:
        pending.close()


class Pending:
    """A file under its temporary name."""

    def __init__(self, folder: int, name: str, mode: int | None, initial: int) -> None:
        """``mode`` None means ``initial`` with the process's umask applied."""
        self.folder, self.name = folder, name
        for _ in range(100):
            self.temporary = temporary_name(name)
            self.fd = os.open(self.temporary, _FLAGS, initial, dir_fd=folder)
            try:
                if mode is not None:
                    os.fchmod(self.fd, mode)
                if _lock(self.fd) and os.fstat(self.fd).st_nlink:  # else another process just swept it
                    return
            except BaseException:
                self.close()
                raise
            os.close(self.fd)
        raise OSError(errno.EAGAIN, "temporary files vanish as soon as they are made")

    def write(self, chunks: Chunks) -> None:
        for chunk in chunks:
            left = memoryview(chunk)
            while left:
                left = left[os.write(self.fd, left) :]

    def commit(self) -> None:
        os.replace(self.temporary, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        self.temporary = ""

    def backup(self) -> str | None:
        """A second link to the file that this one will replace; None if there is no such file."""
        made = temporary_name(self.name)
        try:
            os.link(self.name, made, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        except OSError:
            return None
        return made

    def put_away(self) -> str | None:
        """The file that this one will replace, under a temporary name; None if there is no such file."""
        made = temporary_name(self.name)
        try:
            os.replace(self.name, made, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        except FileNotFoundError:
            return None
        return made

    def close(self) -> None:
        """Delete the temporary file unless it was committed."""
        _forget(self.temporary or None, self.folder)
        os.close(self.fd)


def _rename(pending: Sequence[Pending]) -> None:
    """Rename all files to their final names, or none. The last file, which may be one that reads the others, is away
    while those change: a killed process leaves none of it, never one beside others' contents.
    """
    done: list[tuple[Pending, str | None]] = []
    try:
        if len(pending) > 1:
            done.append((pending[-1], pending[-1].put_away()))
        for each in pending[:-1]:
            done.append((each, each.backup()))
            each.commit()
        for each in pending[-1:]:
            each.commit()
    except BaseException:
        for each, backup in reversed(done):
            with contextlib.suppress(OSError):
                if each.temporary and each is not pending[-1]:
                    _forget(backup, each.folder)
                elif backup is not None:
                    os.replace(backup, each.name, src_dir_fd=each.folder, dst_dir_fd=each.folder)
                elif not each.temporary:
                    os.unlink(each.name, dir_fd=each.folder)
        raise
    for each, backup in done:
        _forget(backup, each.folder)


def _forget(name: str | None, folder: int) -> None:
    if name is not None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)


def temporary_name(name: str) -> str:
    return f".{name[:_MAX_NAME]}.{os.urandom(_NUMBER_NBYTES).hex()}{TEMPORARY}"


def sweep(folder: int, wanted: Callable[[str], bool]) -> None:
    """Delete temporary files, of files with the ``wanted`` names, of processes that are gone."""
    try:
        found = os.listdir(folder)
    except OSError:
        return
    for each in found:
        name, _, number = each.removesuffix(TEMPORARY).rpartition(".")
        if not each.endswith(TEMPORARY) or len(number) != 2 * _NUMBER_NBYTES or not wanted(name[1:]):
            continue
        with contextlib.suppress(OSError):
            fd = os.open(each, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                if _lock(fd):
                    os.unlink(each, dir_fd=folder)
            finally:
                os.close(fd)


def _lock(fd: int) -> bool:
    """Lock a temporary file; False if another process is writing it. A file system without locks counts as locked by
    nobody.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
