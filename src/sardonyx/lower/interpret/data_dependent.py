"""Groups whose output size depends on the data."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.groups import CountedGather, NonMaxSuppression, NonZero, Unique, View
from sardonyx.lower.interpret.gather import checked
from sardonyx.lower.interpret.memory import Array, Memory, meaning
from sardonyx.ops import topk, vision


def _put(memory: Memory, place: View, count: View, found: Array, length: int) -> None:
    memory.at(place)[: found.size] = found.reshape(-1)
    memory.at(count)[...] = length


@meaning(NonZero)
def nonzero(memory: Memory, group: NonZero) -> None:
    mask = memory.at(group.mask).reshape([memory.size(d) for d in group.shape])
    found = np.array(np.nonzero(mask), np.int64)
    _put(memory, group.out, group.count, found, found.shape[1])


@meaning(CountedGather)
def counted_gather(memory: Memory, group: CountedGather) -> None:
    x = memory.at(group.x)
    indices = checked(group, memory.at(group.indices)[: int(memory.at(group.count))], x.shape[1])
    kept = np.take(x, indices, 1)
    memory.at(group.out)[: kept.size] = kept.reshape(-1)


@meaning(Unique)
def unique(memory: Memory, group: Unique) -> None:
    _, first, inverse, counts = topk.unique(memory.at(group.x), axis=0, sorted=int(group.is_sorted))
    _put(memory, group.first, group.count, first, first.size)
    _put(memory, group.counts, group.count, counts, first.size)
    memory.at(group.inverse)[...] = inverse


@meaning(NonMaxSuppression)
def non_max_suppression(memory: Memory, group: NonMaxSuppression) -> None:
    found = vision.non_max_suppression(
        memory.at(group.boxes),
        memory.at(group.scores),
        np.asarray(memory.size(group.max_per_class)),
        memory.at(group.iou_threshold),
        None if group.score_threshold is None else memory.at(group.score_threshold),
        center_point_box=int(group.is_centered),
    )
    _put(memory, group.out, group.count, found, len(found))
