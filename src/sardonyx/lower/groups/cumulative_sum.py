"""Cumulative sums and products."""

from __future__ import annotations

from sardonyx.lower.groups.base import Group, View


class CumulativeSum(Group):
    """Inclusive prefix sums or products along an axis; ``exclusive`` leaves each element out of its own prefix.

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
