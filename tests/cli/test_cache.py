"""``sardonyx cache``."""

from __future__ import annotations

from pathlib import Path

import pytest

from sardonyx import cache
from sardonyx.cli import FAILED, UNUSABLE
from tests.cli.commands import Commands


@pytest.mark.parametrize("columns", [80, 120])
def test_warm_list_and_clear(
    commands: Commands, cache_dir: Path, digits: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commands("cache", "warm", digits).out == f"{digits}: cached\n"
    listed = commands("cache", "list", columns=columns)
    assert str(cache_dir) in listed.out and "digits.onnx" in listed.out.replace("\n", "")
    assert max(len(line) for line in listed.out.splitlines()[1:]) <= columns
    found = commands("cache", "list", "--json").json
    assert found["folder"] == str(cache_dir) and [m["path"] for m in found["models"]] == [str(digits)] * 2
    monkeypatch.setattr("sardonyx.cli.commands.cache.LISTED", 1)
    assert "and 1 more; --all lists them" in commands("cache", "list").out
    assert "more" not in commands("cache", "list", "--all").out
    assert commands("cache", "clear", digits, "--json").json["nbytes"] == sum(m["nbytes"] for m in found["models"])
    assert commands("cache", "clear").status == 0 and cache.items() == []


def test_a_model_that_cannot_be_cached(
    commands: Commands, cache_dir: Path, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "warm", lambda *_: False)
    done = commands("cache", "warm", digits, "--json")
    assert done.status == FAILED and done.json == {str(digits): False}


def test_bad_input(commands: Commands, cache_dir: Path, jpeg: Path, tmp_path: Path) -> None:
    for path, words in ((tmp_path / "nothing.onnx", "exist"), (jpeg, "JPEG"), (tmp_path, "folder")):
        done = commands("cache", "warm", path)
        assert done.status == UNUSABLE and words.lower() in done.error.lower(), done.err
    assert commands("cache", "warm", "a.onnx", "--threads", "-1").status == UNUSABLE


def test_caching_that_is_off(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    done = commands("cache", "list")
    assert done.status == UNUSABLE and "SARDONYX_CACHE" in done.error
