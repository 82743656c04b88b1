"""Linear attention: a recurrent state of key-value products."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.lower.groups.base import Group, View


@dataclass(frozen=True)
class LinearAttention(Group):
    """Token by token: S = fade * S + k w^T and out = scale * q S, where w is v, or with ``rate`` rate * (v - k S).

    ``q``, ``out``: (batch, heads, tokens, width); ``k``, ``v``: (batch, key heads, tokens, width), each key head
    serving ``heads / key heads`` neighbouring heads; ``fade``: axes of ``k``; ``rate``: (batch, key heads, tokens);
    ``past``, ``present``: (batch, key heads, width of a key, width of a value). Without ``past`` S begins with zeros;
    ``k S`` uses the state after fading. All but ``fade`` and ``rate`` have stride 1 along the last axis. S is f32.
    """

    q: View
    k: View
    v: View
    fade: View | None
    rate: View | None
    past: View | None
    out: View
    present: View
    scale: float

    @property
    def reads(self) -> tuple[View, ...]:
        return (self.q, self.k, self.v, *(v for v in (self.fade, self.rate, self.past) if v is not None))

    @property
    def writes(self) -> tuple[View, ...]:
        return self.out, self.present
