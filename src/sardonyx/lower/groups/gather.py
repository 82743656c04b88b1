"""Gather and scatter by index tensors."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import Group, View


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


class GatherElements(Group):
    """out[o.., i, n..] = data[o.., indices[o.., i, n..], n..]; ``axis`` is that of i. Indices are checked.

    Along the other axes, data may be longer than indices and out.
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


class Scatter(Group):
    """out = data; then, for every element of a box in row-major order, out[place + index * pitch] is updated.

    ``indices``, ``updates`` and ``places`` have the axes of the box. ``places`` is a view of the output with stride 0
    along the indexed axes. An index is checked against ``size``. Several updates of one element apply in order.
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
