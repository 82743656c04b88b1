"""Rows of a few whole vectors, fully unrolled, and vectors that begin between those of a row.

Such a row needs no loop and no masks, and unaligned vectors are shuffled from aligned ones in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Tile, Val

Window = Callable[[int], Val]
"""The vector that begins this number of elements after the current one, or before it if negative."""


def shifted(three: Sequence[Val]) -> Window:
    """Vectors that begin up to one vector before or after the second of three adjacent ones."""

    @cache
    def window(first: int) -> Val:
        number, lane = divmod(first, three[0].lanes)
        left = three[number + 1]
        return left if lane == 0 else left.shuffle(range(lane, lane + left.lanes), three[number + 2])

    return window


def tiles_of(k: Kernel, vectors: int, lanes: int) -> list[Tile]:
    return [Tile(k.const(i * lanes), lanes, None) for i in range(vectors)]


def unrolled_row(
    tiles: Sequence[Tile], make: Callable[[Tile], list[Val]], front: Callable[[Val], Val], back: Callable[[Val], Val]
) -> Iterator[tuple[Tile, list[Window]]]:
    """For each tile of a row, the windows around its vectors, of one or more rows that ``make`` computes.

    ``front`` and ``back`` compute the vectors beyond the first and the last one from these.
    """
    here = make(tiles[0])
    before = [front(v) for v in here]
    for tile, following in zip(tiles, (*tiles[1:], None), strict=True):
        after = [back(v) for v in here] if following is None else make(following)
        yield tile, [shifted(three) for three in zip(before, here, after, strict=True)]
        before, here = here, after
