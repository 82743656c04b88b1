"""Elements picked by indices, and put where indices say."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.ir.dims import Known
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


@dataclass(frozen=True)
class Pick(Group):
    """out[o.., i, n..] = data[o.., indices[o.., i, n..], n..]; ``axis`` is that of i. Indices are checked.

    Beside the axis, data may be longer than indices and result.
    """

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


@dataclass(frozen=True)
class Scatter(Group):
    """out = data, and then, for every element of a box in order, out[place + index] = update, or combined with it.

    ``indices``, ``updates`` and ``places`` have the axes of the box. ``places`` is a view of the result's memory that
    stands still along the axes that the indices stand for; an index moves it by ``pitch`` elements, and is checked to
    be one of ``size``. Updates of one element are applied in the row-major order of the box.
    """

    data: View
    out: View
    indices: View
    updates: View
    places: View
    size: Known
    pitch: Known
    reduction: str
    """``none``, ``add``, ``mul``, ``max`` or ``min``."""

    @property
    def reads(self) -> tuple[View, ...]:
        return self.data, self.indices, self.updates

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.out,)
