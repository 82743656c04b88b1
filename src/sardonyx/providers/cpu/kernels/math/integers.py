"""Integer arithmetic without undefined behaviour: zero divisors, overflow, shifts out of range, powers."""

from __future__ import annotations

from sardonyx.dtypes import DType
from sardonyx.dtypes import of_name as dtype_named
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Val, f64


def divide(k: Kernel, a: Val, b: Val) -> Val:
    """a / b rounded towards zero; 0 for a zero divisor. The minimum divided by -1 wraps to itself."""
    return k.select(b.eq(0), 0, a / _safe(k, a, b))


def remainder(k: Kernel, a: Val, b: Val) -> Val:
    """a - b * divide(a, b), with the sign of a; 0 for a zero divisor."""
    return a.remainder(_safe(k, a, b))


def floor_mod(k: Kernel, a: Val, b: Val) -> Val:
    """The remainder with the sign of the divisor; 0 for a zero divisor."""
    r = remainder(k, a, b)
    if a.dtype.kind == "uint":
        return r
    crosses = r.ne(0) & b.ne(0) & ((r ^ b) < 0)
    return k.select(crosses, r + b, r)


def ceil_div(a: Val, b: Val | int) -> Val:
    """a / b rounded up, for b > 0 and numbers that do not overflow."""
    return (a + (b - 1)) // b


def _safe(k: Kernel, a: Val, b: Val) -> Val:
    """A divisor that does not trap: 1 instead of 0, and instead of -1 if the quotient would overflow."""
    bad = b.eq(0)
    if a.dtype.kind == "int":
        bad = bad | (a.eq(-(1 << (a.dtype.bits - 1))) & b.eq(-1))
    return k.select(bad, 1, b)


def shift_left(k: Kernel, a: Val, count: Val) -> Val:
    is_out = _is_out(k, count)
    return k.select(is_out, 0, a << k.select(is_out, 0, count))


def shift_right(k: Kernel, a: Val, count: Val) -> Val:
    """Arithmetic shift of signed, logical shift of unsigned numbers."""
    is_out = _is_out(k, count)
    if a.dtype.kind == "int":
        return a >> k.select(is_out, a.dtype.bits - 1, count)
    return k.select(is_out, 0, a >> k.select(is_out, 0, count))


def _is_out(k: Kernel, count: Val) -> Val:
    return k.cast(count, _unsigned(count.dtype)) >= count.dtype.bits


def _unsigned(dtype: DType) -> DType:
    return dtype_named(f"u{dtype.bits}")


def power(k: Kernel, base: Val, exponent: Val) -> Val:
    """base ^ exponent modulo 2^bits; for a negative exponent, the truncated real result."""
    lanes = max(base.lanes, exponent.lanes)
    base, narrow = k.value(base, base.dtype, lanes), k.value(exponent, base.dtype, lanes)
    result = k.var(k.const(1, base.dtype, lanes))
    factor, left = k.var(base), k.var(k.cast(narrow, _unsigned(base.dtype)))
    with k.loop_while(lambda: left.get().ne(0).any()):
        result.set(k.select((left.get() & 1).ne(0), result.get() * factor.get(), result.get()))
        factor.set(factor.get() * factor.get())
        left.set(left.get() >> 1)
    wrapped = result.get()
    if exponent.dtype.kind == "uint":
        return wrapped
    return k.select(k.value(exponent, exponent.dtype, lanes) < 0, _reciprocal_power(k, base, narrow), wrapped)


def _reciprocal_power(k: Kernel, base: Val, exponent: Val) -> Val:
    """The power of 1 is 1, of -1 is 1 or -1, of 0 is infinity cast to the type; all others truncate to 0."""
    is_odd = (exponent & 1).ne(0)
    value = k.select(base.eq(1), 1, k.zeros(base.dtype, base.lanes))
    if base.dtype.kind == "int":
        value = k.select(base.eq(-1), k.select(is_odd, -1, k.const(1, base.dtype, base.lanes)), value)
    infinite = k.cast(k.const(float("inf"), f64, base.lanes), base.dtype)
    return k.select(base.eq(0), infinite, value)


def power_constant(k: Kernel, base: Val, exponent: int) -> Val:
    """base ^ exponent modulo 2^bits for a constant exponent >= 0, by repeated squaring."""
    result = k.const(1, base.dtype, base.lanes)
    while exponent:
        if exponent & 1:
            result = result * base
        base, exponent = base * base, exponent >> 1
    return result
