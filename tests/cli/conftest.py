"""The command line under test, and files that commands are given."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from sardonyx.cli import REQUIRED
from tests.cli.commands import Commands

if any(find_spec(name) is None for name in REQUIRED):
    collect_ignore_glob = ["test_*.py"]  # without the extra `cli` there is no command line to test


@pytest.fixture
def commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(capsys, monkeypatch)


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SARDONYX_CACHE", str(folder))
    monkeypatch.delenv("SARDONYX_VERIFY", raising=False)
    return folder


@pytest.fixture
def digits(demo_dir: Path) -> Path:
    return demo_dir / "digits.onnx"


@pytest.fixture
def jpeg(tmp_path: Path) -> Path:
    """A file that is no model."""
    path = tmp_path / "photo.jpg"
    path.write_bytes(b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(range(256)))
    return path
