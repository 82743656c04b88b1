"""The 4-way dot product of bytes: total[i] += sum over t < 4 of a[4i + t] * b[4i + t], in i32, exactly.

VNNI and SDOT compute it in one instruction, for one pair of signs each: u8 * i8 on x86, i8 * i8 on Arm. An operand of
the other sign is shifted by 128, which flips its sign bit; the kernel compensates with 128 times the sum of the other
operand. x86 chips without VNNI add pairs of 16-bit products.
"""

from __future__ import annotations

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Val, i8, i16, i32, u8, u16, u32
from sardonyx.providers.cpu.machine.isa import Isa

SIGN_BITS = 0x8080_8080
"""The sign bits of four bytes."""
_PAIRS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}
_QUADS = {16: "llvm.x86.avx512.vpdpbusd.512", 8: "llvm.x86.avx512.vpdpbusd.256"}


def partner_dtype(isa: Isa) -> DType:
    """The type that the chip's dot product multiplies with i8."""
    return i8 if isa.name == "neon" else u8


def zero_offset(given: DType, wanted: DType) -> int:
    """What is subtracted from elements of type ``given`` to represent them as ``wanted``: 0, 128 or -128."""
    return 0 if given is wanted else 128 if given is u8 else -128


def flip_signs(quads: Val) -> Val:
    """Bytes of the other sign, shifted by 128; four in each lane."""
    return quads ^ SIGN_BITS


def dot(k: Kernel, total: Val, a: Val, b: Val, a_dtype: DType, b_dtype: DType) -> Val:
    """``total`` plus the dot products of the four bytes in each lane of ``a`` and ``b``, which are i32 vectors."""
    isa, lanes = k.isa, total.lanes
    if isa.byte_dot and not isa.is_emulated:
        first, second = (k.bitcast(v, i8) for v in (a, b))
        if isa.name == "neon":  # the second operand may be one lane of a vector
            return k.intrinsic("llvm.aarch64.neon.sdot", [total, second, first], i32, lanes, over=[total, first])
        if (a_dtype, b_dtype) == (i8, u8):
            first, second = second, first
        return k.intrinsic(_QUADS[lanes], [total, first, second], i32, lanes)
    if isa.name in ("amx", "avx512", "avx2") and not isa.is_emulated:
        for x, y in zip(_halves(k, a, a_dtype), _halves(k, b, b_dtype), strict=True):
            total = total + k.intrinsic(_PAIRS[lanes], [x, y], i32, lanes)
        return total
    for t in range(4):
        total = total + _byte(k, a, a_dtype, t) * _byte(k, b, b_dtype, t)
    return total


def _halves(k: Kernel, quads: Val, dtype: DType) -> tuple[Val, Val]:
    """The even and the odd bytes, widened to 16 bits."""
    if dtype is u8:
        words = k.bitcast(quads, u16)
        return k.bitcast(words & 0xFF, i16), k.bitcast(words >> 8, i16)
    words = k.bitcast(quads, i16)
    return (words << 8) >> 8, words >> 8


def _byte(k: Kernel, quads: Val, dtype: DType, t: int) -> Val:
    """Byte ``t`` of each lane."""
    wide = k.bitcast(quads, u32 if dtype is u8 else i32) << (24 - 8 * t)
    return k.bitcast(wide >> 24, i32)
