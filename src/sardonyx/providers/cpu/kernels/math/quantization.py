"""QuantizeLinear and DequantizeLinear on vectors.

**Division.** x / scale is a product with the reciprocal y, and one step of Newton's iteration on the remainder:
q = x y, q + (x - q scale) y, which rounds as the division does. It takes three instructions instead of one that
blocks the divider for a cycle per element. The scale is first made close to 1 by a power of two, so that neither y nor
the remainder leaves the range of normal numbers. Scales that differ from element to element are divided by.

**Rounding.** x is clamped so that the result lies within the integer type. Adding 1.5 * 2^23 then rounds to an integer,
ties to even, which is in the low bits.

**Saturation.** Numbers that are in units of the scale already, and fit i32, are rounded by one conversion; packing
instructions saturate (``saturating_packs``).

**Numbers in registers.** What a kernel dequantizes right after it has quantized it is not narrowed in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.kernels.math import saturating_packs
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Val, f32, i32, register_dtype
from sardonyx.records import Record

Value: TypeAlias = "Val | int | float"

ROUNDER = 1.5 * 2**23
"""Floats of this magnitude are 1 apart."""
MARGIN = 0.25
"""What clamped numbers may exceed the largest and least integer by, in units of the scale: less than half a unit."""
SMALL_SCALE, LARGE_SCALE, SHIFT = 2.0**-60, 2.0**60, 2.0**64
NEAREST_ZERO, LARGEST = 2.0**-100, 2.0**100
"""In the place of scales of 0 and infinity."""


class Rounded(Record):
    """The integers that were quantized, as floats, and the zero point to be added to them."""

    units: Val
    zero: Val | None


def limits(dtype: DType) -> tuple[float, float]:
    half = 1 << (dtype.bits - 1)
    return (float(-half), float(half - 1)) if dtype.kind == "int" else (0.0, float(2 * half - 1))


def quantize(k: Kernel, operands: Sequence[Value], to: DType) -> Val:
    """round(x / scale) + zero, saturated to ``to``."""
    x, scale, zero = operands
    assert isinstance(x, Val)
    lowest, highest = limits(to)
    offset = k.cast(zero, f32) if isinstance(zero, Val) else None
    least, most = (lowest, highest) if offset is None else (lowest - offset, highest - offset)
    units = _in_units(k, k.cast(x, f32), scale, least, most)
    rounded = units + ROUNDER
    whole = k.bitcast(rounded, i32)
    if isinstance(zero, Val):
        whole = whole + k.value(k.cast(zero, i32), i32, whole.lanes)
    found = k.cast(whole, register_dtype(to))
    k.quantized[_key(k, found)] = Rounded(rounded - ROUNDER, zero if isinstance(zero, Val) else None)
    return found


def saturate(k: Kernel, operands: Sequence[Value], to: DType) -> Val:
    """round(x) + zero, saturated to a type of 8 bits, for an x below 2^30."""
    x, zero = operands
    assert isinstance(x, Val)
    point = zero if isinstance(zero, Val) else None
    x = k.cast(x, f32)
    if saturating_packs.supports(k, to) and x.lanes in (k.lanes, 2 * k.lanes, 4 * k.lanes):
        return saturating_packs.saturated(k, x, point, to)
    lowest, highest = limits(to)
    offset = None if point is None else k.cast(point, f32)
    least, most = (lowest, highest) if offset is None else (lowest - offset, highest - offset)
    whole = k.bitcast(_clamped(k, x, least, most) + ROUNDER, i32)
    if point is not None:
        whole = whole + k.value(k.cast(point, i32), i32, whole.lanes)
    return k.cast(whole, register_dtype(to))


def dequantize(k: Kernel, operands: Sequence[Value], to: DType) -> Val:
    """(q - zero) * scale."""
    q, scale, zero = operands
    assert isinstance(q, Val) and isinstance(scale, Val)
    kept: Rounded | None = k.quantized.get(_key(k, q))
    offset = zero if isinstance(zero, Val) else None
    if kept is None:
        units = k.cast(q, f32)
    elif _text(kept.zero) == _text(offset):
        return kept.units * scale
    else:
        units = kept.units if kept.zero is None else kept.units + k.cast(kept.zero, f32)
    if offset is not None:
        units = units - k.cast(offset, f32)
    return units * scale


def _key(k: Kernel, v: Val) -> tuple[int, str]:
    """A value's name within its function."""
    return id(k.b), v.ir.text


def _text(v: Val | None) -> str | None:
    return None if v is None else v.ir.text


def _in_units(k: Kernel, x: Val, scale: Value, least: Val | float, most: Val | float) -> Val:
    """x / scale, clamped to so much that it rounds to a number from ``least`` to ``most``; NaN as ``least``."""
    if not isinstance(scale, Val):
        return _clamped(k, x / scale if scale != 1 else x, least, most)
    scale = k.cast(scale, f32)
    if k.isa.is_baseline or not k.is_invariant(scale):
        return _clamped(k, x / scale, least, most)
    size = k.abs(scale)
    shift = k.select(size > LARGE_SCALE, k.const(1 / SHIFT, f32, scale.lanes), 1.0)
    shift = k.select(size < SMALL_SCALE, SHIFT, shift)
    near = k.copysign(k.max(k.min(k.abs(scale * shift), LARGEST), NEAREST_ZERO), scale)
    ends = (least - MARGIN) * near, (most + MARGIN) * near
    bounded = k.max(x * shift, k.min(*ends))
    bounded = k.min(bounded, k.max(*ends))
    inverse = 1.0 / near
    quotient = bounded * inverse
    return k.fma(k.fma(-quotient, near, bounded), inverse, quotient)


def _clamped(k: Kernel, x: Val, least: Val | float, most: Val | float) -> Val:
    return k.min(k.max(x, least), most)
