"""Imports of packages without modules that they import and that a session does not use.

``import onnx`` takes 50 ms, most of them for modules that edit models, write source files or look up onnx's version.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

OF_ONNX = "onnx.compose", "onnx.gen_proto", "onnx.utils"
METADATA = "importlib.metadata"


class Deferred(ModuleType):
    """Stands for a module, which is imported when one of its attributes is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def deferred(*names: str) -> Iterator[dict[str, ModuleType]]:
    """Packages that are imported inside receive a ``Deferred`` for each of these modules that is not imported yet."""
    made: dict[str, ModuleType] = {name: Deferred(name) for name in names if name not in sys.modules}
    sys.modules.update(made)
    try:
        yield made
    finally:
        for name, module in made.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def import_onnx() -> None:
    """Import onnx; what it leaves out is imported when it is first used."""
    if "onnx" in sys.modules:
        return
    with deferred(METADATA, *OF_ONNX) as made:
        if METADATA in made:
            setattr(made[METADATA], "version", _version)  # noqa: B010 - a module has no such attribute for mypy
            setattr(importlib, "metadata", made[METADATA])  # noqa: B010
        importlib.import_module("onnx")


def _version(distribution: str) -> str:
    """A distribution's version, as ``importlib.metadata`` tells it: read beside the package, where that is certain."""
    origin = getattr(sys.modules.get(distribution), "__file__", None)
    if origin is not None:
        place = os.path.dirname(os.path.dirname(origin))
        names = [name for name in os.listdir(place) if name.startswith(f"{distribution}-") and name.endswith("-info")]
        if len(names) == 1:
            found = _stated(os.path.join(place, names[0], "METADATA"))
            if found is not None:
                return found
    return str(importlib.import_module(METADATA).version(distribution))


def _stated(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith("Version: "):
                    return line.removeprefix("Version: ").strip()
                if not line.strip():
                    return None
    except OSError:
        return None
    return None
