"""Floats of 8 bits and fewer: a byte in memory, f32 in registers, rounded once, to nearest even, by the store. Also f16
on chips without conversion instructions.

Out-of-range numbers become infinity if the type has one, else NaN if it has that, else the largest number. Saturating
casts clip first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.dtypes import DType, of_name
from sardonyx.providers.cpu.language.values import Val, f16, f32, u8, u16, u32
from sardonyx.records import Record

if TYPE_CHECKING:
    from sardonyx.providers.cpu.language.dsl import Kernel


class Minifloat(Record):
    """The format: sign, exponent, mantissa, and the codes that are not numbers."""

    exponent: int
    mantissa: int
    bias: int
    largest: int
    """The code of the largest number; those above are infinity or NaN."""
    overflow: int
    """The code that numbers larger than the largest become."""
    nan: int
    is_signed_nan: bool = True
    """Whether the sign of a NaN flips the first bit of its code."""
    has_minus_zero: bool = True

    @property
    def magnitude(self) -> int:
        return (1 << (self.exponent + self.mantissa)) - 1


FORMATS = {
    of_name("f8e4m3fn"): Minifloat(4, 3, 7, 0x7E, 0x7F, 0x7F),
    of_name("f8e4m3fnuz"): Minifloat(4, 3, 8, 0x7F, 0x80, 0x80, False, False),
    of_name("f8e5m2"): Minifloat(5, 2, 15, 0x7B, 0x7C, 0x7E),
    of_name("f8e5m2fnuz"): Minifloat(5, 2, 16, 0x7F, 0x80, 0x80, False, False),
    of_name("f4e2m1"): Minifloat(2, 1, 1, 0x7, 0x7, 0x8),
    f16: Minifloat(5, 10, 15, 0x7BFF, 0x7C00, 0x7E00),
}
POWER = of_name("f8e8m0")
"""Powers of two from 2^-127 on; 255 is NaN. Numbers round up to the next power, whatever their sign, at most 2^127."""


def widened(k: Kernel, raw: Val, dtype: DType) -> Val:
    """Codes to f32."""
    bits = k.cast(raw, u32)
    if dtype is POWER:
        power = k.select(bits.eq(0), 1 << 22, bits << 23)
        return k.bitcast(k.select(bits.eq(255), 0x7FC0_0000, power), f32)
    f = FORMATS[dtype]
    magnitude = bits & f.magnitude
    sign = (bits & (f.magnitude + 1)) << (31 - f.exponent - f.mantissa)
    number = k.bitcast(magnitude << (23 - f.mantissa), f32) * 2.0 ** (127 - f.bias)
    found = k.bitcast(number, u32)
    if f.largest < f.magnitude:
        infinite = 0x7F80_0000 if f.overflow != f.nan else 0x7FC0_0000
        special = k.select(magnitude.eq(f.overflow), infinite, k.const(0x7FC0_0000, u32, bits.lanes))
        found = k.select(magnitude > f.largest, special, found)
    elif f.nan == 0x80:
        found = k.select(bits.eq(0x80), 0x7FC0_0000, found)
        sign = k.select(bits.eq(0x80), 0, sign)
    return k.bitcast(found | sign, f32)


def narrowed(k: Kernel, v: Val, dtype: DType) -> Val:
    """f32 to codes."""
    bits = k.bitcast(v, u32)
    if dtype is POWER:
        magnitude = bits & 0x7FFF_FFFF
        power = k.select(magnitude.eq(1 << 22), 0, k.min((magnitude + 0x7F_FFFF) >> 23, 254))
        return k.cast(k.select(v.ne(v), 255, power), u8)
    f = FORMATS[dtype]
    magnitude, shift = bits & 0x7FFF_FFFF, 23 - f.mantissa
    even = (magnitude >> shift) & 1
    normal = ((magnitude + ((1 << (shift - 1)) - 1) + even) >> shift) - ((127 - f.bias) << f.mantissa)
    # A sum whose last bit is the smallest number of the type rounds to multiples of it.
    carrier = k.const(2.0 ** (24 - f.bias - f.mantissa), f32, v.lanes)
    small = k.bitcast(k.bitcast(magnitude, f32) + carrier, u32) - k.bitcast(carrier, u32)
    code = k.select(magnitude < ((128 - f.bias) << 23), small, normal)
    is_nan, is_over = magnitude > 0x7F80_0000, code > f.largest
    sign = (bits >> 31) << (f.exponent + f.mantissa)
    signed = code | sign
    if not f.has_minus_zero:
        signed = k.select(code.eq(0), 0, signed)
    plain = f.overflow == 0x80
    signed = k.select(is_over, k.const(f.overflow, u32, v.lanes) if plain else sign | f.overflow, signed)
    nan = k.const(f.nan, u32, v.lanes)
    return k.cast(k.select(is_nan, nan ^ sign if f.is_signed_nan else nan, signed), u16 if dtype is f16 else u8)
