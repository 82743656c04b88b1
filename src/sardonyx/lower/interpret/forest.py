"""Forests, row by row and tree by tree."""

from __future__ import annotations

import operator

import numpy as np

from sardonyx.lower.groups import Forest
from sardonyx.lower.interpret.memory import Memory, meaning


@meaning(Forest)
def forest(memory: Memory, group: Forest) -> None:
    x, out = memory.at(group.x), memory.at(group.out)
    roots, features, splits, children, weights = (
        memory.at(v) for v in (group.roots, group.features, group.splits, group.children, group.weights)
    )
    tracks = None if group.tracks is None else memory.at(group.tracks)
    compare = getattr(operator, group.mode)
    for row, result in zip(x, out, strict=True):
        reached = []
        for at in roots:
            while at >= len(weights):
                value = row[features[at]]
                holds = compare(value, splits[at]) or (tracks is not None and value != value and tracks[at])
                at = children[at, int(holds)]
            reached.append(weights[at])
        combine = {"min": np.min, "max": np.max}.get(group.combine, np.sum)
        result[...] = combine(np.array(reached, out.dtype), axis=0)
        if group.combine == "mean":
            result /= out.dtype.type(len(roots))
