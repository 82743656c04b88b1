"""Vector dot products of bf16 pairs, as in AVX512-BF16.

    dot_pairs(c, a, b)    c[n] += a[n].odd b[n].odd, then += a[n].even b[n].even

Each sum is fused and rounds to nearest even; denormals are flushed to zero on input and output. On chips without the
instruction, ordinary vectors give the same bits.
"""

from __future__ import annotations

from sardonyx.providers.cpu.language.amx import HIGH_HALF, LANES, flushed, real
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Val, f32


def dot_pairs(k: Kernel, c: Val, a: Val, b: Val) -> Val:
    """``c`` in f32; pairs as 16 words of 32 bits, the even element in the low half."""
    assert k.isa.bf16_dot, f"{k.isa.name} has no products of pairs"
    if not k.isa.is_emulated:
        return k.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", [c, a, b], f32, LANES)
    total = flushed(k, c)
    for x, y in ((a & HIGH_HALF, b & HIGH_HALF), (a << 16, b << 16)):
        total = flushed(k, k.fma(real(k, x), real(k, y), total))
    return total
