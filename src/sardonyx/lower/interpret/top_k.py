"""The k largest or smallest elements of each row."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.groups import TopK
from sardonyx.lower.interpret.memory import Memory, meaning
from sardonyx.ops import topk


@meaning(TopK)
def top_k(memory: Memory, group: TopK) -> None:
    k = np.asarray(memory.size(group.k))
    values, indices = topk.top_k(memory.at(group.x), k, largest=int(group.largest))
    memory.at(group.values)[...], memory.at(group.indices)[...] = values, indices
