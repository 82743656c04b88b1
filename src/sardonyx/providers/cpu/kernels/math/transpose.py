"""Transposes, interleaves and deinterleaves vectors in registers."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.providers.cpu.language.values import Val


def transposed(rows: Sequence[Val]) -> list[Val]:
    """The transpose of a square matrix, given and returned as a list of rows.

    log2(lanes) rounds of two-vector shuffles exchange off-diagonal blocks of 1, 2, 4 ... elements.
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


def sums_of_rows(rows: Sequence[Val]) -> Val:
    """The sum of the lanes of each row, as a vector: of as many rows as a row has lanes.

    Two rows become one vector of both rows' sums of a half and the other half, and so on.
    """
    out, lanes = list(rows), len(rows)
    size = lanes
    while len(out) > 1:
        starts = range(0, 2 * lanes, size)
        low, high = ([at + i for at in starts for i in half] for half in (range(size // 2), range(size // 2, size)))
        out = [a.shuffle(low, b) + a.shuffle(high, b) for a, b in zip(out[::2], out[1::2], strict=True)]
        size //= 2
    return out[0]


def interleaved(rows: Sequence[Val]) -> list[Val]:
    """Element 0 of every vector, then element 1 of every vector, and so on, as a list of as many vectors."""
    count, lanes = len(rows), rows[0].lanes
    if count == 1:
        return list(rows)
    if count % 2 == 0:
        halves = [[i // 2 + i % 2 * lanes + half for i in range(lanes)] for half in (0, lanes // 2)]
        pairs = zip(interleaved(rows[::2]), interleaved(rows[1::2]), strict=True)
        return [a.shuffle(half, b) for a, b in pairs for half in halves]
    at = [divmod(i, count) for i in range(count * lanes)]
    return [_selected(rows, [(of, lane) for lane, of in at[j * lanes :][:lanes]]) for j in range(count)]


def deinterleaved(rows: Sequence[Val]) -> list[Val]:
    """The inverse of ``interleaved``: of n vectors in a row, vector i gets the elements i, i + n, i + 2n, ..."""
    count, lanes = len(rows), rows[0].lanes
    if count == 1:
        return list(rows)
    if count % 2 == 0:
        pairs = list(zip(rows[::2], rows[1::2], strict=True))
        sides = [deinterleaved([a.shuffle(range(side, 2 * lanes, 2), b) for a, b in pairs]) for side in range(2)]
        return [v for both in zip(*sides, strict=True) for v in both]
    return [_selected(rows, [divmod(i * count + j, lanes) for i in range(lanes)]) for j in range(count)]


def interleaved_wide(rows: Sequence[Val]) -> Val:
    """Element 0 of every vector, then element 1 of every vector, and so on, as one vector; a power of two of them."""
    out = list(rows)
    while len(out) > 1:
        half, lanes = len(out) // 2, out[0].lanes
        pairs = zip(out[:half], out[half:], strict=True)
        out = [a.shuffle([i // 2 + i % 2 * lanes for i in range(2 * lanes)], b) for a, b in pairs]
    return out[0]


def _selected(rows: Sequence[Val], places: Sequence[tuple[int, int]]) -> Val:
    """The elements at ``places``, pairs of a vector and a lane."""
    lanes = len(places)
    found = rows[0].shuffle([lane for _, lane in places])
    for t in range(1, len(rows)):
        found = found.shuffle([lanes + lane if of == t else i for i, (of, lane) in enumerate(places)], rows[t])
    return found
