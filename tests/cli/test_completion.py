"""Completion in the shell, as bash asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sardonyx.cli import GOOD
from tests.cli.commands import run_process


@pytest.mark.parametrize(
    ("line", "found"),
    [("sardonyx qu", ["quantize"]), ("sardonyx cache w", ["warm"]), ("sardonyx optimize m.onnx --lev", ["--level"])],
)
def test_words_are_completed(line: str, found: list[str]) -> None:
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    done = run_process(_SARDONYX_COMPLETE="complete_bash", **asked)
    assert done.out.split() == found and done.err == ""


def test_completion_is_installed(tmp_path: Path) -> None:
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # the shell that runs the tests may be another one
    done = run_process("--install-completion", "bash", HOME=str(tmp_path), **named)
    assert done.status == GOOD and "completion installed" in done.out
    installed = [path for path in tmp_path.rglob("*") if path.is_file() and "sardonyx" in path.read_text()]
    assert installed
