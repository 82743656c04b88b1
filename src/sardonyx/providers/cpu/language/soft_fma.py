"""Fused multiply-add and rounding for chips without the instructions.

LLVM would call the C library for each lane; kernels call nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.providers.cpu.language.float_formats import exact_sum
from sardonyx.providers.cpu.language.values import Val, f32, f64

if TYPE_CHECKING:
    from sardonyx.providers.cpu.language.dsl import Kernel

_SPLIT = 2.0**27 + 1
"""Multiplied with an f64, splits off its upper half (Dekker)."""
_WHOLE = {f32: 2.0**23, f64: 2.0**52}
"""Every f64 from here on is an integer."""


def fma(k: Kernel, a: Val, b: Val, c: Val) -> Val:
    """a * b + c. For f32 in f64, which holds the product exactly, so that only the sum may be rounded twice. For f64 by
    error-free transformations, which may differ from one rounding in the last bit."""
    if a.dtype is f32:
        wide = [k.cast(v, f64) for v in (a, b, c)]
        return k.cast(wide[0] * wide[1] + wide[2], f32)
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    lost = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    total, rest = exact_sum(product, c)
    rest = rest + lost
    return k.select(rest.ne(rest), total, total + rest)  # past the largest numbers


def _halves(v: Val) -> tuple[Val, Val]:
    """Split a number into two of half the bits."""
    carried = v * _SPLIT
    high = carried - (carried - v)
    return high, v - high


def rint(k: Kernel, v: Val) -> Val:
    """To nearest, ties to even."""
    limit = k.copysign(k.const(_WHOLE[v.dtype], v.dtype, v.lanes), v)
    return k.select(k.abs(v) < _WHOLE[v.dtype], k.copysign((v + limit) - limit, v), v)


def floor(k: Kernel, v: Val) -> Val:
    near = rint(k, v)
    return k.select(near > v, near - 1.0, near)


def ceil(k: Kernel, v: Val) -> Val:
    near = rint(k, v)
    return k.select(near < v, k.copysign(near + 1.0, v), near)


def trunc(k: Kernel, v: Val) -> Val:
    return k.copysign(floor(k, k.abs(v)), v)
