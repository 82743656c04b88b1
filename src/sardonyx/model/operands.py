"""Checks the types of a node's operands against onnx's schema: each must be allowed, and operands that share a type
variable must agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from onnx import defs

from sardonyx.errors import BrokenGraph
from sardonyx.ir.graph import Node
from sardonyx.ir.types import SparseTensorType, TensorType, ValueType, ort_name

_VARIADIC = defs.OpSchema.FormalParameterOption.Variadic


class Formal(NamedTuple):
    """One formal input; the last may stand for any number of inputs."""

    allowed: frozenset[str]
    variable: str | None
    """The type variable; None for an input whose type constrains no other."""


@lru_cache(maxsize=4096)
def formals_of(domain: str, op_type: str, version: int) -> tuple[tuple[Formal, ...], bool]:
    """The formal inputs of an operator at an opset, and whether the last one is variadic; empty if onnx lacks the
    operator.
    """
    try:
        schema = defs.get_schema(op_type, version, domain)
    except (defs.SchemaError, TypeError):
        return (), False
    variables = {c.type_param_str for c in schema.type_constraints}
    found = tuple(
        Formal(frozenset(f.types), f.type_str if f.type_str in variables and f.is_homogeneous else None)
        for f in schema.inputs
    )
    return found, bool(found) and schema.inputs[-1].option == _VARIADIC


def check_operands(
    operator: tuple[str, str, int], operands: Sequence[tuple[str, str]], *, node: str, where: str
) -> None:
    """Raise unless the operands, as pairs of name and type, fit ``operator``: domain, name, opset.

    A type is written as onnx does (``tensor(float)``); it is empty for an operand that is absent or of unknown type.
    """
    formals, is_variadic = formals_of(*operator)
    bound: dict[str, str] = {}
    for i, (name, given) in enumerate(operands):
        if not given or (i >= len(formals) and not is_variadic):
            continue
        formal = formals[min(i, len(formals) - 1)]
        if given not in formal.allowed:
            raise BrokenGraph(
                f"This is an invalid model. Type Error: Type '{given}' of input parameter ({name}) of operator "
                f"({operator[1]}) in node ({node}) is invalid.",
                where=where,
                expected=" or ".join(sorted(formal.allowed)),
            )
        if formal.variable is not None and bound.setdefault(formal.variable, given) != given:
            raise BrokenGraph(
                f"Type Error: Type parameter ({formal.variable}) of Optype ({operator[1]}) bound to different types "
                f"({bound[formal.variable]} and {given}) in node ({node}).",
                where=where,
                hint="insert a Cast in front of one of them",
            )


def check_types(node: Node, version: int) -> None:
    """Raise unless the known types of a node's inputs fit its operator at an opset."""
    operands = [("", "") if v is None else (v.name, _written(v.type)) for v in node.inputs]
    check_operands((node.domain, node.op_type, version), operands, node=node.name, where=node.label)


def _written(t: ValueType | None) -> str:
    """The type as onnx writes it. Sparse tensors count as dense: they are dense inside."""
    return ort_name(TensorType(t.dtype) if isinstance(t, SparseTensorType) else t)
