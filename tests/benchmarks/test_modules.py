"""Every benchmark still fits the package: what it imports exists, and importing it runs nothing."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = sorted(BENCHMARKS.rglob("*.py"))
TORCH = tuple(f"benchmarks.zoo.{name}" for name in ("samples", "transformers", "convnets", "exported"))
OURS = ("benchmarks", "sardonyx", "tests")


def imported(path: Path, *, inside: bool = True) -> Iterator[tuple[str, str]]:
    """Module and name of what a file imports from this repository, inside functions too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if inside else tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            yield from ((node.module, alias.name) for alias in node.names)


def exists(module: str, name: str) -> bool:
    path = BENCHMARKS.parent.joinpath(*module.split("."))
    if module.startswith("benchmarks"):  # its models need torch, which is not asked for here
        source = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        defined = ast.walk(ast.parse(source.read_text(encoding="utf-8"))) if source.exists() else ()
        names = {getattr(node, "id", None) or getattr(node, "name", None) for node in defined}
        return name in names or (path / f"{name}.py").exists() or (path / name).is_dir()
    found = importlib.import_module(module)
    return hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}") is not None


def needs(path: Path) -> set[str]:
    """The packages that a module wants when it is imported."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    found = {n.module.split(".")[0] for n in nodes if isinstance(n, ast.ImportFrom) and n.module}
    return found | {alias.name.split(".")[0] for n in nodes if isinstance(n, ast.Import) for alias in n.names}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(BENCHMARKS)))
def test_importing_a_benchmark_runs_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in needs(path) - {"torch"}:
        pytest.importorskip(package)
    if "torch" in needs(path) or any(module.startswith(TORCH) for module, _ in imported(path, inside=False)):
        pytest.importorskip("torch")
    monkeypatch.setattr(sys, "argv", ["nothing"])
    name = ".".join(path.relative_to(BENCHMARKS.parent).with_suffix("").parts)
    importlib.import_module(name.removesuffix(".__init__"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(BENCHMARKS)))
def test_names_that_a_benchmark_imports_exist(path: Path) -> None:
    assert not [f"{module}.{name}" for module, name in imported(path) if not exists(module, name)]
