"""Runs the command line in this process or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from sardonyx.cli import main


@dataclass
class Outcome:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The only line of stderr."""
        assert self.err.endswith("\n") and self.err.count("\n") == 1, self.err
        assert self.err.startswith("sardonyx: ") and "Traceback" not in self.err
        return self.err.strip()


class Commands:
    """``commands("cache", "list")`` is what the command prints, and its status."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *args: object, columns: int = 80) -> Outcome:
        self._monkeypatch.setenv("COLUMNS", str(columns))
        self._capsys.readouterr()
        status = main([str(arg) for arg in args])
        captured = self._capsys.readouterr()
        return Outcome(status, captured.out, captured.err)


def command_line(*args: object) -> list[str]:
    return [sys.executable, "-m", "sardonyx", *map(str, args)]


def run_process(*args: object, timeout_s: float = 120, **variables: str) -> Outcome:
    done = subprocess.run(
        command_line(*args),
        env={**os.environ, **variables},
        capture_output=True,
        encoding="utf-8",
        timeout=timeout_s,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
