"""The AMX micro-kernel of bf16 terms: which tiles are loaded, multiplied and prefetched, in which order.

A step multiplies all pairs of terms of 32 numbers along k, for 16 rows and 32 columns: two accumulator tiles, and one
tile of each operand. ``multiply`` serves matrix products (``gemm.amx``) and attention (``attention.amx``);
convolutions (``conv.bf16_split``) load their pixels in another way, in the order of ``events``.

**Only four tiles.** The chip renames tile registers, so a load need not wait for products that still read the old
content. Two hardware threads of a core share ten physical tile registers: with four live tiles each thread keeps
enough of them for renaming. The usual 2 x 2 accumulators with two tiles of each operand (eight live) load a third
less, but are much slower as soon as both hardware threads use AMX; on a core of its own both run at the same speed,
from L1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sardonyx.providers.cpu.kernels.split.bf16 import TILE, step_elements
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.values import Buf, Operand, Val
from sardonyx.records import Record

PRODUCTS: dict[int, tuple[tuple[int, int], ...]] = {
    1: ((0, 0),),
    2: ((1, 0), (0, 0), (0, 1)),
    3: ((2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0)),
}
"""Which terms of A and B are multiplied; consecutive products share one tile."""
LINE = 32
"""bf16 numbers in a cache line."""
SUMS = (0, 1)
A, B = 2, 3
"""The tiles: sums of the left and the right half of a panel's columns, and one of each operand."""
TILES = 4


class Schedule(Record):
    """How the innermost loop is unrolled and what it prefetches; results do not depend on it."""

    unroll: int = 1
    """Steps that are unrolled."""
    ahead_a: int = 0
    ahead_b: int = 0
    """Steps by which an operand is prefetched into L1 before it is loaded; 0: by the hardware prefetcher only."""
    is_pipelined: bool = True
    """The epilogue is pipelined even if it is cheap."""
    fetched: int = 4
    """Cache lines of the next K-block of B that a step prefetches for each term, at least."""
    level: int = 2
    """The cache level that they are prefetched into."""
    short_ahead: int = 8
    """KiB by which B is prefetched in products of at most 16 rows, which are limited by memory."""
    short_level: int = 2
    """The cache level that it is prefetched into."""


SCHEDULES = {1: Schedule(is_pipelined=False, level=1), 2: Schedule(), 3: Schedule()}
"""By terms. One term needs a tile from L1 for every 10 cycles, which leaves little time for anything else."""


def multiply(
    tiles: Tiles, a: Buf, b: Buf, steps: Val, terms: int, schedule: Schedule,
    between: Callable[[int], None] | None = None, *, is_short: bool = False, is_a_non_temporal: bool = False,
    fetched: Buf | None = None, lines: Val | None = None,
) -> None:  # fmt: skip
    """Add the products of ``steps`` steps to the two tiles of sums.

    ``between`` emits other work after every few steps. Steps prefetch from ``fetched`` on, ``lines`` lines for each
    step and term; without ``lines`` the fixed number of the schedule, which needs no loop. ``is_short``: at most 16
    rows are multiplied. ``is_a_non_temporal``: loads of A bypass L1.
    """
    k, size = tiles.k, step_elements(terms)
    start = k.const(0)
    for unroll in sorted({schedule.unroll, 1}, reverse=True):
        stop = steps & -unroll
        with k.loop(start, stop, unroll) as s:
            operands = {A: a.at(s * size), B: b.at(s * size)}
            stride = schedule.fetched if lines is None else lines
            ahead = None if fetched is None else fetched.at(s * stride * (terms * LINE))
            wanted = _fetches(operands, unroll, terms, schedule, is_short, ahead)
            if ahead is not None and not is_short and lines is not None:
                with k.loop(schedule.fetched * terms * unroll, lines * (terms * unroll)) as i:
                    ahead.prefetch(i * LINE, locality=4 - schedule.level)
            written = list(events(terms, unroll))
            dots = sum(isinstance(event, Dot) for event in written)
            for event in written:
                if isinstance(event, Load):
                    tiles.load(
                        event.tile,
                        operands[event.tile].at(event.offset),
                        is_non_temporal=is_a_non_temporal and event.tile == A,
                    )
                    continue
                tiles.dot_bf16(event.sums, A, B)
                share, wanted = wanted[: -(-len(wanted) // dots)], wanted[-(-len(wanted) // dots) :]
                dots -= 1
                for line, level in share:
                    line.prefetch(locality=4 - level)
            if between is not None:
                between(unroll)
        start = stop


def _fetches(
    operands: dict[int, Buf], unroll: int, terms: int, schedule: Schedule, is_short: bool, ahead: Buf | None
) -> list[tuple[Buf, int]]:
    """The lines that ``unroll`` steps always prefetch, each with its cache level."""
    size, found = step_elements(terms), []
    if is_short:
        ahead, stop = operands[B].at(schedule.short_ahead * 1024 // 2), unroll * size if schedule.short_ahead else 0
        return [(ahead.at(at), schedule.short_level) for at in range(0, stop, LINE)]
    for x, steps in ((A, schedule.ahead_a), (B, schedule.ahead_b)):
        found += [(operands[x].at(steps * size + at), 1) for at in range(0, unroll * size if steps else 0, LINE)]
    if ahead is not None:
        found += [(ahead.at(i * LINE), schedule.level) for i in range(unroll * schedule.fetched * terms)]
    return found


@contextmanager
def zeroed_sums(tiles: Tiles, places: Sequence[Buf], stride: Operand) -> Iterator[None]:
    """A context around the products of a K-block: the accumulators start at zero, and are stored at ``places`` at the
    end, in rows ``stride`` bytes apart.
    """
    for t in SUMS:
        tiles.zero(t)
    yield
    for t, place in zip(SUMS, places, strict=True):
        tiles.store(t, place, stride)


@contextmanager
def continued_sums(tiles: Tiles, places: Sequence[Buf], stride: Operand, is_first: Val) -> Iterator[None]:
    """A context around the products of a K-block: the accumulators continue from the sums stored at ``places``, unless
    this is the first one, and are stored there at the end.
    """
    with tiles.k.either(is_first) as (first, later):
        with first:
            for t in SUMS:
                tiles.zero(t)
        with later:
            for t, place in zip(SUMS, places, strict=True):
                tiles.load(t, place, stride)
    yield
    for t, place in zip(SUMS, places, strict=True):
        tiles.store(t, place, stride)


class Load(Record):
    tile: int
    offset: int


class Dot(Record):
    sums: int


def events(terms: int, unroll: int, halves: int = 2) -> Iterator[Load | Dot]:
    """Loads and products of ``unroll`` steps, in the order in which they are emitted.

    Each pair of terms begins with the half of the columns where the pair before ended, so that one tile is loaded
    already. With one of the ``halves``, only the left half is multiplied.
    """
    holds: dict[int, int] = {}
    for step in range(unroll):
        last = 0  # with one term, products of one half do not follow each other
        for p, q in PRODUCTS[terms]:
            for half in (last, 1 - last)[:halves]:
                for tile, at in ((A, p * 2), (B, q * 2 + half)):
                    offset = step * step_elements(terms) + at * TILE
                    if holds.get(tile) != offset:
                        holds[tile] = offset
                        yield Load(tile, offset)
                yield Dot(SUMS[half])
            last = half
