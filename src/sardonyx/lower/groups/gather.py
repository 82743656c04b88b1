"""Elements picked by indices."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.lower.groups.base import Group, View


@dataclass(frozen=True)
class Gather(Group):
    """out[o.., i.., n..] = data[o.., indices[i..], n..]; ``axis`` is that of data. Indices are checked."""

    data: View
    indices: View
    axis: int
    out: View

    @property
    def reads(self) -> tuple[View, ...]:
        return self.data, self.indices

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.out,)
