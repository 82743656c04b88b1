"""The table of operators.

An operator's implementation is a Python function on numpy values: tensors are positional (None for an omitted one),
attributes keyword-only with ONNX's defaults, and it returns an array or a tuple of outputs. It never writes to its
inputs. Two keywords are not attributes and are passed to the functions that declare them: ``outputs``, the number of
outputs of the node, and ``generator``, the node's own random stream.

Only the newest version of an operator is implemented: ``normalize`` upgrades older ones.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from sardonyx.ir.graph import Node
from sardonyx.records import Record

F = TypeVar("F", bound=Callable[..., Any])

FAMILIES = (
    "pointwise", "activation", "cast", "reduce", "topk", "movement", "create", "index", "matmul", "conv",
    "conv_transpose", "pool", "norm", "resize", "sample", "recurrent", "attention", "quantize", "signal", "random",
    "sequence", "text", "tokenizer", "tfidf", "vision", "loss", "training", "ml", "contrib", "recurrent_quantized",
)  # fmt: skip


CUSTOM = "custom"
"""The family of operators that users define."""
SUPPLIED = frozenset({"outputs", "generator"})


class Custom(Record):
    """Additional properties of a custom operator."""

    function: Callable[..., Any]
    """The user's function."""
    parts: tuple[Any, ...]
    """Everything that the operator's result depends on; its digest is part of cache keys."""
    check: Callable[[Node], None]
    """Raises InvalidGraph for an invalid node."""
    launch: Callable[..., Any] | None = None
    """The kernel and its arguments, for views of inputs and outputs."""


class Op(Record):
    """An operator: its numpy implementation and further properties."""

    domain: str
    name: str
    numpy: Callable[..., Any]
    attributes: frozenset[str]
    supplied: frozenset[str]
    """Which of ``SUPPLIED`` the function takes."""
    pure: bool = True
    """False if the result is not a function of the inputs: such nodes are not folded or merged."""
    custom: Custom | None = None


_OPS: dict[tuple[str, str], Op] = {}
_loaded = False


def op(name: str, *, domain: str = "", pure: bool = True) -> Callable[[F], F]:
    """Register the numpy implementation of an operator."""

    def register(fn: F) -> F:
        assert (domain, name) not in _OPS, f"{domain}.{name} has a meaning already"
        add(domain, name, fn, pure=pure)
        return fn

    return register


def add(domain: str, name: str, fn: Callable[..., Any], *, pure: bool = True, custom: Custom | None = None) -> None:
    """Add an implementation to the table, replacing an existing one."""
    keywords = {p.name for p in inspect.signature(fn).parameters.values() if p.kind is p.KEYWORD_ONLY}
    attributes, supplied = frozenset(keywords - SUPPLIED), frozenset(keywords & SUPPLIED)
    _OPS[domain, name] = Op(domain, name, fn, attributes, supplied, pure, custom)


def find(domain: str, name: str) -> Op | None:
    """The entry of an operator; None if it is not in the table."""
    global _loaded
    if not _loaded:
        for family in FAMILIES:
            importlib.import_module(f"sardonyx.ops.{family}")
        _loaded = True
    return _OPS.get((domain, name))


def family_of(found: Op) -> str | None:
    """The module that defines an operator, with whose import it is in the table; ``CUSTOM`` for a custom one."""
    package, _, module = found.numpy.__module__.rpartition(".")
    return CUSTOM if found.custom is not None else module if package == __package__ else None


def of_family(family: str, domain: str, name: str) -> Op:
    """The entry of an operator without importing other families."""
    if family != CUSTOM:
        importlib.import_module(f"sardonyx.ops.{family}")
    return _OPS[domain, name]


def every() -> list[Op]:
    find("", "")
    return list(_OPS.values())


def customs() -> list[Op]:
    """All custom operators."""
    return [op for op in list(_OPS.values()) if op.custom is not None]
