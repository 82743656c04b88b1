"""Lookups in tables of 256 bytes (``layout.byte_tables``).

With AVX-512 VBMI the table is four registers: two permutations of 128 bytes each, of which the highest bit of the index
takes one. Other x86 chips shuffle each 16 bytes of the table by indices of which all but 16 values have their highest
bit set, which gives 0. Elsewhere bytes are loaded one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i8, i64, register_dtype, u8

Value: TypeAlias = "Val | int | float"
ENTRIES, HALF, WIDE, ROW = 256, 128, 64, 16
LEAST_SHUFFLED = 32
"""Bytes of a vector from which shuffles are quicker than loads."""
_SHUFFLES = {64: "llvm.x86.avx512.pshuf.b.512", 32: "llvm.x86.avx2.pshuf.b"}


def lookup(k: Kernel, operands: Sequence[Value], to: DType) -> Val:
    """The bytes at the places that the bits of bytes name in a table; its first byte was loaded as a scalar."""
    x, first = operands
    assert isinstance(x, Val) and isinstance(first, Val)
    table, index = k.origin(first), k.bitcast(x, u8)
    if k.isa.byte_permute and not k.isa.is_emulated and x.lanes > 1:
        found = _by_permutations(k, index, table)
    elif _shuffle_nbytes(k) and x.lanes >= LEAST_SHUFFLED:
        found = _by_shuffles(k, index, table, _shuffle_nbytes(k))
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


def _shuffle_nbytes(k: Kernel) -> int:
    """The bytes of a register that is shuffled in rows of 16; 0 where there is no such instruction."""
    return 0 if k.isa.is_emulated else {"amx": 64, "avx512": 64, "avx2": 32}.get(k.isa.name, 0)


def _by_shuffles(k: Kernel, index: Val, table: Buf, nbytes: int) -> Val:
    rows = [table.load_fixed(i, ROW).shuffle(list(range(ROW)) * (nbytes // ROW)) for i in range(0, ENTRIES, ROW)]

    def shuffled(wide: Val) -> Val:
        total, at = k.zeros(u8, nbytes), k.bitcast(wide, u8)
        for i, row in enumerate(rows):
            own = at ^ (i * ROW)
            hidden = k.select(own > ROW - 1, 0x80, own)
            args = [k.bitcast(v, i8) for v in (row, hidden)]
            total = total | k.bitcast(k.intrinsic(_SHUFFLES[nbytes], args, i8, nbytes), u8)
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
