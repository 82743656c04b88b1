"""What goes along an axis in order, and what orders it."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import Group, View


@dataclass(frozen=True)
class Accumulate(Group):
    """Sums or products of all elements up to each one along an axis, or, ``exclusive``, before it.

    Floats narrower than 32 bits are accumulated in f32, other types in their own.
    """

    x: View
    out: View
    axis: int
    kind: str
    """``sum`` or ``prod``."""
    exclusive: bool

    @property
    def reads(self) -> tuple[View, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.out,)


@dataclass(frozen=True)
class Best(Group):
    """The ``count`` largest or smallest along the last axis and their indices, the best first.

    Equal ones come in the order of their indices. NaN is larger than any number.
    """

    x: View
    values: View
    indices: View
    count: Known
    largest: bool

    @property
    def reads(self) -> tuple[View, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[View, ...]:
        return self.values, self.indices
