"""Exponentials, logarithms and hyperbolic functions in f32 and f64: one algorithm, two tables of coefficients."""

from __future__ import annotations

import math

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.float_formats import F32, F64, format_of, polynomial
from sardonyx.providers.cpu.language.values import Val, f32, i8, i16, i32

TANH_SEAM = 0.55
CURRENT_ROUNDING = 4
"""The rounding operand of AVX-512 intrinsics: use the current mode."""


def reduced(k: Kernel, x: Val, bias: int) -> tuple[Val, Val, Val]:
    """Range reduction x = n ln 2 + r, |r| <= ln 2 / 2: returns r, n, and an integer whose low bits are n + bias."""
    f = format_of(x)
    shifter = f.shifter + bias
    shifted = k.fma(x, 1 / math.log(2), shifter)
    n = shifted - shifter
    head, tail = f.ln2
    return k.fma(n, -tail, k.fma(n, -head, x)), n, k.bitcast(shifted, f.bits)


def power_of_two(k: Kernel, word: Val, dtype: DType) -> Val:
    """2^n for normal results; the low bits of ``word`` are n + bias."""
    return k.bitcast(word << (F32 if dtype is f32 else F64).mantissa, dtype)


def expm1_reduced(k: Kernel, r: Val) -> Val:
    """exp(r) - 1 for |r| <= ln 2 / 2."""
    return k.fma(r * r, polynomial(k, r, format_of(r).expm1), r)


def has_scale(k: Kernel, v: Val) -> bool:
    """Whether one instruction scales by powers of two, including overflow and denormal results (``vscalef``)."""
    return k.isa.name in ("avx512", "amx") and not k.isa.is_emulated and v.lanes * v.dtype.bits == 512


def scaled(k: Kernel, v: Val, n: Val, word: Val) -> Val:
    """v * 2^n, rounded once, with overflow to infinity and denormal results. ``word`` holds n + 2 * bias."""
    if has_scale(k, v):
        name, mask = ("ps", k.const(-1, i16)) if v.dtype is f32 else ("pd", k.const(-1, i8))
        args = [v, n, v, mask, k.const(CURRENT_ROUNDING, i32)]
        return k.intrinsic(f"llvm.x86.avx512.mask.scalef.{name}.512", args, v.dtype, v.lanes)
    half = word >> 1
    return v * power_of_two(k, half, v.dtype) * power_of_two(k, word - half, v.dtype)


def exp(k: Kernel, x: Val) -> Val:
    """exp(x). Arguments whose result is 0 are selected out, because x86 takes hundreds of cycles for an underflow."""
    f = format_of(x)
    if has_scale(k, x):
        r, n, word = reduced(k, k.min(f.highest, x), 2 * f.bias)
        return k.select(x < f.lowest, 0.0, scaled(k, exp_reduced(k, r), n, word))
    r, n, word = reduced(k, k.min(f.highest, k.max(f.lowest, x)), 2 * f.bias)
    return scaled(k, exp_reduced(k, r), n, word)


def exp_reduced(k: Kernel, r: Val) -> Val:
    """exp(r) for |r| <= ln 2 / 2."""
    return polynomial(k, r, (1.0, 1.0, *format_of(r).expm1))


def exp_in_sigmoid(k: Kernel, x: Val) -> Val:
    """exp(x), as accurate as 1 / (1 + exp(x)) needs.

    Small results are at least exp(-2 * mantissa), which added to 1 is still 1: a denormal would cost hundreds of
    cycles. Results whose reciprocal is denormal may be infinite, so that one multiplication by a power of two is
    enough.
    """
    f = format_of(x)
    x = k.min(f.highest, k.max(-2.0 * f.mantissa, x))
    if has_scale(k, x):
        r, n, word = reduced(k, x, 2 * f.bias)
        return scaled(k, exp_reduced(k, r), n, word)
    r, _, word = reduced(k, x, f.bias)
    return exp_reduced(k, r) * power_of_two(k, word, x.dtype)


def exp_nonpositive(k: Kernel, x: Val, least: int | None = None) -> Val:
    """exp(x) for x <= 0, flushed to 0 below 2^(least + 1/2); by default, below the normal numbers.

    For softmax, whose largest term is 1. No product underflows, which would take x86 hundreds of cycles. At n = least
    the exponent bits n - least encode 0; above, they encode a normal number that is too small by 2^(bias + least),
    which the polynomial's coefficients make up for.
    """
    f = format_of(x)
    least = 1 - f.bias if least is None else least
    r, _, word = reduced(k, k.max((least - 0.49) * math.log(2), x), -least)
    larger = polynomial(k, r, [c * 2.0 ** (f.bias + least) for c in (1.0, 1.0, *f.expm1)])
    return larger * power_of_two(k, word, x.dtype)


def expm1(k: Kernel, x: Val) -> Val:
    """exp(x) - 1, as 2 * (2^(n-1) exp(r) - 1/2), because 2^n may overflow where the result does not."""
    f = format_of(x)
    r, _, word = reduced(k, k.min(f.highest, k.max(-2.0 * f.mantissa, x)), f.bias - 1)
    half = power_of_two(k, word, x.dtype)
    value = k.fma(half, expm1_reduced(k, r), half - 0.5)
    return k.copysign(value + value, x)


def tanh(k: Kernel, x: Val) -> Val:
    """tanh(x): for small |x| as x + x^3 p(x^2) with a polynomial p, else as 1 - 2 / (exp(2|x|) + 1).

    From |x| = ``mantissa`` / 2 on, tanh rounds to 1, so |x| is clamped there.
    """
    f = format_of(x)
    size = k.min(0.5 * f.mantissa, k.abs(x))
    square = size * size
    near = k.fma(size * square, polynomial(k, square, f.tanh), size)
    r, _, word = reduced(k, size + size, f.bias)
    power = exp_reduced(k, r) * power_of_two(k, word, x.dtype)
    far = 1.0 - 2.0 / (power + 1.0)
    return k.copysign(k.select(size < TANH_SEAM, near, far), x)


def erf(k: Kernel, x: Val) -> Val:
    """erf(x): for small |x| as x + x p(x^2) with a polynomial p, else as 1 - q(|x|)^(2^m).

    The polynomial q approximates the 2^m-th root of erfc.
    """
    f = format_of(x)
    size = k.min(f.erf_end, k.abs(x))
    near = k.fma(x, polynomial(k, x * x, f.erf_near), x)
    root = polynomial(k, size - f.erf_centre, f.erf_far)
    for _ in range(f.erf_root - 1):
        root = root * root
    far = k.copysign(k.fma(-root, root, 1.0), x)
    return k.select(size < f.erf_seam, near, far)


# Logarithms ---------------------------------------------------------------------------------------------------------


def log(k: Kernel, x: Val) -> Val:
    exponent, m = split_any(k, x)
    return edges(k, x, log_split(k, exponent, m - 1.0))


def log1p(k: Kernel, x: Val) -> Val:
    """log(1 + x), as log(u) + (1 + x - u) / u with u = 1 + x rounded."""
    u = 1.0 + x
    lost = k.select(u - 1.0 > 1.0, 1.0 - (u - x), x - (u - 1.0))
    exponent, m = split(k, u)
    value = log_split(k, exponent, m - 1.0, lost / u)
    return k.copysign(edges(k, u, value), x)


def split(k: Kernel, x: Val) -> tuple[Val, Val]:
    """A positive normal number as 2^exponent * m, sqrt(1/2) <= m < sqrt(2)."""
    f = format_of(x)
    bits = k.bitcast(x, f.signed)
    exponent = (bits - f.sqrt_half) >> f.mantissa
    return k.cast(exponent, x.dtype), k.bitcast(bits - (exponent << f.mantissa), x.dtype)


def split_any(k: Kernel, x: Val) -> tuple[Val, Val]:
    """``split`` of a positive number that may be denormal."""
    f = format_of(x)
    is_denormal = x < 2.0 ** (1 - f.bias)
    exponent, m = split(k, k.select(is_denormal, x * 2.0**f.mantissa, x))
    return exponent - k.select(is_denormal, k.value(float(f.mantissa), x.dtype), 0.0), m


def log_split(k: Kernel, exponent: Val, g: Val, correction: Val | float = 0.0) -> Val:
    """exponent * ln 2 + log(1 + g) + correction: log(1 + g) = 2 atanh(s), s = g / (2 + g), less g - g^2 / 2."""
    f = format_of(g)
    s = g / (2.0 + g)
    z = s * s
    square = 0.5 * g * g
    head, tail = f.ln2
    small = k.fma(s, k.fma(z, polynomial(k, z, f.log), square), k.fma(exponent, tail, correction))
    return k.fma(exponent, head, g - (square - small))


def edges(k: Kernel, x: Val, value: Val) -> Val:
    """``value``, the logarithm of x, with the results for x that is infinite, NaN, zero or negative put in."""
    value = k.select(x < math.inf, value, x)
    value = k.select(x.eq(0.0), -math.inf, value)
    return k.select(x < 0.0, math.nan, value)


# Hyperbolic functions -----------------------------------------------------------------------------------------------


def half_exp(k: Kernel, x: Val) -> Val:
    """exp(x) / 2 for x >= 0, which overflows later than exp(x)."""
    f = format_of(x)
    r, n, word = reduced(k, k.min(f.highest + 1.0, x), 2 * f.bias - 1)
    return scaled(k, exp_reduced(k, r), n - 1.0, word)


def sinh(k: Kernel, x: Val) -> Val:
    size = k.abs(x)
    half = half_exp(k, size)
    small = expm1(k, k.min(1.0, size))
    near = 0.5 * (small + small / (small + 1.0))
    return k.copysign(k.select(size < 1.0, near, half - 0.25 / half), x)


def cosh(k: Kernel, x: Val) -> Val:
    half = half_exp(k, k.abs(x))
    return half + 0.25 / half


def asinh(k: Kernel, x: Val) -> Val:
    size = k.abs(x)
    square = size * size
    return k.copysign(_log1p_or_double(k, size, size + square / (1.0 + k.sqrt(square + 1.0))), x)


def acosh(k: Kernel, x: Val) -> Val:
    t = x - 1.0
    return k.select(x < 1.0, math.nan, _log1p_or_double(k, x, t + k.sqrt(k.fma(t, t, t + t))))


def _log1p_or_double(k: Kernel, x: Val, argument: Val) -> Val:
    """log(1 + argument), or log(2x) if x is so large that its square may overflow."""
    is_large = x > 2.0 ** (format_of(x).mantissa + 7)
    doubled = k.select(is_large, k.value(math.log(2), x.dtype), 0.0)
    return log1p(k, k.select(is_large, x, argument)) + doubled


def atanh(k: Kernel, x: Val) -> Val:
    size = k.abs(x)
    return k.copysign(0.5 * log1p(k, (size + size) / (1.0 - size)), x)
