"""Storages placed inside others.

An operand of a Concat that has other readers would be written twice: to its own storage and to the result of the
Concat. If its elements are contiguous in the result (channels of a single image), it is written only there, and its
readers read it there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import EpilogueGroup, Expression, Group, IndirectStorage, Loop, Storage, View
from sardonyx.records import replace


def placed_inside(groups: Sequence[Group], kept: Collection[Storage] = ()) -> list[Group]:
    """The groups, with each storage whose elements are also written or copied to a part of another storage placed
    there.

    ``kept`` are storages that stay as they are.
    """
    made = list(groups)
    i = 0
    while i < len(made):
        for inner, outer in list(_pairs(made[i])):
            if inner.storage in kept or not _is_free(made, i, inner, outer):
                continue
            touched = [n for n, g in enumerate(made) if any(v.storage is inner.storage for v in (*g.reads, *g.writes))]
            rewritten = {n: _moved(made[n], inner.storage, outer) for n in touched}
            if not any(v.storage is inner.storage for g in rewritten.values() for v in (*g.reads, *g.writes)):
                for n, group in rewritten.items():
                    made[n] = group
        if _is_idle(made[i]):
            del made[i]
        else:
            i += 1
    return made


def _pairs(group: Group) -> Iterator[tuple[View, View]]:
    """Pairs of views to which a group writes the same values, or from which to which it copies them: a whole storage,
    and a part of another with the same strides.
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
    """Whether a group copies elements to where they are."""
    return isinstance(group, Loop) and group.is_copy and group.outputs == group.inputs


def _expression(group: EpilogueGroup | Loop) -> Expression:
    return group.epilogue if isinstance(group, EpilogueGroup) else group.expression


def _strides(view: View) -> list[Known]:
    return [s for d, s in zip(view.shape, view.strides, strict=True) if d != 1]


def _is_free(groups: Sequence[Group], i: int, inner: View, outer: View) -> bool:
    """Whether nothing is written to ``inner`` after group ``i``, and only that group writes to ``outer``."""
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
    """Whether one view provably ends before the other begins."""
    if not all(dims.at_least(s, 0) for v in (a, b) for s in v.strides):
        return False
    return any(dims.at_least(dims.sub(two.offset, _end(one)), 0) for one, two in ((a, b), (b, a)))


def _end(view: View) -> dims.Dim:
    """The index after the last element."""
    reach = (dims.mul(dims.sub(d, 1), s) for d, s in zip(view.shape, view.strides, strict=True))
    return dims.add(dims.total((view.offset, *reach)), 1)


def _moved(group: Group, inner: Storage, outer: View) -> Group:
    """A group with the storage ``inner`` placed at ``outer``; if it wrote both, it writes only ``outer``."""
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
