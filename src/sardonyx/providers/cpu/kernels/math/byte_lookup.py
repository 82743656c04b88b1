"""Lookups in tables of 256 bytes (``layout.byte_tables``).

With AVX-512 VBMI the table is four registers: two permutations of 128 bytes each, of which the highest bit of the index
takes one. AVX-512 without it permutes the table as words, and shifts the byte that the lowest bit of the index names to
its place. AVX2 shuffles each 16 bytes of the table by indices of which all but 16 values have their highest bit set,
which gives 0. Elsewhere bytes are loaded one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i8, i16, i64, register_dtype, u8, u16
from sardonyx.providers.cpu.machine.isa import Isa

Value: TypeAlias = "Val | int | float"
ENTRIES, HALF, WIDE, ROW = 256, 128, 64, 16
WORDS = WIDE // 2
LEAST_SHUFFLED = 32
"""Bytes of a vector from which shuffles are quicker than loads."""


def lookup(k: Kernel, operands: Sequence[Value], to: DType) -> Val:
    """``table[x]`` for bytes ``x``, read as unsigned. The second operand is the table's first element, whose address is
    that of the table.
    """
    x, first = operands
    assert isinstance(x, Val) and isinstance(first, Val)
    table, index = k.origin(first), k.bitcast(x, u8)
    if k.isa.byte_permute and not k.isa.is_emulated and x.lanes > 1:
        found = _by_permutations(k, index, table)
    elif permutes_words(k.isa) and x.lanes > 1:
        found = _by_word_permutations(k, index, table)
    elif k.isa.name == "avx2" and not k.isa.is_emulated and x.lanes >= LEAST_SHUFFLED:
        found = _by_shuffles(k, index, table)
    else:
        found = k.pack([table.load(k.cast(index if x.lanes == 1 else index[i], i64)) for i in range(x.lanes)])
    return k.bitcast(found, register_dtype(to))


def _by_permutations(k: Kernel, index: Val, table: Buf) -> Val:
    rows = [k.bitcast(table.load_fixed(i, WIDE), i8) for i in range(0, ENTRIES, WIDE)]

    def permuted(wide: Val) -> Val:
        name = "llvm.x86.avx512.vpermi2var.qi.512"
        low, high = (k.intrinsic(name, [a, wide, b], i8, WIDE) for a, b in (rows[:2], rows[2:]))
        return k.select(wide < 0, high, low)

    return k.bitcast(_in_chunks(k, index, WIDE, permuted), u8)


def permutes_words(isa: Isa) -> bool:
    """Whether words of two registers are permuted by one instruction, but not bytes."""
    return isa.name == "avx512" and not isa.byte_permute and not isa.is_emulated


def _by_word_permutations(k: Kernel, index: Val, table: Buf) -> Val:
    rows = [k.bitcast(table.load_fixed(i, WIDE), i16) for i in range(0, ENTRIES, WIDE)]

    def words(at: Val, high: Val) -> Val:
        """The words of the table that seven bits of ``at`` name, of which the highest is ``high``, too."""
        name, places = "llvm.x86.avx512.vpermi2var.hi.512", k.bitcast(at, i16)
        low_half, high_half = (k.intrinsic(name, [a, places, b], i16, WORDS) for a, b in (rows[:2], rows[2:]))
        return k.bitcast(k.select(high, high_half, low_half), u16)

    def of_words(wide: Val) -> Val:
        """The byte for each word's lower byte, in the lower byte."""
        return words(wide >> 1, (wide & HALF).ne(0)) >> ((wide & 1) << 3)

    def permuted(wide: Val) -> Val:
        pairs = k.bitcast(wide, u16)
        odd = words(pairs >> 9, k.bitcast(pairs, i16) < 0) << (((pairs >> 5) & 8) ^ 8)
        return k.bitcast((of_words(pairs) & 0xFF) | (odd & 0xFF00), i8)

    if index.lanes > WORDS:
        return k.bitcast(_in_chunks(k, index, WIDE, permuted), u8)
    padded = index if index.lanes == WORDS else index.shuffle([*range(index.lanes), *[0] * (WORDS - index.lanes)])
    found = k.cast(of_words(k.cast(padded, u16)) & 0xFF, u8)
    return found if index.lanes == WORDS else found.shuffle(range(index.lanes))


def _by_shuffles(k: Kernel, index: Val, table: Buf) -> Val:
    nbytes = LEAST_SHUFFLED
    rows = [table.load_fixed(i, ROW).shuffle(list(range(ROW)) * (nbytes // ROW)) for i in range(0, ENTRIES, ROW)]

    def shuffled(wide: Val) -> Val:
        total, at = k.zeros(u8, nbytes), k.bitcast(wide, u8)
        beyond = k.const(HALF - ROW, u8, nbytes)
        for i, row in enumerate(rows):
            own = at ^ (i * ROW)
            hidden = k.intrinsic("llvm.uadd.sat", [own, beyond], u8, nbytes, over=[own])
            args = [k.bitcast(v, i8) for v in (row, hidden)]
            total = total | k.bitcast(k.intrinsic("llvm.x86.avx2.pshuf.b", args, i8, nbytes), u8)
        return k.bitcast(total, i8)

    return k.bitcast(_in_chunks(k, index, nbytes, shuffled), u8)


def _in_chunks(k: Kernel, index: Val, nbytes: int, found: object) -> Val:
    """The results for parts of a vector that fill registers, together."""
    assert callable(found)
    lanes, at = index.lanes, k.bitcast(index, i8)
    if lanes <= nbytes:
        wide = at if lanes == nbytes else at.shuffle([*range(lanes), *[0] * (nbytes - lanes)])
        made: Val = found(wide)
        return made if lanes == nbytes else made.shuffle(range(lanes))
    parts = [
        _in_chunks(k, index.shuffle(range(i, min(i + nbytes, lanes))), nbytes, found) for i in range(0, lanes, nbytes)
    ]
    joined = parts[0]
    for part in parts[1:]:
        if part.lanes < joined.lanes:
            part = part.shuffle([*range(part.lanes), *[0] * (joined.lanes - part.lanes)])
        joined = joined.shuffle(range(joined.lanes + part.lanes), part) if part.lanes == joined.lanes else joined
    return joined.shuffle(range(lanes)) if joined.lanes != lanes else joined
