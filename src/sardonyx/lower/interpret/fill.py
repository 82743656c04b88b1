"""Fills and bit casts."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.groups import BitCast, Fill
from sardonyx.lower.interpret.memory import Memory, meaning


@meaning(Fill)
def fill(memory: Memory, group: Fill) -> None:
    target = memory.at(group.out)
    if group.start is not None and group.step is not None:
        numbers = memory.size(group.start) + np.arange(target.size) * memory.size(group.step)
    else:
        numbers = np.asarray([memory.size(d) for d in group.values])
    target[...] = numbers.reshape(target.shape).astype(target.dtype)


@meaning(BitCast)
def bit_cast(memory: Memory, group: BitCast) -> None:
    out = memory.at(group.out)
    out[...] = np.ascontiguousarray(memory.at(group.x)).view(out.dtype)
