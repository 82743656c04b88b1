"""The innermost loop of products on tiles: which tiles are loaded, multiplied and fetched, and in which order.

A step multiplies the parts of 32 numbers along k of 16 or 32 rows and 32 columns. ``multiply`` serves matrix products
(``gemm_amx``) and attention (``attention_amx``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sardonyx.providers.cpu.amx import Tiles
from sardonyx.providers.cpu.dsl import Val
from sardonyx.providers.cpu.kernels.split import TILE, step_elements
from sardonyx.providers.cpu.values import Buf

PRODUCTS: dict[int, tuple[tuple[int, int], ...]] = {
    1: ((0, 0),),
    2: ((1, 0), (0, 0), (0, 1)),
    3: ((2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0)),
}
"""Which parts of A meet which of B: one of the two stays from each product to the next."""
LINE = 32
"""bf16 numbers in a cache line."""
A, B = 4, 6
"""The first of each operand's tiles; tiles from 0 on are the sums of (row, column) (0, 0), (0, 1), (1, 0), (1, 1)."""


@dataclass(frozen=True)
class Schedule:
    """How the innermost loop is written; none of it changes a result."""

    rows: int = 1
    """Rows of tiles that are summed at a time."""
    a_tiles: int = 1
    b_tiles: int = 1
    """Tiles that an operand is loaded into in turn."""
    unroll: int = 1
    """Steps written out."""
    is_early: bool = False
    """A tile is loaded as soon as the last product of what it replaces is under way; else just before it is needed."""
    ahead_a: int = 0
    ahead_b: int = 0
    """Steps by which an operand is fetched into L1 before it is loaded; 0 leaves that to the chip."""
    outer: str = "columns"
    """The outer of the two loops inside a block of steps: over ``columns``, so that B stays in L1, or over ``rows``."""
    is_woven: bool = True
    """What follows the sums of a group is done between the products of the next; else at once."""
    fetched: int = 8
    """Lines of the next run of B, for each part and step of 32 rows, that are fetched into L2 meanwhile: a quarter."""
    short_ahead: int = 8
    """KiB by which B is fetched ahead of at most 16 rows, which wait for memory."""
    short_level: int = 2
    """The cache that it is fetched into."""


SCHEDULES = {1: Schedule(), 2: Schedule(), 3: Schedule()}
"""By parts."""


def multiply(
    tiles: Tiles, a: Buf, b: Buf, steps: Val, parts: int, schedule: Schedule,
    weave: Callable[[int], None] | None = None, *, rows: int = 1, is_short: bool = False, fetched: Buf | None = None,
) -> None:  # fmt: skip
    """Add the products of ``steps`` steps to the tiles of sums, two for each of the ``rows`` rows of tiles.

    ``weave`` writes what else a few steps do; ``fetched`` is what they fetch into L2 for later.
    """
    k, size = tiles.k, step_elements(parts)
    start = k.const(0)
    for unroll in sorted({schedule.unroll, 1}, reverse=True):
        stop = steps & -unroll
        with k.loop(start, stop, unroll) as s:
            operands = {A: a.at(s * size), B: b.at(s * size)}
            lines = _fetches(operands, s, unroll, parts, schedule, rows, is_short, fetched)
            dots = 2 * rows * unroll * len(PRODUCTS[parts])
            for event in _events(parts, unroll, schedule, rows):
                if isinstance(event, Load):
                    tiles.load(event.tile, operands[A if event.tile < B else B].at(event.offset))
                    continue
                tiles.dot_bf16(event.sums, event.a, event.b)
                share, lines = lines[: -(-len(lines) // dots)], lines[-(-len(lines) // dots) :]
                dots -= 1
                for line, level in share:
                    line.prefetch(locality=4 - level)
            if weave is not None:
                weave(unroll)
        start = stop


def _fetches(
    operands: dict[int, Buf], s: Val, unroll: int, parts: int, schedule: Schedule, rows: int, is_short: bool,
    fetched: Buf | None,
) -> list[tuple[Buf, int]]:  # fmt: skip
    """The lines that ``unroll`` steps fetch, each with the cache it goes to."""
    size, found = step_elements(parts), []
    if is_short:
        ahead, stop = operands[B].at(schedule.short_ahead * 1024 // 2), unroll * size if schedule.short_ahead else 0
        return [(ahead.at(at), schedule.short_level) for at in range(0, stop, LINE)]
    for x, steps in ((A, schedule.ahead_a), (B, schedule.ahead_b)):
        found += [(operands[x].at(steps * size + at), 1) for at in range(0, unroll * size if steps else 0, LINE)]
    if fetched is not None:
        share = schedule.fetched * rows // 2 * parts * LINE
        here = fetched.at(s * share)
        found += [(here.at(at), 2) for at in range(0, unroll * share, LINE)]
    return found


@dataclass(frozen=True)
class Load:
    tile: int
    offset: int


@dataclass(frozen=True)
class Dot:
    sums: int
    a: int
    b: int


def _events(parts: int, unroll: int, schedule: Schedule, rows: int) -> list[Load | Dot]:
    """Loads and products of ``unroll`` steps, in the order in which they are written."""
    found: list[Load | Dot] = []
    for event in _lazily(parts, unroll, schedule, rows):
        place = len(found)
        if schedule.is_early and isinstance(event, Load):
            while place and not _touches(found[place - 1], event.tile):
                place -= 1
        found.insert(place, event)
    return found


def _touches(event: Load | Dot, tile: int) -> bool:
    """Whether a load of ``tile`` must stay behind an event; loads keep their order."""
    return isinstance(event, Load) or tile in (event.a, event.b)


def _lazily(parts: int, unroll: int, schedule: Schedule, rows: int) -> Iterator[Load | Dot]:
    """Each product begins at the row and column where the one before has ended, so that one of its tiles is there."""
    held: dict[int, tuple[int, int, int] | None] = {}
    for operand, count in ((A, schedule.a_tiles), (B, schedule.b_tiles)):
        held |= dict.fromkeys(range(operand, operand + count))
    i = j = 0
    for step in range(unroll):
        for p, q in PRODUCTS[parts]:
            path = [(i, j), (i, 1 - j)]
            if rows == 2:
                path += [(1 - i, 1 - j), (1 - i, j)]
            for i, j in path:
                for operand, part, half in ((A, p, i), (B, q, j)):
                    wanted = (step, part, half)
                    mine = [t for t in held if (t < B) == (operand == A)]
                    tile = next((t for t in mine if held[t] == wanted), mine[0])
                    if held.pop(tile) != wanted:
                        yield Load(tile, step * step_elements(parts) + (part * 2 + half) * TILE)
                    held[tile] = wanted  # last in order: used last
                a, b = ([t for t in held if (t < B) == is_a][-1] for is_a in (True, False))
                yield Dot(2 * i + j, a, b)
