"""Files are written whole, or what was there stays."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sardonyx import writing
from sardonyx.writing import write_together, write_whole


def failing(*chunks: bytes) -> Iterator[bytes]:
    yield from chunks
    raise OSError(28, "No space left on device")


def test_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(str(tmp_path / "new"), [b"one", b"", b"two"])
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == b"onetwo" and (tmp_path / "new").stat().st_mode & 0o777 == 0o640


def test_a_file_keeps_the_permissions_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o604)
    write_whole(str(path), [b"new"])
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o604


def test_the_mask_is_never_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the mask is the process's"))
    write_whole(str(tmp_path / "file"), [b"one"])


def test_a_failed_write_keeps_the_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="space"):
        write_whole(str(path), failing(b"new"))
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_an_error_names_the_file_that_was_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = str(tmp_path / "a")
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_whole(path, [b"x"])
    assert caught.value.filename == path and not list(tmp_path.iterdir())
    monkeypatch.undo()
    monkeypatch.setattr(writing, "_FLAGS", writing._FLAGS & ~os.O_CREAT & ~os.O_EXCL)  # as where none can be made
    with pytest.raises(FileNotFoundError) as missing:
        write_whole(path, [b"x"])
    assert missing.value.filename == path


@pytest.mark.parametrize("has_old", [True, False])
@pytest.mark.parametrize("fails", ["second chunks", "second rename"])
def test_two_files_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_old: bool, fails: str) -> None:
    data, model = tmp_path / "data", tmp_path / "model"
    if has_old:
        data.write_bytes(b"old data")
        model.write_bytes(b"old model")
    if fails == "second rename":
        rename, renamed = os.replace, []

        def replace(*args: object, **named: object) -> None:
            renamed.append(args)
            if len(renamed) == 2:
                raise OSError(5, "Input/output error")
            rename(*args, **named)  # type: ignore[call-overload]

        monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError):
        write_together([(str(data), [b"new"]), (str(model), failing() if fails == "second chunks" else [b"new"])])
    left = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert left == ({"data": b"old data", "model": b"old model"} if has_old else {})
    monkeypatch.undo()
    write_together([(str(data), [b"new data"]), (str(model), [b"new model"])])
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"data": b"new data", "model": b"new model"}


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_whole(str(tmp_path / "link"), [b"new"])
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"


def test_writing_to_a_device_does_not_replace_it() -> None:
    write_whole("/dev/null", [b"new"])
    assert Path("/dev/null").is_char_device()


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_whole("file", [b"one"])
    assert (tmp_path / "file").read_bytes() == b"one"


def test_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    left = [tmp_path / writing.temporary_name(name) for name in ("file", "file", "other")]
    for path in left:
        path.write_bytes(b"half")
    with left[0].open("rb") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        write_whole(str(tmp_path / "file"), [b"one"])
    assert [path.exists() for path in left] == [True, False, True], "one is being written, one is another's"


def test_a_temporary_file_that_was_swept_too_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and its locking."""
    lock, swept = writing._lock, []

    def late(fd: int) -> bool:
        if not swept:
            (path,) = tmp_path.glob("*.tmp")
            swept.append(path)
            path.unlink()
        return lock(fd)

    monkeypatch.setattr(writing, "_lock", late)
    write_whole(str(tmp_path / "file"), [b"one"])
    assert (tmp_path / "file").read_bytes() == b"one" and len(swept) == 1 and os.listdir(tmp_path) == ["file"]
