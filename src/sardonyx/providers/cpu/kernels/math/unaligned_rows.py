"""Vectors that begin between those of a row, and rows of a few whole vectors, written out one behind the other.

Such a row has no loop to begin and to end, nothing is masked, and vectors are loaded where they lie in cache lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Tile, Val

Window = Callable[[int], Val]
"""Gives the vector that begins so many elements behind the one at hand, or in front of it."""


def shifted(three: Sequence[Val]) -> Window:
    """Vectors that begin up to one vector beside the second of three neighbours."""

    @cache
    def window(first: int) -> Val:
        number, lane = divmod(first, three[0].lanes)
        left = three[number + 1]
        return left if lane == 0 else left.shuffle(range(lane, lane + left.lanes), three[number + 2])

    return window


def tiles_of(k: Kernel, vectors: int, lanes: int) -> list[Tile]:
    return [Tile(k.const(i * lanes), lanes, None) for i in range(vectors)]


def written_out(
    tiles: Sequence[Tile], make: Callable[[Tile], list[Val]], front: Callable[[Val], Val], behind: Callable[[Val], Val]
) -> Iterator[tuple[Tile, list[Window]]]:
    """What lies around each vector of a row, or of several that ``make`` makes together. ``front`` and ``behind`` give
    what lies beyond the first and the last one, told these.
    """
    here = make(tiles[0])
    before = [front(v) for v in here]
    for tile, following in zip(tiles, (*tiles[1:], None), strict=True):
        after = [behind(v) for v in here] if following is None else make(following)
        yield tile, [shifted(three) for three in zip(before, here, after, strict=True)]
        before, here = here, after
