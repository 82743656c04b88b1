"""What the plainest chips have no instruction for: multiply-adds that are rounded once, and rounding to integers.

LLVM would call the C library for each lane; kernels call nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.providers.cpu.language.float_formats import exact_sum
from sardonyx.providers.cpu.language.values import Val, f32, f64

if TYPE_CHECKING:
    from sardonyx.providers.cpu.language.dsl import Kernel

_SPLIT = 2.0**27 + 1
"""Times an f64, this carries its upper half."""
_WHOLE = {f32: 2.0**23, f64: 2.0**52}
"""From here on there are only integers."""


def fma(k: Kernel, a: Val, b: Val, c: Val) -> Val:
    """a * b + c. Of f32 by way of f64, which holds the product; so what f64 does not hold of the sum is rounded twice.
    Of f64 from a product and a sum with what they lose, which may differ in the last place from one rounding, but not
    where the result is a number.
    """
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
    """Two numbers of half the bits that add up to one."""
    carried = v * _SPLIT
    high = carried - (carried - v)
    return high, v - high


def rint(k: Kernel, v: Val) -> Val:
    """Halves to even."""
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
