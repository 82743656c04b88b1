"""Groups with as few axes as possible, the fastest axis of the result last."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.lower import views
from sardonyx.lower.fusion.nest import Nest
from sardonyx.lower.groups import Contraction, Group, Loop, View
from sardonyx.lower.sizes import Refused
from sardonyx.records import replace


def simplify(group: Group) -> Group:
    try:
        if isinstance(group, Loop):
            return _loop(group)
        if isinstance(group, Contraction):
            return _contraction(group)
    except Refused:
        return group
    return group


def _loop(loop: Loop) -> Loop:
    nest = Nest.of(loop)
    if not nest.reduced and nest.outputs:
        nest = nest.permuted(views.memory_order(nest.outputs[0]))
    kept = [i for i, d in enumerate(nest.extents) if d != 1]
    nest = nest.split([(i, nest.extents[i]) for i in kept] or [(len(nest.extents) - 1, 1)] if nest.extents else [])
    axis = len(nest.extents) - 2
    while axis >= 0:
        if axis + 1 != nest.outer and all(views.is_mergeable(v, axis) for v in (*nest.inputs, *nest.outputs)):
            nest = replace(
                nest,
                extents=views.merged(nest.outputs[0], axis).shape,
                reduced=nest.reduced - (axis >= nest.outer),
                inputs=tuple(views.merged(v, axis) for v in nest.inputs),
                outputs=tuple(views.merged(v, axis) for v in nest.outputs),
            )
        axis -= 1
    return replace(
        loop, extents=nest.extents, reduced=nest.reduced, inputs=nest.inputs, outputs=nest.stored()
    )  # fmt: skip


def _contraction(group: Contraction) -> Contraction:
    """Merge the batch axes that are mergeable in every view."""
    for axis in reversed(range(len(group.batch))):
        all_views = (group.a, group.b, *group.extra, *group.outputs)
        if group.batch[axis] == 1:
            group = _rebatched(group, axis, views.selected)
        elif axis + 1 < len(group.batch) and all(views.is_mergeable(v, axis) for v in all_views):
            group = _rebatched(group, axis, views.merged)
    return group


def _rebatched(group: Contraction, axis: int, change: Callable[[View, int], View]) -> Contraction:
    outputs = tuple(change(v, axis) for v in group.outputs)
    return replace(
        group,
        batch=outputs[0].shape[:-2],
        a=change(group.a, axis),
        b=change(group.b, axis),
        extra=tuple(change(v, axis) for v in group.extra),
        outputs=outputs,
    )
