"""Linear attention, token by token."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.groups import LinearAttention
from sardonyx.lower.interpret.expression import wide
from sardonyx.lower.interpret.memory import Memory, meaning


@meaning(LinearAttention)
def linear_attention(memory: Memory, group: LinearAttention) -> None:
    q, k, v = (wide(memory.at(x)) for x in (group.q, group.k, group.v))
    out, present = memory.at(group.out), memory.at(group.present)
    state = np.zeros(present.shape, np.float32) if group.past is None else wide(memory.at(group.past)).copy()
    shared = q.shape[1] // max(k.shape[1], 1)
    for t in range(q.shape[2]):
        if group.decay is not None:
            state = state * wide(memory.at(group.decay))[:, :, t, :, None]
        write = v[:, :, t]
        if group.beta is not None:
            known = np.matmul(k[:, :, t, None], state)[:, :, 0]
            write = wide(memory.at(group.beta))[:, :, t, None] * (write - known)
        state = state + k[:, :, t, :, None] * write[:, :, None]
        read = np.matmul(q[:, :, t, None], np.repeat(state, shared, axis=1))[:, :, 0]
        out[:, :, t] = (read * np.float32(group.scale)).astype(out.dtype)
    present[...] = state.astype(present.dtype)
