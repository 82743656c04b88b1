"""Memory that is a part of other memory.

What is joined with others, and read by itself too, would be written twice. Where all of some memory lies in the joined
one without gaps (channels, for a batch of one image), it is made there alone, and who reads it reads it there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import EpilogueGroup, Expression, Group, IndirectStorage, Loop, Storage, View


def placed_inside(groups: Sequence[Group], kept: Collection[Storage] = ()) -> list[Group]:
    """The groups, in order, without memory that is also written, or copied, to other memory as a part of it.

    ``kept`` are storages that stay as they are.
    """
    made = list(groups)
    i = 0
    while i < len(made):
        for inner, outer in list(_pairs(made[i])):
            if inner.storage in kept or not _is_free(made, i, inner, outer):
                continue
            touched = [n for n, g in enumerate(made) if any(v.storage is inner.storage for v in (*g.reads, *g.writes))]
            moved = {n: _moved(made[n], inner.storage, outer) for n in touched}
            if not any(v.storage is inner.storage for g in moved.values() for v in (*g.reads, *g.writes)):
                for n, group in moved.items():
                    made[n] = group
        if _is_idle(made[i]):
            del made[i]
        else:
            i += 1
    return made


def _pairs(group: Group) -> Iterator[tuple[View, View]]:
    """Two views with the same elements once a group is done: all of a storage, and some that follow each other
    likewise.
    """
    if not isinstance(group, (EpilogueGroup, Loop)):
        return
    stored = list(zip(_expression(group).results, group.outputs, strict=True))
    if isinstance(group, Loop) and group.is_copy:
        stored += enumerate(group.inputs)
    for result, inner in stored:
        for other, outer in stored[: len(group.outputs)]:
            is_alike = inner.shape == outer.shape and inner.dtype is outer.dtype and _strides(inner) == _strides(outer)
            if result == other and inner.storage is not outer.storage and is_alike and views.is_whole(inner):
                yield inner, outer


def _is_idle(group: Group) -> bool:
    """Whether a group copies what is there already."""
    return isinstance(group, Loop) and group.is_copy and group.outputs == group.inputs


def _expression(group: EpilogueGroup | Loop) -> Expression:
    return group.epilogue if isinstance(group, EpilogueGroup) else group.expression


def _strides(view: View) -> list[Known]:
    return [s for d, s in zip(view.shape, view.strides, strict=True) if d != 1]


def _is_free(groups: Sequence[Group], i: int, inner: View, outer: View) -> bool:
    """Whether, once the group at ``i`` is done, nothing is written to the one; and to its place in the other nothing
    else ever is.
    """
    if inner.storage.kind != "temporary" or outer.storage.kind != "temporary":
        return False
    if any(
        isinstance(v.storage, IndirectStorage) and outer.storage in v.storage.backing for g in groups for v in g.writes
    ):
        return False  # iterations write to it through a pointer
    is_final = not any(v.storage is inner.storage for g in groups[i + 1 :] for v in g.writes)
    others = (v for j, g in enumerate(groups) for v in g.writes if j != i or v is not outer)
    return is_final and all(_is_apart(outer, v) for v in others if v.storage is outer.storage)


def _is_apart(a: View, b: View) -> bool:
    """Whether one view is certain to end before the other begins."""
    if not all(dims.at_least(s, 0) for v in (a, b) for s in v.strides):
        return False
    return any(dims.at_least(dims.sub(two.offset, _end(one)), 0) for one, two in ((a, b), (b, a)))


def _end(view: View) -> dims.Dim:
    """The element behind the last."""
    reach = (dims.mul(dims.sub(d, 1), s) for d, s in zip(view.shape, view.strides, strict=True))
    return dims.add(dims.total((view.offset, *reach)), 1)


def _moved(group: Group, inner: Storage, outer: View) -> Group:
    """With a storage in its place inside another, to which nothing is written twice."""
    if isinstance(group, (EpilogueGroup, Loop)) and any(v is outer for v in group.outputs):
        expression = _expression(group)
        stored = [(r, v) for r, v in zip(expression.results, group.outputs, strict=True) if v.storage is not inner]
        made, outputs = replace(expression, results=tuple(r for r, _ in stored)), tuple(v for _, v in stored)
        if isinstance(group, EpilogueGroup):
            group = replace(group, epilogue=made, outputs=outputs)
        else:
            group = replace(group, expression=made, outputs=outputs)
    return group.with_views(lambda v: _inside(v, outer) if v.storage is inner else v)


def _inside(view: View, outer: View) -> View:
    offset = dims.known(dims.add(view.offset, outer.offset))
    return view if offset is None else replace(view, storage=outer.storage, offset=offset)
