"""Weighted sums along axes, one axis after the other."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.groups import PolyphaseFilter, Resample, TapTable
from sardonyx.lower.interpret.expression import finish, wide
from sardonyx.lower.interpret.memory import Array, Memory, meaning


@meaning(Resample)
def resample(memory: Memory, group: Resample) -> None:
    x = wide(memory.at(group.x))
    if group.is_weighted:
        x = x.astype(group.epilogue.operands[0].numpy)
    for axis, along in group.along:
        x = _phases(x, axis, along) if isinstance(along, PolyphaseFilter) else _table(memory, x, axis, along)
    finish(memory, group, x)


def _table(memory: Memory, x: Array, axis: int, along: TapTable) -> Array:
    firsts, taps, size = memory.at(along.firsts), memory.size(along.taps), x.shape[axis]
    assert not firsts.size or 1 - taps <= firsts.min() <= firsts.max() < size
    indices = np.clip(firsts + np.arange(taps)[:, None], 0, size - 1)
    return _summed(x, axis, indices, None if along.weights is None else memory.at(along.weights))


def _phases(x: Array, axis: int, along: PolyphaseFilter) -> Array:
    place, phase = np.divmod(np.arange(x.shape[axis] * along.factor), along.factor)
    indices = place + np.asarray(along.firsts)[phase] + np.arange(along.taps)[:, None]
    weights = None if along.weights is None else np.asarray(along.weights)[phase].T
    return _summed(x, axis, np.clip(indices, 0, x.shape[axis] - 1), weights)


def _summed(x: Array, axis: int, indices: Array, weights: Array | None) -> Array:
    if weights is None:
        return np.asarray(np.take(x, indices[0], axis))
    column = (-1,) + (1,) * (x.ndim - axis - 1)
    parts = zip(indices, weights.astype(x.dtype), strict=True)
    return np.asarray(sum(np.take(x, i, axis) * w.reshape(column) for i, w in parts))
