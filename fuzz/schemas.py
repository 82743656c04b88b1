"""Operators, versions and types, from onnx's schemas."""

from __future__ import annotations

import functools
from typing import Any

import onnx.defs

from fuzz.draws import Draw, numpy_type

Key = tuple[str, str]
USUAL = tuple(f"tensor({t})" for t in ("float", "float16", "double", "int64", "int32", "uint8", "int8", "bool"))


@functools.cache
def every() -> tuple[Key, ...]:
    """Domain and name of every operator that onnx knows, in a fixed order."""
    return tuple(sorted({(s.domain, s.name) for s in onnx.defs.get_all_schemas()}))


@functools.cache
def _histories() -> dict[Key, tuple[int, ...]]:
    found: dict[Key, set[int]] = {}
    for s in onnx.defs.get_all_schemas_with_history():
        found.setdefault((s.domain, s.name), set()).add(s.since_version)
    return {key: tuple(sorted(numbers)) for key, numbers in found.items()}


def versions(key: Key) -> tuple[int, ...]:
    """The opsets in which an operator was defined anew, newest last."""
    return _histories()[key]


@functools.cache
def schema(key: Key, version: int | None = None) -> Any:
    domain, name = key
    return onnx.defs.get_schema(name, version, domain) if version else onnx.defs.get_schema(name, domain)


def newest_opset(domain: str) -> int:
    return {"": onnx.defs.onnx_opset_version(), "ai.onnx.ml": 5}.get(domain, 1)


def types_of(key: Key, version: int, position: int) -> list[str]:
    """What the operand at a position may be."""
    s = schema(key, version)
    if not s.inputs:
        return []
    formal = s.inputs[min(position, len(s.inputs) - 1)]
    return sorted(formal.types)


def constraint_of(key: Key, version: int, position: int) -> str:
    """The name of the type variable of an operand, ``T``; operands of one name have one type."""
    s = schema(key, version)
    return str(s.inputs[min(position, len(s.inputs) - 1)].type_str) if s.inputs else ""


def a_type(draw: Draw, types: list[str]) -> Any:
    """One numpy type of those that a schema allows, the usual ones more often; None where none is a tensor's."""
    known = [t for t in types if numpy_type(t) is not None]
    if not known:
        return None
    usual = [t for t in USUAL if t in known]
    floats = [t for t in usual if t == "tensor(float)"]
    roll = draw.rng.random()
    pool = floats if floats and roll < 0.5 else usual if usual and roll < 0.85 else known
    return numpy_type(draw.one(pool))
