"""The table of operator meanings.

A meaning is a Python function over numpy values: tensors positional (None where an optional one is left out),
attributes keyword-only with ONNX's defaults, returning an array or a tuple of outputs. It never writes into its inputs.
Two keywords are not attributes, and are supplied to the functions that declare them: ``outputs``, how many outputs the
node has, and ``generator``, the node's own stream of random numbers.
Only the newest version of an operator has a meaning: ``normalize`` brings older ones to that form.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

FAMILIES = (
    "pointwise", "activation", "cast", "reduce", "topk", "movement", "create", "index", "matmul", "conv",
    "conv_transpose", "pool", "norm", "resize", "sample", "recurrent", "attention", "quantize", "signal", "random",
    "sequence", "text", "tfidf", "vision", "loss", "training", "ml", "contrib",
)  # fmt: skip


SUPPLIED = frozenset({"outputs", "generator"})


@dataclass(frozen=True)
class Op:
    """An operator and the interpretations attached to it."""

    domain: str
    name: str
    numpy: Callable[..., Any]
    attributes: frozenset[str]
    supplied: frozenset[str]
    """Which of ``SUPPLIED`` the function takes."""
    pure: bool = True
    """False for operators whose result is not a function of their inputs: never folded, never shared."""


_OPS: dict[tuple[str, str], Op] = {}
_loaded = False


def op(name: str, *, domain: str = "", pure: bool = True) -> Callable[[F], F]:
    """Register the numpy meaning of an operator."""

    def register(fn: F) -> F:
        keywords = {p.name for p in inspect.signature(fn).parameters.values() if p.kind is p.KEYWORD_ONLY}
        assert (domain, name) not in _OPS, f"{domain}.{name} has a meaning already"
        _OPS[domain, name] = Op(domain, name, fn, frozenset(keywords - SUPPLIED), frozenset(keywords & SUPPLIED), pure)
        return fn

    return register


def find(domain: str, name: str) -> Op | None:
    """The meaning of an operator, or None when this table has none."""
    global _loaded
    if not _loaded:
        for family in FAMILIES:
            importlib.import_module(f"sardonyx.ops.{family}")
        _loaded = True
    return _OPS.get((domain, name))


def every() -> list[Op]:
    find("", "")
    return list(_OPS.values())
