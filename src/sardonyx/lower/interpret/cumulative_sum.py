"""Cumulative sums and products."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.groups import CumulativeSum
from sardonyx.lower.interpret.expression import wide
from sardonyx.lower.interpret.memory import Memory, meaning


@meaning(CumulativeSum)
def cumulative_sum(memory: Memory, group: CumulativeSum) -> None:
    x, out, axis = wide(memory.at(group.x)), memory.at(group.out), group.axis
    accumulate = np.cumsum if group.kind == "sum" else np.cumprod
    if group.exclusive:
        first = np.full_like(np.take(x, [0], axis) if x.shape[axis] else x, group.kind == "prod")
        x = np.concatenate([first, np.take(x, range(x.shape[axis] - 1), axis)], axis) if x.shape[axis] else x
    out[...] = accumulate(x, axis=axis, dtype=x.dtype).astype(out.dtype)
