"""The k largest or smallest elements of each row."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import Group, View


class TopK(Group):
    """The ``k`` largest or smallest elements along the last axis and their indices, in sorted order.

    Equal elements are ordered by index. NaN is larger than any number.
    """

    x: View
    values: View
    indices: View
    k: Known
    largest: bool

    @property
    def reads(self) -> tuple[View, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[View, ...]:
        return self.values, self.indices
