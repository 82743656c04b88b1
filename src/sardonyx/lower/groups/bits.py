"""The same bits as another type."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.lower.groups.base import Group, View


@dataclass(frozen=True)
class Bits(Group):
    """The elements of ``x``, bit by bit, in ``out``, whose type is as wide."""

    x: View
    out: View

    @property
    def reads(self) -> tuple[View, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.out,)
