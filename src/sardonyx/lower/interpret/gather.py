"""Elements picked by indices."""

from __future__ import annotations

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.lower.groups import Gather
from sardonyx.lower.interpret.memory import Memory, meaning


@meaning(Gather)
def gather(memory: Memory, group: Gather) -> None:
    data, indices = memory.at(group.data), memory.at(group.indices)
    count = data.shape[group.axis]
    if indices.size and not -count <= indices.min() <= indices.max() < count:
        raise InvalidArgument("Gather: an index is out of range", where=group.nodes[0].label, expected=count)
    memory.at(group.out)[...] = np.take(data, np.where(indices < 0, indices + count, indices), axis=group.axis)
