"""The fuzzers by name: a case from a seed, an index and a mutation."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from fuzz.cases import Case

FUZZERS = ("operators", "graphs", "models", "binding", "corpus")


def case_of(fuzzer: str, seed: int, index: int, mutation: int | None = None) -> Case:
    """The case of this name."""
    make: Callable[..., Case] = import_module(f"fuzz.{fuzzer}").case
    return make(seed, index, mutation)


def by_name(name: str) -> Case:
    """The case of ``operators/0/17+2``."""
    fuzzer, seed, rest = name.split("/")
    index, _, mutation = rest.partition("+")
    return case_of(fuzzer, int(seed), int(index), int(mutation) if mutation else None)


def ready(fuzzers: Any) -> None:
    """Load what workers are to inherit."""
    for fuzzer in fuzzers:
        case_of(fuzzer, 0, 0)
