"""Arithmetic on sizes that must be known, and the reason that is given where one is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sardonyx.ir import dims
from sardonyx.ir.dims import Dim, Expr, Known


class Refused(Exception):
    """Why something cannot be lowered."""


class Later(Refused):
    """What a run must tell before something can be lowered: a rank, or the elements of an operand."""


def _certain(fn: Callable[[Dim, Dim], Known | None]) -> Callable[[Known, Known], Known]:
    def apply(a: Known, b: Known) -> Known:
        return certain(fn(a, b))

    return apply


def certain(size: Known | None) -> Known:
    if size is None:
        raise Refused("a size is too long an expression to follow")
    return size


add, sub, mul = _certain(dims.add), _certain(dims.sub), _certain(dims.mul)
minimum, maximum = _certain(dims.minimum), _certain(dims.maximum)


def product(sizes: Iterable[Known]) -> Known:
    return certain(dims.product(sizes))


def total(sizes: Iterable[Known]) -> Known:
    return certain(dims.total(sizes))


def stretch(size: Known, box: Known) -> Known:
    """1 where an axis of this size lies in a box as it is, 0 where it is one element that is repeated.

    For a size that only a run tells, an expression of it.
    """
    if size == box:
        return 1
    if size == 1:
        return 0
    if dims.at_least(size, 2) or _is_capped(size, box):
        return 1
    return minimum(sub(size, 1), 1)


def _is_capped(size: Known, box: Known) -> bool:
    """Whether a size is min(n, box) with n of at least 2: it is 1 only where the box is."""
    if not isinstance(size, Expr) or len(size.terms) != 1:
        return False
    ((atoms, factor),) = size.terms.items()
    if factor != 1 or len(atoms) != 1 or atoms[0].fn != "min":
        return False
    return box in atoms[0].args and all(arg == box or dims.at_least(arg, 2) for arg in atoms[0].args)
