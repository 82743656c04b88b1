"""Sardonyx under onnxruntime's name, for programs that cannot be edited.

    python -m sardonyx.shim program.py arguments...
    python -m sardonyx.shim -m module arguments...

or, before anything imports onnxruntime, ``sardonyx.as_onnxruntime()``. The command also affects child processes of the
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import Distribution

NAME = "onnxruntime"
HOME = "sardonyx"
SHIPPED = frozenset({"quantization", "tools", "transformers"})
"""Packages of onnxruntime's wheel that may be missing here; importing one raises an error that says so."""
HIDDEN = frozenset(
    {"dtypes", "errors", "interpret", "ir", "knobs", "model", "normalize", "ops", "optimize", "partition", "plan"}
    | {"lower", "providers", "session", "shim", "cli", "bench", "profile", "tune", "convert", "serve", "report"}
)
"""Sardonyx's packages that onnxruntime lacks."""


class _OnnxruntimeModule(ModuleType):
    """The module ``onnxruntime``: Sardonyx's names with onnxruntime's version."""

    def __getattr__(self, name: str) -> Any:
        if name in HIDDEN:
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
        try:
            return getattr(sys.modules[HOME], name)
        except AttributeError:
            where = "; it is not part of Sardonyx" if name in SHIPPED else ""
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}{where}") from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(sys.modules[HOME])})


class _Loader:
    """Returns the corresponding module of ``sardonyx`` itself, not a copy."""

    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        if self._real == HOME:
            return _onnxruntime_module()
        if importlib.util.find_spec(self._real) is None:
            raise ImportError(f"{spec.name} is not part of Sardonyx, which stands in for {NAME} here", name=spec.name)
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if self._real != HOME:
            module.__spec__ = self._spec
            _alias_children(self._real)


def _alias_children(package: str) -> None:
    """Give the loaded modules of a package their second names.

    An import under the second name would set the package's attribute to the module, and hide a function of that name.
    """
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        sys.modules.setdefault(NAME + name.removeprefix(HOME), sys.modules[name])


def _distribution() -> Distribution:
    """The metadata of onnxruntime for ``importlib.metadata``, which only a program that asks for them imports."""
    from importlib.metadata import Distribution

    class Metadata(Distribution):
        def read_text(self, filename: str) -> str | None:
            from sardonyx.session.environment import API_VERSION

            if filename != "METADATA":
                return None
            return f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {API_VERSION}\nSummary: Sardonyx under this name\n"

        def locate_file(self, path: Any) -> Any:
            return os.path.join(os.path.dirname(__file__), path)

    return Metadata()


class _Finder:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top, _, rest = fullname.partition(".")
        if top != NAME or rest.partition(".")[0] in HIDDEN:
            return None
        real = f"{HOME}.{rest}" if rest else HOME
        try:
            found = importlib.util.find_spec(real)
        except ModuleNotFoundError:
            found = None
        if found is None and rest.partition(".")[0] not in SHIPPED:
            return None
        loader: Any = _Loader(real)
        spec = importlib.machinery.ModuleSpec(fullname, loader, origin=found.origin if found else None)
        if not rest or found is None or found.submodule_search_locations is not None:
            spec.submodule_search_locations = []
        return spec

    def find_distributions(self, context: Any = None) -> Iterator[Distribution]:
        wanted = getattr(context, "name", None)
        if wanted is None or wanted.lower().replace("_", "-") == NAME:
            yield _distribution()


def _onnxruntime_module() -> ModuleType:
    from sardonyx.session.environment import API_VERSION

    home = importlib.import_module(HOME)
    face = _OnnxruntimeModule(NAME, home.__doc__)
    face.__file__ = home.__file__
    face.__dict__.update(__version__=API_VERSION, version=API_VERSION, __author__="Sardonyx")
    return face


def as_onnxruntime() -> ModuleType:
    """Make ``import onnxruntime``, and its submodules, resolve to Sardonyx in this process."""
    loaded = sys.modules.get(NAME)
    if isinstance(loaded, _OnnxruntimeModule):
        return loaded
    if loaded is not None:
        raise ImportError(f"{NAME} is imported already; call as_onnxruntime() before anything imports it")
    sys.meta_path.insert(0, _Finder())
    importlib.invalidate_caches()
    return importlib.import_module(NAME)
