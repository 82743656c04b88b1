"""Attention with the whole score matrix in memory."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.groups import Attention
from sardonyx.lower.interpret.expression import wide
from sardonyx.lower.interpret.memory import Memory, meaning


@meaning(Attention)
def attention(memory: Memory, group: Attention) -> None:
    q, k, v = (wide(memory.at(x)) for x in (group.q, group.k, group.v))
    shared = q.shape[1] // max(k.shape[1], 1)
    k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
    scores = np.matmul(q, k.swapaxes(2, 3)) * np.float32(group.scale)
    if group.softcap:
        scores = np.tanh(scores / group.softcap) * group.softcap
    if group.mask is not None:
        mask = memory.at(group.mask)
        scores = scores + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
    if group.causal:
        rows, keys = scores.shape[2:]
        scores = np.where(np.arange(keys) > np.arange(rows)[:, None] + memory.size(group.past), -np.inf, scores)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = weights.sum(axis=-1, keepdims=True)
    target = memory.at(group.out)
    target[...] = np.matmul(weights / np.where(total == 0, 1, total), v).astype(target.dtype)
