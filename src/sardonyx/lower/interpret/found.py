"""Results as long as the data make them."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.groups import Distinct, Find, Keep, Suppress, View
from sardonyx.lower.interpret.gather import checked
from sardonyx.lower.interpret.memory import Array, Memory, meaning
from sardonyx.ops.topk import unique
from sardonyx.ops.vision import non_max_suppression


def _put(memory: Memory, place: View, count: View, found: Array, length: int) -> None:
    memory.at(place)[: found.size] = found.reshape(-1)
    memory.at(count)[...] = length


@meaning(Find)
def find(memory: Memory, group: Find) -> None:
    mask = memory.at(group.mask).reshape([memory.size(d) for d in group.shape])
    found = np.array(np.nonzero(mask), np.int64)
    _put(memory, group.out, group.count, found, found.shape[1])


@meaning(Keep)
def keep(memory: Memory, group: Keep) -> None:
    x = memory.at(group.x)
    chosen = checked(group, memory.at(group.chosen)[: int(memory.at(group.count))], x.shape[1])
    kept = np.take(x, chosen, 1)
    memory.at(group.out)[: kept.size] = kept.reshape(-1)


@meaning(Distinct)
def distinct(memory: Memory, group: Distinct) -> None:
    _, first, inverse, counts = unique(memory.at(group.x), axis=0, sorted=int(group.is_sorted))
    _put(memory, group.first, group.count, first, first.size)
    _put(memory, group.counts, group.count, counts, first.size)
    memory.at(group.inverse)[...] = inverse


@meaning(Suppress)
def suppress(memory: Memory, group: Suppress) -> None:
    found = non_max_suppression(
        memory.at(group.boxes),
        memory.at(group.scores),
        np.asarray(memory.size(group.most)),
        memory.at(group.overlap),
        None if group.least is None else memory.at(group.least),
        center_point_box=int(group.is_centered),
    )
    _put(memory, group.out, group.count, found, len(found))
