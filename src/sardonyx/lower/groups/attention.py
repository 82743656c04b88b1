"""Attention as one piece of work."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.lower.groups.base import Group, View


@dataclass(frozen=True)
class Attention(Group):
    """softmax(scale * q k^T + mask) v for every batch and head, without the score matrix in memory.

    ``q``, ``out``: (batch, heads, rows, width); ``k``, ``v``: (batch, key heads, keys, width), each key head serving
    ``heads / key heads`` neighbouring heads. ``mask`` is additive f32 or bool (false hides), of axes (batch, heads,
    rows, keys). With ``past``, keys are past + new: ``k`` and ``v`` are the new ones, ``past`` and ``present`` views of
    the same axes, and past and new are copied into present, which is what is read. ``causal`` hides key j from row i
    where j > i + (number of past keys). With ``softcap`` c, scores are c * tanh(score / c) before the mask. A row that
    sees no key gives zeros.
    """

    q: View
    k: View
    v: View
    mask: View | None
    out: View
    scale: float
    causal: bool = False
    softcap: float = 0.0
    past: tuple[View, View] | None = None
    present: tuple[View, View] | None = None

    @property
    def reads(self) -> tuple[View, ...]:
        mask = () if self.mask is None else (self.mask,)
        return (self.q, self.k, self.v, *mask, *(self.past or ()))

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.out, *(self.present or ()))
