"""Arithmetic on symbolic sizes that raises ``Refused`` instead of returning None."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sardonyx.ir import dims
from sardonyx.ir.dims import Dim, Expr, Known
from sardonyx.ir.graph import Value
from sardonyx.ir.types import ort_name


class Refused(Exception):
    """A node or part cannot be lowered, for the reason given."""


def only_tensors(value: Value) -> str:
    """Why a value that is no tensor is refused."""
    if value.type is None:
        return f"the type of {value.name!r} is not known"
    return f"{value.name!r} is of type {ort_name(value.type)}, and only tensors are compiled"


class DataDependent(Refused):
    """Lowering needs what only a run tells: a rank, or the elements of an operand."""


def _required(fn: Callable[[Dim, Dim], Known | None]) -> Callable[[Known, Known], Known]:
    def apply(a: Known, b: Known) -> Known:
        return expressible(fn(a, b))

    return apply


def expressible(size: Known | None) -> Known:
    """The size; refused if it is None, which ``dims`` gives for expressions of too many terms."""
    if size is None:
        raise Refused("a size is an expression of too many terms")
    return size


add, sub, mul = _required(dims.add), _required(dims.sub), _required(dims.mul)
minimum, maximum = _required(dims.minimum), _required(dims.maximum)


def product(sizes: Iterable[Known]) -> Known:
    return expressible(dims.product(sizes))


def total(sizes: Iterable[Known]) -> Known:
    return expressible(dims.total(sizes))


def broadcast_factor(size: Known, box: Known) -> Known:
    """The factor of an axis' stride when it is broadcast to ``box``: 1, or 0 if it is one element that is repeated.

    If only a run tells which, an expression of the size.
    """
    if size == box:
        return 1
    if size == 1:
        return 0
    if dims.at_least(size, 2) or _is_capped(size, box) or _is_box_or_one(size, box):
        return 1
    return minimum(sub(size, 1), 1)


def _is_box_or_one(size: Known, box: Known) -> bool:
    """Whether a size is max(box, 1): where the two differ, nothing is read."""
    return isinstance(size, Expr) and isinstance(box, Expr) and dims.raised_to(size, box) == 1


def _is_capped(size: Known, box: Known) -> bool:
    """Whether a size is min(n, box) with n >= 2: then it is 1 only if the box is."""
    if not isinstance(size, Expr) or len(size.terms) != 1:
        return False
    ((atoms, factor),) = size.terms.items()
    if factor != 1 or len(atoms) != 1 or atoms[0].fn != "min":
        return False
    return box in atoms[0].args and all(arg == box or dims.at_least(arg, 2) for arg in atoms[0].args)
