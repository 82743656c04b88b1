"""The house rules that no linter knows."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sardonyx

ROOT = Path(__file__).resolve().parent.parent
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".cfg", ".txt", ""}
HEAVY = (
    "llvmlite", "torch", "triton", "onnx", "onnx.reference", "ml_dtypes", "onnxruntime",
    "grpc", "starlette", "fastapi", "flask", "uvicorn", "aiohttp", "rich", "typer",
)  # fmt: skip


def ours() -> Iterator[Path]:
    """Every text file of the tree that was not generated and is not third-party."""
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        hidden = any(p.startswith(".") and p != ".ci" for p in parts[:-1])
        if path.is_file() and path.suffix in TEXT and not hidden and parts[0] not in ("build", "dist", ".git"):
            yield path


def test_import_loads_nothing_heavy() -> None:
    code = f"import sys, sardonyx; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_layers_hold() -> None:
    pytest.importorskip("importlinter", reason="import-linter comes with the dev extra")
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_versions_agree() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)
    project = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest and project
    assert sardonyx.__version__ == project[1] == newest[1]


def test_typing_marker_is_shipped() -> None:
    assert (Path(sardonyx.__file__).parent / "py.typed").exists()


def test_no_paths_of_one_machine() -> None:
    rooted = re.compile(r"(?<![\w./}])/(?:" + "|".join(("home", "root", "work", "opt", "Users", "tmp")) + r")/\w")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in ours()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if rooted.search(line)
    ]
    assert not found, "\n".join(found)


def test_cached_properties_have_no_lock() -> None:
    """Up to Python 3.11 that of functools has a lock, which a forked child may find taken for ever."""
    source = Path(sardonyx.__file__).parent
    wrong = [p for p in source.rglob("*.py") if re.search(r"from functools import.*cached_property", p.read_text())]
    assert wrong == [source / "forks.py"]
