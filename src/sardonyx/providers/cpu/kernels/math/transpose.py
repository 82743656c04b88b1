"""Transposes, interleaves and deinterleaves vectors in registers."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Val, i8

BLOCK_BITS = 128
"""The width in which x86 interleaves two vectors by one instruction without an index vector."""


def transposed(rows: Sequence[Val]) -> list[Val]:
    """The transpose of a square matrix, given and returned as a list of rows.

    log2(lanes) rounds of two-vector shuffles, each of one instruction: blocks of ``BLOCK_BITS`` move, then elements are
    interleaved within them. Shuffles of elements across blocks would need index vectors, and LLVM would search for
    cheaper ones in chains of them, which can take ten times as long as all the rest of a kernel.
    """
    lanes = len(rows)
    block = min(lanes, BLOCK_BITS // rows[0].dtype.bits)
    columns = [_deinterleaved_blocks(rows[i::block], block) for i in range(block)]
    return [row for of in zip(*columns, strict=True) for row in _interleaved_in_blocks(of, block)]


def _interleaved_in_blocks(rows: Sequence[Val], block: int) -> list[Val]:
    """``interleaved`` of each block of as many lanes by itself."""
    if len(rows) == 1:
        return list(rows)
    lanes = rows[0].lanes
    halves = [
        [at + i // 2 + i % 2 * lanes for at in range(start, lanes, block) for i in range(block)]
        for start in (0, block // 2)
    ]
    pairs = zip(_interleaved_in_blocks(rows[::2], block), _interleaved_in_blocks(rows[1::2], block), strict=True)
    return [a.shuffle(half, b) for a, b in pairs for half in halves]


def _deinterleaved_blocks(rows: Sequence[Val], block: int) -> list[Val]:
    """``deinterleaved``, of blocks of as many lanes; as many vectors as each has blocks."""
    if len(rows) == 1:
        return list(rows)
    lanes = rows[0].lanes
    sides = [[at + i for at in range(start, 2 * lanes, 2 * block) for i in range(block)] for start in (0, block)]
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    found = [_deinterleaved_blocks([a.shuffle(side, b) for a, b in pairs], block) for side in sides]
    return [v for both in zip(*found, strict=True) for v in both]


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
    if count == lanes:
        return transposed(rows)
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


def bytes_in_lanes(k: Kernel, v: Val, order: Sequence[int]) -> Val:
    """The bytes of a vector in another order that keeps each among its 16.

    On AVX-512 the order is read from memory: LLVM spends 0.4 ms on the search for a shuffle whose indices it knows.
    """
    if k.isa.name not in ("avx512", "amx") or k.isa.is_emulated or len(order) != 64:
        return v.shuffle(order)
    places = k.table([i % 16 for i in order], i8).load_fixed(0, len(order))
    found = k.intrinsic("llvm.x86.avx512.pshuf.b.512", [k.bitcast(v, i8), places], i8, len(order))
    return k.bitcast(found, v.dtype)
