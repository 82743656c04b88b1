"""Names that no tool checks: what tests set in modules of ours, and kernels that they ask for."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sardonyx

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tests", "fuzz", "benchmarks")
OURS = ("sardonyx", "tests", "fuzz", "benchmarks")
METHODS = ("count", "index", "startswith")
KERNELS = Path(sardonyx.__file__).parent / "providers" / "cpu"


def files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def modules(tree: ast.AST, wanted: set[str]) -> dict[str, ModuleType]:
    """Of some names, those that stand for modules of ours which a file imports."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.ImportFrom, ast.Import)):
            prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name, path = alias.asname or alias.name, f"{prefix}{alias.name}"
                if name in wanted and path.split(".", maxsplit=1)[0] in OURS and (module := _module(path)) is not None:
                    found[name] = module
    return found


def _module(name: str) -> ModuleType | None:
    parts = name.split(".")
    path = (Path(sardonyx.__file__).parents[1] if parts[0] == "sardonyx" else ROOT).joinpath(*parts)
    if not path.with_suffix(".py").exists() and not (path / "__init__.py").exists():
        return None
    try:
        return importlib.import_module(name)
    except (ImportError, pytest.skip.Exception):
        return None


def patches(tree: ast.AST) -> Iterator[tuple[str, str, bool, int]]:
    """What is set in something that has a name: its name, the attribute, whether a missing one is excused, the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) >= 2:
            callee = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            home, name = node.args[:2]
            if callee in ("setattr", "delattr") and isinstance(home, ast.Name) and isinstance(name, ast.Constant):
                yield home.id, str(name.value), any(k.arg == "raising" for k in node.keywords), node.lineno
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    yield target.value.id, target.attr, False, node.lineno


def stale_patches(source: str) -> list[str]:
    if not re.search(r"(set|del)attr\(|^\s*\w+\.\w+ .?= ", source, re.MULTILINE):
        return []
    tree, found = ast.parse(source), []
    patched = list(patches(tree))
    known = modules(tree, {home for home, *_ in patched})
    for home, name, is_excused, line in patched:
        if home in known and (is_excused or not hasattr(known[home], name)):
            found.append(f"{line}: {known[home].__name__}.{name}{' with raising=False' if is_excused else ''}")
    return found


@cache
def kernels() -> frozenset[str]:
    """Names of all functions that are kernels."""
    texts = (path.read_text(encoding="utf-8") for path in KERNELS.rglob("*.py"))
    trees = (ast.parse(text) for text in texts if "@kernel" in text)
    functions = (node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef))
    return frozenset(f.name for f in functions if any("kernel" in ast.unparse(d) for d in f.decorator_list))


class Asked(ast.NodeVisitor):
    """Strings that a file compares with names of kernels, or looks up among them."""

    def __init__(self, tree: ast.AST) -> None:
        self.holders: set[str] = set()
        """Variables and functions that hold or give such names."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and self._has_names(node.value):
                self.holders |= {t.id for t in node.targets if isinstance(t, ast.Name)}
            if isinstance(node, ast.FunctionDef):
                ends = [n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None]
                if any(map(self._has_names, ends)):
                    self.holders.add(node.name)
        self.found: list[tuple[int, str, bool]] = []
        """Line, name, whether it is only how a name begins."""
        self.visit(tree)

    def _has_names(self, node: Any) -> bool:
        """Whether an expression is the name of a kernel, or some of them."""
        if isinstance(node, ast.Attribute):
            return node.attr == "name" and ast.unparse(node.value).split(".")[-1] == "spec"
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            return self._has_names(node.elt)
        if isinstance(node, ast.Subscript):
            return self._has_names(node.value)
        return isinstance(node, ast.Call) and (
            any(map(self._has_names, node.args))
            and getattr(node.func, "id", "") in ("Counter", "list", "set", "sorted", "tuple")
        )

    def _is_asked(self, node: ast.AST) -> bool:
        inner = {getattr(n, "id", None) or getattr(n, "attr", None) for n in (node, getattr(node, "func", None)) if n}
        return self._has_names(node) or bool(inner & self.holders)

    def _take(self, node: ast.AST, is_start: bool = False) -> None:
        texts = [n for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value]
        self.found += [(n.lineno, n.value, is_start) for n in texts]

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        if any(map(self._is_asked, sides)):
            for side in sides:
                if isinstance(side, (ast.Constant, ast.List, ast.Tuple, ast.Set)):
                    self._take(side)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if self._is_asked(node.value) and isinstance(node.slice, ast.Constant):
            self._take(node.slice)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in METHODS and self._is_asked(called.value):
            for given in node.args:
                self._take(given, called.attr == "startswith")
        self.generic_visit(node)


def stale_kernels(source: str) -> list[str]:
    if "spec.name" not in source:
        return []

    def exists(name: str, is_start: bool) -> bool:
        return any(k.startswith(name) for k in kernels()) if is_start else name in kernels()

    return [f"{line}: {name}" for line, name, start in Asked(ast.parse(source)).found if not exists(name, start)]


def test_what_is_patched_exists() -> None:
    wrong = [f"{p.relative_to(ROOT)}:{why}" for p in files() for why in stale_patches(p.read_text(encoding="utf-8"))]
    assert not wrong, "\n".join(wrong)


def test_kernels_that_are_asked_for_exist() -> None:
    wrong = [f"{p.relative_to(ROOT)}:{why}" for p in files() for why in stale_kernels(p.read_text(encoding="utf-8"))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "monkeypatch.setattr(knobs, 'NO_SUCH', 1)",
        "monkeypatch.setattr(knobs, 'CACHE', 1, raising=False)",
        "setattr(knobs, 'NO_SUCH', 1)",
        "knobs.NO_SUCH = 1",
    ],
)
def test_stale_patches_are_found(line: str) -> None:
    assert stale_patches(f"from sardonyx import knobs\n{line}")
    assert not stale_patches("from sardonyx import knobs\nmonkeypatch.setattr(knobs, 'CACHE', 1)\nknobs.CPU = None")


@pytest.mark.parametrize(
    "line",
    [
        "assert [s for s in steps if s.spec.name == 'no_such']",
        "assert names.count('no_such') == 0",
        "assert 'no_such' not in names",
        "assert made(steps)['no_such'] == 0",
        "assert not step.spec.name.startswith(('gemm', 'no_such'))",
    ],
)
def test_stale_kernels_are_found(line: str) -> None:
    head = "names = [s.spec.name for s in steps]\ndef made(steps):\n    return Counter(s.spec.name for s in steps)\n"
    assert [why.split(": ")[1] for why in stale_kernels(head + line)] == ["no_such"]
    assert not stale_kernels(head + line.replace("no_such", "gemm"))
