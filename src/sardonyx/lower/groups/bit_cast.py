"""The same bits as another type."""

from __future__ import annotations

from sardonyx.lower.groups.base import Group, View


class BitCast(Group):
    """The bits of each element of ``x`` as an element of ``out``, whose type has the same width."""

    x: View
    out: View

    @property
    def reads(self) -> tuple[View, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.out,)
