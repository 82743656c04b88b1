"""The cache folder is trusted only if nobody else has a hand in it, or in a folder on the way to it."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from sardonyx import folders
from sardonyx.folders import private


def refusal(where: Path, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "sardonyx"):
        assert private(str(where)) is None
    return caplog.text


def test_it_is_made_with_all_that_leads_to_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        found = private(str(tmp_path / "a" / "b" / "cache"))
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert found is not None and found.path == str(tmp_path / "a" / "b" / "cache")
    for path in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "cache"):
        assert path.stat().st_mode & 0o777 == 0o700
    assert private(str(tmp_path / "a" / "b" / "cache")) is found


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o704])
def test_a_folder_that_others_may_look_into(tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    assert f"{mode:04o}" in refusal(tmp_path / "cache", caplog)
    (tmp_path / "cache").chmod(0o700)
    assert private(str(tmp_path / "cache")) is not None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o772])
def test_a_way_that_others_may_change(tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "open" / "inner").mkdir(parents=True)
    (tmp_path / "open").chmod(mode)
    where = tmp_path / "open" / "inner" / "cache"
    assert "others may write" in refusal(where, caplog)
    assert not where.exists()
    assert not refusal(where, caplog), "it is said once"
    (tmp_path / "open").chmod(0o1777)
    assert private(str(where)) is not None


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("which", ["folder", "way", "link", "last link"])
def test_folders_of_other_users_are_refused(tmp_path: Path, which: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "way" / "cache").mkdir(parents=True, mode=0o700)
    (tmp_path / "way" / "cache").chmod(0o700)
    (tmp_path / "link").symlink_to("way")
    given = {"folder": tmp_path / "way" / "cache", "way": tmp_path / "way", "link": tmp_path / "link"}
    (tmp_path / "last").symlink_to("way/cache")
    os.chown(given.get(which, tmp_path / "last"), 12345, 12345, follow_symlinks=False)
    where = tmp_path / "last" if which == "last link" else tmp_path / ("link" if which == "link" else "way") / "cache"
    assert "belongs to another user" in refusal(where, caplog)


def test_links_on_the_way_are_followed_and_looked_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/../real/deep")
    (tmp_path / "absolute").symlink_to(tmp_path / "link")
    found = private(str(tmp_path / "absolute" / "cache"))
    assert found is not None and (tmp_path / "real" / "deep" / "cache").is_dir()
    (tmp_path / "real").chmod(0o777)
    assert "others may write" in refusal(tmp_path / "link" / "other", caplog)


def test_the_folder_may_be_a_link_of_the_users(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    found = private(str(tmp_path / "link"))
    assert found is not None
    found.write("entry", [b"one"])
    assert (tmp_path / "real" / "entry").exists()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "other").symlink_to("open")
    assert "0777" in refusal(tmp_path / "other", caplog)
    (tmp_path / "gone").symlink_to("nowhere")
    assert private(str(tmp_path / "gone")) is not None and (tmp_path / "nowhere").is_dir()


def test_links_that_never_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "too many links" in refusal(tmp_path / "a" / "cache", caplog)
    assert "root" in refusal(Path("/"), caplog)


def test_it_is_held_whatever_its_path_names_later(tmp_path: Path) -> None:
    where = tmp_path / "cache"
    found = private(str(where))
    assert found is not None
    found.write("entry", [b"one"])
    where.rename(tmp_path / "moved")
    (tmp_path / "evil").mkdir(mode=0o700)
    (tmp_path / "evil" / "entry").write_bytes(b"two")
    where.symlink_to("evil")
    again = private(str(where))
    assert again is found
    with open(again.open("entry"), "rb") as file:
        assert file.read() == b"one"


def test_a_folder_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    where = tmp_path / "cache"
    assert private(str(where)) is not None
    shutil.rmtree(where)
    found = private(str(where))
    assert found is not None and where.is_dir()
    found.write("entry", [b"one"])
    assert (where / "entry").read_bytes() == b"one"


def test_permissions_are_looked_at_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    where = tmp_path / "cache"
    assert private(str(where)) is not None
    where.chmod(0o777)
    assert "0777" in refusal(where, caplog)


def test_a_program_that_closes_every_descriptor(tmp_path: Path) -> None:
    found = private(str(tmp_path / "cache"))
    assert found is not None
    os.close(found.fd)
    (tmp_path / "other").mkdir()
    taken = os.open(tmp_path / "other", os.O_RDONLY)
    again = private(str(tmp_path / "cache"))
    assert again is not None and again is not found
    again.write("entry", [b"one"])
    assert (tmp_path / "cache" / "entry").exists()
    os.close(taken)


def test_the_knob_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", folders.OFF)
    assert folders.cache_folder() is None
    monkeypatch.delenv("SARDONYX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    found = folders.cache_folder()
    assert found is not None and found.path == str(tmp_path / "home" / "sardonyx")


def test_a_folder_that_is_only_read_from_is_not_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    where = str(tmp_path / "cache" / "inner")
    assert private(where, make=False) is None and not caplog.records and not (tmp_path / "cache").exists()
    made = private(where)
    assert made is not None and private(where, make=False) is made
