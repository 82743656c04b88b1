"""Constants of f32 and f64 for elementary functions: layout, limits, and polynomial coefficients.

Polynomials are minimax fits, in rising powers, rounded coefficient by coefficient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Val, f32, f64, i32, i64, u32, u64
from sardonyx.records import Record

Pair: TypeAlias = tuple[Val, Val]
"""A number as an unevaluated sum of two, the second below the last bit of the first."""


class Format(Record):
    """What the algorithms need of a type."""

    bits: DType
    """The unsigned integers of its width."""
    signed: DType
    mantissa: int
    bias: int
    shifter: float
    """Added to a small number, it leaves the number's integer in the lowest bits."""
    ln2: tuple[float, float]
    """ln 2 as head and tail. The head has so few bits that its product with an exponent is exact."""
    sqrt_half: int
    """The bits of sqrt(1/2)."""
    lowest: float
    """exp is 0 from here down."""
    highest: float
    """exp is infinite from here on."""
    expm1: tuple[float, ...]
    """(exp(r) - 1 - r) / r^2, for |r| up to half of ln 2."""
    log: tuple[float, ...]
    """(2 atanh(s) - 2s) / s^3, in powers of s^2, for |s| up to (sqrt 2 - 1) / (sqrt 2 + 1)."""
    tanh: tuple[float, ...]
    """(tanh(x) - x) / x^3, in powers of x^2, up to the seam."""
    erf_seam: float
    erf_near: tuple[float, ...]
    """erf(x) / x - 1 in powers of x^2, up to the seam."""
    erf_end: float
    """The number from which on erf is 1."""
    erf_centre: float
    erf_root: int
    erf_far: tuple[float, ...]
    """erfc(x) after ``erf_root`` square roots, in powers of x - centre, from the seam on."""


F32 = Format(
    bits=u32, signed=i32, mantissa=23, bias=127, shifter=1.5 * 2**23,
    ln2=(0.693359375, -2.12194440e-4), sqrt_half=0x3F3504F3, lowest=-104.0, highest=89.0,
    expm1=(0.5, 0.16666539013385773, 0.04166661202907562, 0.008367099799215794, 0.001391763100400567),
    log=(0.6666677594184875, 0.3997756838798523, 0.29871460795402527),
    tanh=(
        -0.33333316445350647, 0.13332544267177582, -0.0538475476205349, 0.02105071395635605, -0.0062428489327430725,
    ),
    erf_seam=1.0,
    erf_near=(
        0.12837916612625122, -0.3761262893676758, 0.11283618211746216, -0.02685512602329254, 0.005190733354538679,
        -0.0008030750323086977, 7.920303323771805e-05,
    ),
    erf_end=3.93, erf_centre=2.0, erf_root=2,
    erf_far=(
        0.26152241230010986, -0.2888619303703308, 0.09913448244333267, 0.006895986385643482, -0.012227589264512062,
        0.0015660830540582538, 0.0007545413100160658, -0.00021843072318006307, -2.0442832465050742e-05,
        1.2182435966678895e-05,
    ),
)  # fmt: skip

F64 = Format(
    bits=u64, signed=i64, mantissa=52, bias=1023, shifter=1.5 * 2**52,
    ln2=(6.93147180369123816490e-01, 1.90821492927058770002e-10), sqrt_half=0x3FE6A09E667F3BCD,
    lowest=-746.0, highest=710.0,
    expm1=(
        0.5, 0.16666666666666677, 0.04166666666666667, 0.00833333333332146, 0.0013888888888879067,
        0.0001984126988647369, 2.4801587343576507e-05, 2.7557243910162925e-06, 2.755725130136356e-07,
        2.5109131631853523e-08, 2.0923478494683105e-09,
    ),
    log=(
        0.6666666666666735, 0.3999999999940935, 0.28571428743686583, 0.2222219842897094, 0.18183572354898359,
        0.15313832176610442, 0.1479825858630992,
    ),
    tanh=(
        -0.3333333333333333, 0.1333333333333293, -0.053968253967948486, 0.02186948852452099, -0.00886323526982422,
        0.0035921243262306696, -0.0014557989661207124, 0.0005897954755878417, -0.00023807920467494616,
        9.366100103027492e-05, -3.256769798696786e-05, 7.222777180484055e-06,
    ),
    erf_seam=1.0,
    erf_near=(
        0.1283791670955126, -0.3761263890318411, 0.11283791670972064, -0.026866170648280875, 0.005223977655682033,
        -0.0008548328735027311, 0.00012055394316977051, -1.492709442547444e-05, 1.648472152689408e-06,
        -1.659822818287741e-07, 1.6302956498243907e-08, -1.7629491436425286e-09, 1.638018079403819e-10,
    ),
    erf_end=5.93, erf_centre=3.0, erf_root=3,
    erf_far=(
        0.261833786228657, -0.20631696198058114, 0.04995093773396794, 0.003098036424789543, -0.0034115553112125338,
        0.00032560827983937836, 0.00010421866045774054, -2.3491905474798015e-05, -8.680507021429529e-07,
        6.988520393845778e-07, -2.977323898040671e-08, -1.3504432479129752e-08, 1.3597853624037731e-09,
        2.0128525343563682e-10, -4.1398147491565854e-11, 6.620203766163718e-13, 8.939850856011122e-13,
        -3.390508615186141e-14, -6.721853265098155e-14, -1.3772162584028094e-14,
    ),
)  # fmt: skip


def format_of(v: Val) -> Format:
    assert v.dtype in (f32, f64), v.dtype
    return F32 if v.dtype is f32 else F64


def polynomial(k: Kernel, x: Val, coefficients: Sequence[float]) -> Val:
    """Horner's scheme, in rising powers."""
    value = k.value(coefficients[-1], x.dtype, x.lanes)
    for c in coefficients[-2::-1]:
        value = k.fma(value, x, c)
    return value


def exact_sum(a: Val, b: Val) -> Pair:
    """a + b and what rounding took from it."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)
