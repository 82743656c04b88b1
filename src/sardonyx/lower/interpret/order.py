"""What goes along an axis in order."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.groups import Accumulate, Best
from sardonyx.lower.interpret.expression import wide
from sardonyx.lower.interpret.memory import Memory, meaning
from sardonyx.ops.topk import top_k


@meaning(Accumulate)
def accumulate(memory: Memory, group: Accumulate) -> None:
    x, out, axis = wide(memory.at(group.x)), memory.at(group.out), group.axis
    fold = np.cumsum if group.kind == "sum" else np.cumprod
    if group.exclusive:
        first = np.full_like(np.take(x, [0], axis) if x.shape[axis] else x, group.kind == "prod")
        x = np.concatenate([first, np.take(x, range(x.shape[axis] - 1), axis)], axis) if x.shape[axis] else x
    out[...] = fold(x, axis=axis, dtype=x.dtype).astype(out.dtype)


@meaning(Best)
def best(memory: Memory, group: Best) -> None:
    count = np.asarray(memory.size(group.count))
    values, indices = top_k(memory.at(group.x), count, largest=int(group.largest))
    memory.at(group.values)[...], memory.at(group.indices)[...] = values, indices
