"""Numbers that are drawn from a stream."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import Group, View


@dataclass(frozen=True)
class Draw(Group):
    """Take ``count`` numbers from a stream: ``out`` gets its seed and the number of the first, as two i64.

    ``stream`` is memory that outlives the run: the seed, and the number of the next draw, which grows by ``count``.
    Runs at one time draw different numbers.
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
