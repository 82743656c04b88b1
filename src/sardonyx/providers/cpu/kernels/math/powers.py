"""Powers and remainders of reals."""

from __future__ import annotations

import math

from sardonyx.providers.cpu.kernels.math.exponentials import exp, exp_reduced, log, reduced, scaled, split_any
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.float_formats import F64, Pair, exact_sum, polynomial
from sardonyx.providers.cpu.language.values import Val, f32, f64

LOG = (
    0.6666666666666666, 0.40000000000004937, 0.2857142856940414, 0.22222222608294856, 0.1818177823359473,
    0.15386994683081534, 0.13252007863867873, 0.13236114581528047,
)  # fmt: skip
"""``Format.log``, to 66 bits."""


def pow(k: Kernel, x: Val, y: Val) -> Val:
    """x to the power y, in the type of x; f32 is computed in f64."""
    if x.dtype is f32:
        wide, exponent = k.cast(x, f64), k.cast(y, f64)
        size = k.abs(wide)
        return k.cast(_edges(k, wide, exponent, exp(k, _bounded(k, exponent) * log(k, size))), f32)
    exponent = k.cast(y, f64)
    return _edges(k, x, exponent, _exp_product(k, _bounded(k, exponent), _log(k, k.abs(x))))


def pow_constant(k: Kernel, x: Val, exponent: float) -> Val:
    """x to the power of a constant; small integers and 0.5 need no logarithm."""
    if exponent in (1.0, 2.0, 3.0):
        return x if exponent == 1.0 else x * x if exponent == 2.0 else x * x * x
    if exponent == 0.0:
        return k.const(1.0, x.dtype, x.lanes)
    if exponent == -1.0:
        return 1.0 / x
    if exponent == 0.5:
        return k.select(x.eq(-math.inf), math.inf, k.sqrt(x) + 0.0)
    return pow(k, x, k.value(exponent, x.dtype, x.lanes))


def _bounded(k: Kernel, y: Val) -> Val:
    """Clamps exponents so large that they act like infinity."""
    return k.min(2.0**70, k.max(-(2.0**70), y))


def _edges(k: Kernel, x: Val, y: Val, value: Val) -> Val:
    """Adjusts |x|^y to x^y: zero and infinite bases, signs, NaN."""
    size = k.abs(x)
    is_extreme = size.eq(0.0) | size.eq(math.inf)
    grows = size.eq(0.0) ^ (y > 0.0)
    value = k.select(is_extreme, k.select(grows, k.value(math.inf, f64), 0.0), value)
    is_integer = k.trunc(y).eq(y)
    is_odd = is_integer & k.trunc(0.5 * y).ne(0.5 * y)
    is_negative = k.copysign(k.value(1.0, f64, x.lanes), x) < 0.0
    value = k.select(is_negative & is_odd, -value, value)
    value = k.select((x < 0.0) & ~(is_integer | is_extreme), math.nan, value)
    value = k.select(x.ne(x) | y.ne(y), math.nan, value)
    return k.select(y.eq(0.0) | x.eq(1.0), 1.0, value)


def _log(k: Kernel, x: Val) -> Pair:
    """log(x) to about 65 bits for positive finite x: 2 atanh(s), s = (m - 1) / (m + 1)."""
    exponent, m = split_any(k, x)
    g = m - 1.0
    bottom = 2.0 + g
    s = g / bottom
    s_low = (k.fma(-s, bottom, g) - s * (g - (bottom - 2.0))) / bottom
    z = s * s
    z_low = k.fma(s, s, -z) + (s + s) * s_low
    first, *others = LOG
    p, p_low = exact_sum(k.value(first, f64), z * polynomial(k, z, others))
    cube, cube_low = _product(k, (z, z_low), (s, s_low))
    rest, rest_low = _product(k, (cube, cube_low), (p, p_low))
    head, tail = F64.ln2
    total, low = exact_sum(exponent * head, s + s)
    total, lower = exact_sum(total, rest)
    tail_product = exponent * tail
    low = low + lower + (k.fma(exponent, tail, -tail_product) + rest_low + (s_low + s_low))
    total, lower = exact_sum(total, tail_product)
    return exact_sum(total, low + lower)


def _product(k: Kernel, a: Pair, b: Pair) -> Pair:
    value = a[0] * b[0]
    return value, k.fma(a[0], b[0], -value) + (a[0] * b[1] + a[1] * b[0])


def _exp_product(k: Kernel, y: Val, log_x: Pair) -> Val:
    """exp(y * log x)."""
    product = y * log_x[0]
    low = k.fma(y, log_x[0], -product) + y * log_x[1]
    is_inside = k.abs(product) < 1000.0
    r, n, word = reduced(k, k.min(F64.highest, k.max(F64.lowest, product)), 2 * F64.bias)
    return scaled(k, exp_reduced(k, r + k.select(is_inside, low, 0.0)), n, word)


def fmod(k: Kernel, a: Val, b: Val) -> Val:
    """The exact remainder of a division rounded towards zero; NaN for a zero divisor or an infinite dividend.

    Each iteration subtracts the quotient's leading bits times the divisor, which one fma does exactly. The divisor is
    scaled up first so that the quotient does not overflow.
    """
    if a.dtype is f32:
        return k.fenced(k.cast(fmod(k, k.cast(a, f64), k.cast(b, f64)), f32))
    lanes = max(a.lanes, b.lanes)
    a, b = k.value(a, f64, lanes), k.value(b, f64, lanes)
    divisor = k.abs(b)
    rest = k.var(k.select(b.ne(b), b, k.abs(a)))
    with k.loop_while(lambda: (k.abs(rest.get()) >= divisor).any()):
        r = rest.get()
        scaled_up = divisor
        for _ in range(3):
            larger = scaled_up * 2.0**600
            scaled_up = k.select(larger <= k.abs(r), larger, scaled_up)
        less = k.fma(-k.trunc(r / scaled_up), scaled_up, r)
        rest.set(k.select(k.abs(r) < divisor, r, less))
    r = rest.get()
    return k.copysign(k.select(r < 0.0, r + divisor, r), a)
