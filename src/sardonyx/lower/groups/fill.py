"""Numbers that follow from sizes."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import Group, View


@dataclass(frozen=True)
class Fill(Group):
    """Elements that follow from the shapes: ``values`` in order, or, for a range, start + i * step.

    They are whole numbers, whatever the type of the elements.
    """

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
