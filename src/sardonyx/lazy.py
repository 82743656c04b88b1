"""Packages whose modules are imported when their names or operators are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def attributes(
    package: str, homes: Mapping[str, str], modules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package; ``homes`` has the module below it that defines each public name,
    ``modules`` those that are public themselves.
    """

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*homes, *modules, *vars(sys.modules[package])})

    return get, names


def names_from(module: str, package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """``__getattr__`` of a module that also has names of other modules of its package."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get


class Families:
    """The modules of a package that register what they know of operators. A module is imported when one of its
    operators is first asked for.
    """

    def __init__(self, package: str, operators: Mapping[str, str]) -> None:
        """``operators`` has the operators of each module, those of other domains than ai.onnx with their domain."""
        self.operators = {family: tuple(names.split()) for family, names in operators.items()}
        self._package = package
        self._homes = {name: family for family, names in self.operators.items() for name in names}

    def load(self, domain: str, op_type: str) -> None:
        """Import the module that registers an operator, if one does."""
        family = self._homes.get(f"{domain}.{op_type}" if domain else op_type)
        if family is not None:
            self.load_family(family)

    def load_family(self, family: str) -> None:
        import_module(f"{self._package}.{family}")

    def load_all(self) -> None:
        for family in self.operators:
            self.load_family(family)
