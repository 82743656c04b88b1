"""Sine, cosine, tangent and their inverses.

Angles are reduced in f64; sines and cosines of f32 continue in f32, the tangent and the inverses use f64 for both
types. Angles of any size are reduced exactly: with a three-term pi/2 up to ``LARGE``, and beyond with the bits of 2/pi
that matter for the angle (Payne-Hanek).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, wraps

from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.float_formats import F64, exact_sum, format_of, polynomial
from sardonyx.providers.cpu.language.values import Val, f32, f64, i64, u64

Function = Callable[[Kernel, Val], Val]

LARGE = 2.0**45
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
"""pi/2 as a sum of f64."""
SIN = {
    f32: (-0.16666655242443085, 0.008332191035151482, -0.00019518604676704854),
    f64: (
        -0.16666666666666632, 0.008333333333322486, -0.0001984126982985337, 2.755731370506119e-06,
        -2.5050759887837575e-08, 1.5896886342185678e-10,
    ),
}  # fmt: skip
"""(sin(r) - r) / r^3, in powers of r^2, up to pi/4."""
COS = {
    f32: (0.04166664555668831, -0.00138873013202101, 2.4430670237052254e-05),
    f64: (
        0.0416666666666666, -0.001388888888887447, 2.4801587289666912e-05, -2.755731439926978e-07,
        2.087572899506333e-09, -1.1359917380652292e-11,
    ),
}  # fmt: skip
"""(cos(r) - 1 + r^2 / 2) / r^4, in powers of r^2, up to pi/4."""
ATAN = (
    -0.333333333333332, 0.1999999999995377, -0.1428571428021246, 0.11111110784165196, -0.09090897775723819,
    0.07692060496295387, -0.06663106812449598, 0.05847906245794367, -0.050393668957807745, 0.038065788605987826,
    -0.01790817856221009,
)  # fmt: skip
"""(atan(t) - t) / t^3, in powers of t^2, up to tan(pi/8)."""
ASIN = (
    0.1666666666666537, 0.0750000000034642, 0.04464285682055009, 0.030381959457100923, 0.022371750404306535,
    0.01735981949988812, 0.013884108290596862, 0.012176571665325436, 0.006496314900485548, 0.019614466557290707,
    -0.016358876263153216, 0.032004141986766675,
)  # fmt: skip
"""(asin(t) - t) / t^3, in powers of t^2, up to 1/2."""


def widening(fn: Function) -> Function:
    """An f64 function that takes f32 too."""

    @wraps(fn)
    def either(k: Kernel, x: Val) -> Val:
        return k.cast(fn(k, k.cast(x, f64)), f32) if x.dtype is f32 else fn(k, x)

    return either


def sin(k: Kernel, x: Val) -> Val:
    s, c, quadrant = quadrants(k, x)
    return k.select(x.eq(0.0), x, _signed(k, k.select(_is_odd(quadrant), c, s), quadrant))


def cos(k: Kernel, x: Val) -> Val:
    s, c, quadrant = quadrants(k, x)
    return _signed(k, k.select(_is_odd(quadrant), s, c), quadrant + 1)


@widening
def tan(k: Kernel, x: Val) -> Val:
    s, c, quadrant = quadrants(k, x)
    is_odd = _is_odd(quadrant)
    return k.select(x.eq(0.0), x, k.select(is_odd, -c, s) / k.select(is_odd, s, c))


def _is_odd(quadrant: Val) -> Val:
    return (quadrant & 1).ne(0)


def _signed(k: Kernel, v: Val, quadrant: Val) -> Val:
    """``v``, negated in quadrants 2 and 3."""
    f = format_of(v)
    return k.bitcast(k.bitcast(v, f.bits) ^ ((quadrant & 2) << (f.bits.bits - 2)), v.dtype)


def quadrants(k: Kernel, x: Val) -> tuple[Val, Val, Val]:
    """Sine and cosine of x reduced to [-pi/4, pi/4], and the number of the quadrant (its low two bits count)."""
    r, tail, quadrant = _reduced(k, k.cast(x, f64))
    r, quadrant = k.cast(r, x.dtype), k.cast(quadrant, format_of(x).bits)
    z = r * r
    half = 0.5 * z
    one = 1.0 - half
    lost = (1.0 - one) - half
    if x.dtype is f32:
        s = k.fma(r * z, polynomial(k, z, SIN[f32]), r)
    else:
        s = r + k.fma(r * z, polynomial(k, z, SIN[f64]), tail)
        lost = k.fma(-r, tail, lost)
    return s, one + k.fma(z * z, polynomial(k, z, COS[x.dtype]), lost), quadrant


def _reduced(k: Kernel, x: Val) -> tuple[Val, Val, Val]:
    """The reduction of an f64 angle: head and tail of the reduced angle, and the quadrant."""
    shifted = k.fma(x, 2 / math.pi, F64.shifter)
    n = shifted - F64.shifter
    second = n * -HALF_PI[1]
    r, lost = exact_sum(k.fma(n, -HALF_PI[0], x), second)
    tail = k.fma(n, -HALF_PI[2], lost + k.fma(n, -HALF_PI[1], -second))
    return _large(k, x, r, tail, k.bitcast(shifted, u64))


def _large(k: Kernel, x: Val, r: Val, tail: Val, quadrant: Val) -> tuple[Val, Val, Val]:
    """Reduces lanes from ``LARGE`` on again, one by one: they are rare, so the code is small."""
    is_large = k.abs(x) >= LARGE
    results = [k.var(v) for v in (r, tail, quadrant)]
    with k.when(is_large.any(), likely=False):
        memory = [k.local(v.dtype, v.lanes) for v in (x, r, tail, quadrant)]
        for place, v in zip(memory, (x, r, tail, quadrant), strict=True):
            place.store(0, v)
        with k.loop(0, x.lanes) as lane:
            one = memory[0].load(lane)
            with k.when(k.abs(one) >= LARGE):
                for place, v in zip(memory[1:], _reduced_large(k, one), strict=True):
                    place.store(lane, v)
        for result, place in zip(results, memory[1:], strict=True):
            result.set(place.load(0, x.lanes))
    return results[0].get(), results[1].get(), results[2].get()


def _reduced_large(k: Kernel, x: Val) -> tuple[Val, Val, Val]:
    """|x| * 2/pi modulo 4 in 128-bit fixed point: two bits of the quadrant, then the signed fraction."""
    bits = k.bitcast(x, u64)
    exponent = ((bits >> 52) & 0x7FF) - 1075
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    start = exponent + 62
    words = k.table(_two_over_pi(), u64).at(k.cast(start >> 6, i64))
    w = [words.load(i) for i in range(4)]
    by = start & 63
    a, b, c = (((w[i] << by) | ((w[i + 1] >> 1) >> (63 - by))) for i in range(3))
    low = mantissa * b
    middle = low + _high_product(mantissa, c)
    top = mantissa * a + _high_product(mantissa, b) + k.cast(middle < low, u64)
    signed = k.cast((top << 2) | (middle >> 62), i64)
    quadrant = (top >> 62) + k.cast(signed < 0, u64)
    head = k.cast(signed, f64)
    below = k.cast(signed - k.cast(head, i64), f64) * 2.0**-64 + k.cast(middle << 2, f64) * 2.0**-128
    head = head * 2.0**-64
    r = head * HALF_PI[0]
    tail = k.fma(head, HALF_PI[0], -r) + k.fma(head, HALF_PI[1], below * HALF_PI[0])
    is_negative = x < 0.0
    r = k.select(k.abs(x).eq(math.inf), math.nan, r)
    return (
        k.select(is_negative, -r, r),
        k.select(is_negative, -tail, tail),
        k.select(is_negative, k.zeros(u64) - quadrant, quadrant),
    )


def _high_product(a: Val, b: Val) -> Val:
    """The upper half of a product of 64-bit numbers."""
    a0, a1, b0, b1 = a & 0xFFFFFFFF, a >> 32, b & 0xFFFFFFFF, b >> 32
    cross = a1 * b0 + ((a0 * b0) >> 32)
    other = a0 * b1 + (cross & 0xFFFFFFFF)
    return a1 * b1 + (cross >> 32) + (other >> 32)


@cache
def _two_over_pi() -> tuple[int, ...]:
    """The bits of 2/pi from 2^63 down, 64 to a word: enough for the largest f64."""
    count, guard = 20 * 64, 64
    one = 1 << (count + guard)

    def arctangent_of_inverse(n: int) -> int:
        term = total = one // n
        for i in range(3, count + guard, 2):
            term //= -n * n
            total += term // i
        return total

    pi = 4 * (4 * arctangent_of_inverse(5) - arctangent_of_inverse(239))
    bits = (2 * one << count) // pi
    return 0, *((bits >> shift) & (2**64 - 1) for shift in range(count - 64, -1, -64))


# Inverses -----------------------------------------------------------------------------------------------------------


@widening
def atan(k: Kernel, x: Val) -> Val:
    """base + atan(t), |t| <= tan(pi/8), where base is atan of 0, 1 or infinity, whichever is nearest."""
    size = k.abs(x)
    is_far, is_near = size > 1 + math.sqrt(2), size < math.sqrt(2) - 1
    top = k.select(is_near, size, k.select(is_far, -1.0, size - 1.0))
    bottom = k.select(is_near, 1.0, k.select(is_far, size, size + 1.0))
    base, below = (k.select(is_near, 0.0, k.select(is_far, k.value(term, f64), 0.5 * term)) for term in HALF_PI[:2])
    t = top / bottom
    z = t * t
    return k.copysign(base + k.fma(t * z, polynomial(k, z, ATAN), below + t), x)


@widening
def asin(k: Kernel, x: Val) -> Val:
    size = k.abs(x)
    is_small = size < 0.5
    angle = _arcsine(k, size, is_small)
    return k.copysign(k.select(is_small, angle, HALF_PI[0] - (angle + angle - HALF_PI[1])), x)


@widening
def acos(k: Kernel, x: Val) -> Val:
    size = k.abs(x)
    is_small = size < 0.5
    angle = _arcsine(k, size, is_small)
    twice = angle + angle
    near = HALF_PI[0] - (k.copysign(angle, x) - HALF_PI[1])
    return k.select(is_small, near, k.select(x < 0.0, 2 * HALF_PI[0] - (twice - 2 * HALF_PI[1]), twice))


def _arcsine(k: Kernel, size: Val, is_small: Val) -> Val:
    """asin(size) if small, else asin(sqrt((1 - size) / 2)) = (pi/2 - asin(size)) / 2."""
    z = k.select(is_small, size * size, 0.5 * (1.0 - size))
    root = k.select(is_small, size, k.sqrt(z))
    return k.fma(root * z, polynomial(k, z, ASIN), root)
