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

from sardonyx.ir.graph import Node

F = TypeVar("F", bound=Callable[..., Any])

FAMILIES = (
    "pointwise", "activation", "cast", "reduce", "topk", "movement", "create", "index", "matmul", "conv",
    "conv_transpose", "pool", "norm", "resize", "sample", "recurrent", "attention", "quantize", "signal", "random",
    "sequence", "text", "tokenizer", "tfidf", "vision", "loss", "training", "ml", "contrib",
)  # fmt: skip


SUPPLIED = frozenset({"outputs", "generator"})


@dataclass(frozen=True)
class Custom:
    """What an operator of a user's own has beside its meaning."""

    function: Callable[..., Any]
    """What the user wrote."""
    parts: tuple[Any, ...]
    """All that decides what the operator does: caches are asked by its digest."""
    check: Callable[[Node], None]
    """Raises InvalidGraph for a node that the operator cannot be."""
    launch: Callable[..., Any] | None = None
    """The kernel and its arguments, for views of inputs and outputs."""


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
    custom: Custom | None = None


_OPS: dict[tuple[str, str], Op] = {}
_loaded = False


def op(name: str, *, domain: str = "", pure: bool = True) -> Callable[[F], F]:
    """Register the numpy meaning of an operator."""

    def register(fn: F) -> F:
        assert (domain, name) not in _OPS, f"{domain}.{name} has a meaning already"
        add(domain, name, fn, pure=pure)
        return fn

    return register


def add(domain: str, name: str, fn: Callable[..., Any], *, pure: bool = True, custom: Custom | None = None) -> None:
    """Put a meaning into the table, in place of one that is there."""
    keywords = {p.name for p in inspect.signature(fn).parameters.values() if p.kind is p.KEYWORD_ONLY}
    attributes, supplied = frozenset(keywords - SUPPLIED), frozenset(keywords & SUPPLIED)
    _OPS[domain, name] = Op(domain, name, fn, attributes, supplied, pure, custom)


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


def customs() -> list[Op]:
    """Operators that users have defined."""
    return [op for op in list(_OPS.values()) if op.custom is not None]
