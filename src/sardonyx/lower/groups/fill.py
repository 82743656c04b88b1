"""Integers that follow from the shapes."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import Group, View


class Fill(Group):
    """``values`` in order, or, with ``start`` and ``step``, start + i * step; converted to the element type."""

    out: View
    values: tuple[Known, ...] = ()
    start: Known | None = None
    step: Known | None = None

    @property
    def reads(self) -> tuple[View, ...]:
        return ()

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.out,)
