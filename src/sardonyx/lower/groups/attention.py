"""Scaled dot-product attention."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import Group, View


class Attention(Group):
    """softmax(scale * q k^T + mask) v for every batch and head, without the score matrix in memory.

    ``q``, ``out``: (batch, heads, rows, width); ``k``, ``v``: (batch, key heads, keys, width), each key head serving
    ``heads / key heads`` neighbouring heads. ``mask`` is additive f32 or bool (false hides), of axes (batch, heads,
    rows, keys). ``causal`` hides key j from row i where j > i + ``past``,
    the number of keys before that of row 0. With
    ``softcap`` c, scores are c * tanh(score / c) before the mask. A row that sees no key gives zeros.
    """

    q: View
    k: View
    v: View
    mask: View | None
    out: View
    scale: float
    causal: bool = False
    softcap: float = 0.0
    past: Known = 0

    @property
    def reads(self) -> tuple[View, ...]:
        mask = () if self.mask is None else (self.mask,)
        return (self.q, self.k, self.v, *mask)

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.out,)
