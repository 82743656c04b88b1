"""f32 numbers to bytes on x86: rounded by a conversion, and saturated by the instructions that pack two vectors.

Packs work within the 16 bytes of a row of a register. Four vectors of words a, b, c, d become rows of four bytes of
each: a permutation of words brings them into order. Numbers must be below 2^31; the conversion rounds halves to even.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Val, i8, i16, i32, register_dtype, u8

ROW = 4
"""Words of a row."""
CURRENT_ROUNDING = 4
_WORDS = {16: "llvm.x86.avx512.packssdw.512", 8: "llvm.x86.avx2.packssdw"}
_SIGNED = {16: "llvm.x86.avx512.packsswb.512", 8: "llvm.x86.avx2.packsswb"}
_UNSIGNED = {16: "llvm.x86.avx512.packuswb.512", 8: "llvm.x86.avx2.packuswb"}


def supports(k: Kernel, to: DType) -> bool:
    """Whether the chip has the instructions, for a byte type."""
    return to in (i8, u8) and k.isa.name in ("amx", "avx512", "avx2") and not _is_foreign(k)


def _is_foreign(k: Kernel) -> bool:
    """Whether code runs on a chip that may lack the instructions."""
    return k.isa.is_emulated


def saturated(k: Kernel, x: Val, zero: Val | None, to: DType) -> Val:
    """round(x) + zero for one, two or four registers."""
    n = k.lanes
    count = x.lanes // n
    bytes_ = packed(
        k, [rounded(k, x.shuffle(range(i, i + n)) if count > 1 else x) for i in range(0, x.lanes, n)], zero, to
    )
    words = k.bitcast(bytes_, i32)
    order = [ROW * row + j for j in range(count) for row in range(n // ROW)]
    return k.bitcast(words.shuffle(order), register_dtype(to))


def rounded(k: Kernel, x: Val) -> Val:
    """One register of f32 numbers as i32."""
    if x.lanes == 8:
        return k.intrinsic("llvm.x86.avx.cvt.ps2dq.256", [x], i32, 8)
    args = [x, k.zeros(i32, 16), k.const(-1, i16), k.const(CURRENT_ROUNDING, i32)]
    return k.intrinsic("llvm.x86.avx512.mask.cvtps2dq.512", args, i32, 16)


def packed(k: Kernel, vectors: Sequence[Val], zero: Val | None, to: DType) -> Val:
    """i32 vectors plus a zero point as bytes: row by row, four of each vector. One or two vectors are repeated."""
    n = vectors[0].lanes
    pairs = [(vectors[0], vectors[-1] if len(vectors) == 2 else vectors[0])]
    if len(vectors) == 4:
        pairs = [(vectors[0], vectors[1]), (vectors[2], vectors[3])]
    halves = [k.intrinsic(_WORDS[n], list(pair), i16, 2 * n) for pair in pairs]
    if zero is not None:
        point = k.value(k.cast(zero, i16), i16, 2 * n) if zero.lanes == 1 else k.splat(k.cast(zero[0], i16), 2 * n)
        halves = [k.intrinsic("llvm.sadd.sat", [half, point], i16, 2 * n, over=[half]) for half in halves]
    name = (_UNSIGNED if to is u8 else _SIGNED)[n]
    return k.intrinsic(name, [halves[0], halves[-1]], register_dtype(to), 4 * n)
