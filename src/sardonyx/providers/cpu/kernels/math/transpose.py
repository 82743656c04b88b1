"""Numbers of several vectors that change places in registers: a square on its diagonal, rows woven and parted."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.providers.cpu.language.values import Val


def transposed(rows: Sequence[Val]) -> list[Val]:
    """``lanes`` vectors of ``lanes`` elements: element j of vector i becomes element i of vector j.

    Blocks off the diagonal change places, for blocks of 1, 2, 4 ... elements: log2(lanes) rounds of two-vector
    shuffles.
    """
    out, lanes = list(rows), len(rows)
    width = 1
    while width < lanes:
        for i in range(lanes):
            if i & width:
                continue
            a, b = out[i], out[i | width]
            first = [lane if not lane & width else lanes + lane - width for lane in range(lanes)]
            second = [lane + width if not lane & width else lanes + lane for lane in range(lanes)]
            out[i], out[i | width] = a.shuffle(first, b), a.shuffle(second, b)
        width *= 2
    return out


def joined(rows: Sequence[Val]) -> list[Val]:
    """The numbers of some vectors, one of each after the other: as many vectors."""
    count, lanes = len(rows), rows[0].lanes
    if count == 1:
        return list(rows)
    if count % 2 == 0:
        halves = [[i // 2 + i % 2 * lanes + half for i in range(lanes)] for half in (0, lanes // 2)]
        pairs = zip(joined(rows[::2]), joined(rows[1::2]), strict=True)
        return [a.shuffle(half, b) for a, b in pairs for half in halves]
    at = [divmod(i, count) for i in range(count * lanes)]
    return [_picked(rows, [(of, lane) for lane, of in at[j * lanes :][:lanes]]) for j in range(count)]


def parted(rows: Sequence[Val]) -> list[Val]:
    """What ``joined`` has joined."""
    count, lanes = len(rows), rows[0].lanes
    if count == 1:
        return list(rows)
    if count % 2 == 0:
        pairs = list(zip(rows[::2], rows[1::2], strict=True))
        sides = [parted([a.shuffle(range(side, 2 * lanes, 2), b) for a, b in pairs]) for side in range(2)]
        return [v for both in zip(*sides, strict=True) for v in both]
    return [_picked(rows, [divmod(i * count + j, lanes) for i in range(lanes)]) for j in range(count)]


def _picked(rows: Sequence[Val], places: Sequence[tuple[int, int]]) -> Val:
    """A vector of numbers that are each in one of several, at a lane."""
    lanes = len(places)
    found = rows[0].shuffle([lane for _, lane in places])
    for t in range(1, len(rows)):
        found = found.shuffle([lanes + lane if of == t else i for i, (of, lane) in enumerate(places)], rows[t])
    return found
