"""Interpolation at positions given by data, tap by tap."""

from __future__ import annotations

from itertools import product

import numpy as np

from sardonyx.lower.groups import GridSample
from sardonyx.lower.interpret.expression import finish, wide
from sardonyx.lower.interpret.memory import Memory, meaning


@meaning(GridSample)
def grid_sample(memory: Memory, group: GridSample) -> None:
    x = wide(memory.at(group.x)).astype(group.epilogue.operands[0].numpy)
    indices, weights = ([memory.at(v) for v in seen] for seen in (group.indices, group.weights))
    batch = np.arange(x.shape[0])[:, None]
    total = np.zeros(tuple(map(memory.size, group.box)), x.dtype)
    for taps in product(*(range(len(i)) for i in indices)):
        places = [i[t] for i, t in zip(indices, taps, strict=True)]
        assert all(i.min(initial=0) >= -1 and i.max(initial=-1) < n for i, n in zip(places, x.shape[2:], strict=True))
        inside = np.logical_and.reduce([i >= 0 for i in places])
        at = (batch, *places)
        seen = np.moveaxis(np.moveaxis(x, 1, -1)[at], 2, 1)
        for w, t in zip(weights, taps, strict=False):
            seen = seen * w[t][:, None]
        total = total + np.where(inside[:, None], seen, 0) if weights else np.where(inside[:, None], seen, 0)
    finish(memory, group, total)
