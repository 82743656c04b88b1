"""Offsets of all intermediates in one arena."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ALIGNMENT = 64
"""Bytes of a cache line, and of the widest vector."""


class Block(NamedTuple):
    """Memory that is needed from one interval to another, both included."""

    nbytes: int
    first: int
    last: int


class Placement(NamedTuple):
    offsets: tuple[int, ...]
    nbytes: int


def place(blocks: Sequence[Block], *, alignment: int = ALIGNMENT, padding: int = 0) -> Placement:
    """An offset for every block, such that blocks that live at the same time do not overlap.

    Greedy, largest block first, each in the smallest gap that is free for its lifetime. ``padding`` bytes after each
    block may be read, never written.
    """
    offsets = [0] * len(blocks)
    placed: list[tuple[int, int, Block]] = []
    total = 0
    for i in sorted(range(len(blocks)), key=lambda i: (-blocks[i].nbytes, blocks[i].first)):
        block = blocks[i]
        size = -(-(block.nbytes + padding) // alignment) * alignment
        start, best, best_gap = 0, -1, -1
        for low, high, other in placed:
            if other.last < block.first or other.first > block.last:
                continue
            gap = low - start
            if gap >= size and (best < 0 or gap < best_gap):
                best, best_gap = start, gap
            start = max(start, high)
        at = start if best < 0 else best
        offsets[i] = at
        total = max(total, at + size)
        position = next((n for n, (low, _, _) in enumerate(placed) if low > at), len(placed))
        placed.insert(position, (at, at + size, block))
    return Placement(tuple(offsets), total)


def lower_bound(blocks: Sequence[Block], *, alignment: int = ALIGNMENT, padding: int = 0) -> int:
    """The largest sum of blocks that live at the same time: no placement needs less."""
    change: dict[int, int] = {}
    for block in blocks:
        size = -(-(block.nbytes + padding) // alignment) * alignment
        change[block.first] = change.get(block.first, 0) + size
        change[block.last + 1] = change.get(block.last + 1, 0) - size
    now = most = 0
    for when in sorted(change):
        now += change[when]
        most = max(most, now)
    return most
