"""Vectors that begin between those of a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from sardonyx.providers.cpu.values import Val


def shifted(three: Sequence[Val]) -> Callable[[int], Val]:
    """Vectors that begin up to one vector beside the second of three neighbours."""

    @cache
    def window(first: int) -> Val:
        number, lane = divmod(first, three[0].lanes)
        left = three[number + 1]
        return left if lane == 0 else left.shuffle(range(lane, lane + left.lanes), three[number + 2])

    return window
