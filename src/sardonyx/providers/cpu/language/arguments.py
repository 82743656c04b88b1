"""Groups of run-time parameters, as records that steps and kernels share.

    class MatrixArgs(Arguments[M, N]):
        memory: M = field(metadata=named("{}"))
        row: N
        batch: tuple[N, ...]

One class has three uses. A kernel declares its parameters with an instance of types, ``MatrixArgs[Memory, DType]``. A
step gives arguments with an instance of references and sizes. The kernel's body receives an instance of ``Buf`` and
``Val``. The argument block is flat, so each leaf has a name: that of the parameter and that of the field, such as
``a_row``; elements of a tuple are numbered, such as ``a_batch0``. ``named`` gives a field another name, in which
``{}`` stands for the parameter's. None is a parameter that a kernel does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from functools import lru_cache
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from sardonyx.dtypes import DType
from sardonyx.records import Record

M = TypeVar("M")
"""What stands for memory: ``Memory`` in a declaration, a reference in a step, ``Buf`` in a kernel."""
N = TypeVar("N")
"""What stands for a number: a type in a declaration, a size in a step, ``Val`` in a kernel."""


class Memory(NamedTuple):
    """The declaration of a memory parameter whose elements are of this type."""

    dtype: DType


class Arguments(Record, Generic[M, N]):
    """The base of records whose fields are run-time parameters, tuples of them, or other such records."""

    is_inline: ClassVar[bool] = False
    """Fields are named without the name of the parameter that holds them."""


def named(name: str) -> dict[str, str]:
    """The metadata that names a field's parameter in the argument block ``name``.

    ``{}`` in it stands for the name of the parameter that the record itself is.
    """
    return {"name": name}


def flat(**given: Any) -> dict[str, Any]:
    """Parameters, each by the name that it has in the argument block, in order."""
    leaves: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, Arguments):
            _put(leaves, name, value)
        else:
            leaves[name] = value
    return leaves


def rebuilt(declared: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """``declared``, with each type replaced by the value of that name in ``values`` (``flat``)."""
    return {name: _filled(name, value, values) for name, value in declared.items()}


def _put(leaves: dict[str, Any], name: str, value: Any) -> None:
    """Add the leaves of a field."""
    if isinstance(value, Arguments):
        kind: Any = type(value)
        for member, attribute in _members(kind, name):
            _put(leaves, member, getattr(value, attribute))
    elif _is_group(value):
        for i, element in enumerate(value):
            _put(leaves, _numbered(name, i), element)
    elif value is not None:
        leaves[name] = value


def _filled(name: str, declared: Any, values: Mapping[str, Any]) -> Any:
    if not isinstance(declared, Arguments):
        return values[name]
    kind: Any = type(declared)
    members = _members(kind, name)
    parts = (_filled_tuple(member, getattr(declared, attribute), values) for member, attribute in members)
    return kind(*parts)


def _filled_tuple(name: str, declared: Any, values: Mapping[str, Any]) -> Any:
    if _is_group(declared):
        return tuple(_filled_tuple(_numbered(name, i), element, values) for i, element in enumerate(declared))
    return None if declared is None else _filled(name, declared, values)


def _is_group(value: Any) -> bool:
    return isinstance(value, tuple) and not isinstance(value, Memory)


@lru_cache(1 << 12)
def _members(arguments: Any, name: str) -> tuple[tuple[str, str], ...]:
    """The names of the parameters of a record of this class that is called ``name``, and its attributes."""
    return tuple((_member_name(name, f, is_inline=arguments.is_inline), f.name) for f in fields(arguments))


def _member_name(owner: str, member: Field[Any], *, is_inline: bool) -> str:
    default = member.name if is_inline else f"{{}}_{member.name}"
    name: str = member.metadata.get("name", default)
    return name.format(owner)


def _numbered(name: str, i: int) -> str:
    return f"{name}_{i}" if name[-1:].isdigit() else f"{name}{i}"
