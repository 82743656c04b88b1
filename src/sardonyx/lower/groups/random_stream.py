"""Streams of random numbers."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import Group, View


class RandomStream(Group):
    """Reserves ``count`` positions of a counter-based random stream; ``out`` gets the seed and the first position.

    ``stream`` is two i64 that outlive the run: the seed and the next position, which is advanced by ``count``
    atomically, so that concurrent runs get disjoint ranges.
    """

    stream: View
    count: Known
    out: View

    @property
    def reads(self) -> tuple[View, ...]:
        return (self.stream,)

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.out,)
