"""Linear attention: a recurrent state of key-value products."""

from __future__ import annotations

from sardonyx.lower.groups.base import Group, View


class LinearAttention(Group):
    """Token by token: S = decay * S + k w^T and out = scale * q S, where w is v, or with ``beta`` beta * (v - k S).

    ``q``, ``out``: (batch, heads, tokens, width); ``k``, ``v``: (batch, key heads, tokens, width), each key head
    serving ``heads / key heads`` neighbouring heads; ``decay``: axes of ``k``; ``beta``: (batch, key heads, tokens);
    ``past``, ``present``: (batch, key heads, width of a key, width of a value). Without ``past`` S begins with zeros;
    ``k S`` uses the state after the decay. All but ``decay`` and ``beta`` have stride 1 along the last axis. S is f32.
    """

    q: View
    k: View
    v: View
    decay: View | None
    beta: View | None
    past: View | None
    out: View
    present: View
    scale: float

    @property
    def reads(self) -> tuple[View, ...]:
        return (self.q, self.k, self.v, *(v for v in (self.decay, self.beta, self.past) if v is not None))

    @property
    def writes(self) -> tuple[View, ...]:
        return self.out, self.present
