"""Types of a node's operands against onnx's schema: each is one of those allowed, and operands that share a type do."""

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
    """One input, or all that a last one stands for."""

    allowed: frozenset[str]
    variable: str | None
    """Inputs of one variable are of one type; None for an input whose type binds no other."""


@lru_cache(maxsize=4096)
def formals_of(domain: str, op_type: str, version: int) -> tuple[tuple[Formal, ...], bool]:
    """The inputs of an operator at an opset, and whether the last one stands for any number; none that onnx lacks."""
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
    """Raise unless operands, as pairs of name and type, fit ``operator``: domain, name, opset.

    A type is written as onnx does (``tensor(float)``); that of an operand that is absent, or of which nothing is known,
    is empty.
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
    """Raise unless the types of a node's inputs, as far as they are known, fit its operator at an opset."""
    operands = [("", "") if v is None else (v.name, _written(v.type)) for v in node.inputs]
    check_operands((node.domain, node.op_type, version), operands, node=node.name, where=node.label)


def _written(t: ValueType | None) -> str:
    """Sparse tensors go where dense ones do: they are dense inside."""
    return ort_name(TensorType(t.dtype) if isinstance(t, SparseTensorType) else t)
