"""Products of bytes by fours: total[i] += sum over t < 4 of a[4i + t] * b[4i + t], in i32, exactly.

Each chip has the four products in one instruction for one pair of signs: two signed operands on Arm, an unsigned and a
signed one on x86. An operand of the other sign has 128 taken away or added, by one bit, and its kernel adds what that
changed: 128 times the sum of the other operand. Older chips of x86 add pairs of products of 16 bits.
"""

from __future__ import annotations

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Val, i8, i16, i32, u8, u16, u32
from sardonyx.providers.cpu.machine.isa import Isa

FLIP = 0x8080_8080
_PAIRS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}
_FOURS = {16: "llvm.x86.avx512.vpdpbusd.512", 8: "llvm.x86.avx512.vpdpbusd.256"}


def other_sign(isa: Isa) -> DType:
    """The sign that an operand has beside a signed one."""
    return i8 if isa.name == "neon" else u8


def offset(given: DType, wanted: DType) -> int:
    """What was taken away from an operand of type ``given`` to make it one of ``wanted``."""
    return 0 if given is wanted else 128 if given is u8 else -128


def flipped(quads: Val) -> Val:
    """Fours of bytes of the other sign: less or more by 128."""
    return quads ^ FLIP


def dot(k: Kernel, total: Val, a: Val, b: Val, a_dtype: DType, b_dtype: DType) -> Val:
    """``a`` and ``b`` are fours of bytes, as i32."""
    isa, lanes = k.isa, total.lanes
    if isa.byte_dot and not isa.is_emulated:
        first, second = (k.bitcast(v, i8) for v in (a, b))
        if isa.name == "neon":  # the second operand may be one lane of a vector
            return k.intrinsic("llvm.aarch64.neon.sdot", [total, second, first], i32, lanes, over=[total, first])
        if (a_dtype, b_dtype) == (i8, u8):
            first, second = second, first
        return k.intrinsic(_FOURS[lanes], [total, first, second], i32, lanes)
    if isa.name in ("amx", "avx512", "avx2") and not isa.is_emulated:
        for x, y in zip(_halves(k, a, a_dtype), _halves(k, b, b_dtype), strict=True):
            total = total + k.intrinsic(_PAIRS[lanes], [x, y], i32, lanes)
        return total
    for t in range(4):
        total = total + _byte(k, a, a_dtype, t) * _byte(k, b, b_dtype, t)
    return total


def _halves(k: Kernel, quads: Val, dtype: DType) -> tuple[Val, Val]:
    """The even and the odd bytes, as 16 bits each."""
    if dtype is u8:
        words = k.bitcast(quads, u16)
        return k.bitcast(words & 0xFF, i16), k.bitcast(words >> 8, i16)
    words = k.bitcast(quads, i16)
    return (words << 8) >> 8, words >> 8


def _byte(k: Kernel, quads: Val, dtype: DType, t: int) -> Val:
    """Byte ``t`` of each four."""
    wide = k.bitcast(quads, u32 if dtype is u8 else i32) << (24 - 8 * t)
    return k.bitcast(wide >> 24, i32)
