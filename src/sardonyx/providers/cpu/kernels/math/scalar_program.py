"""Emits scalar programs (``ir.scalar``) on vectors, with exactly the semantics stated there.

An integer that is combined with a real constant, or is the argument of a real function, is carried as f64 and truncated
where an integer is needed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from sardonyx.dtypes import DType
from sardonyx.ir.scalar import Program, Step, Type
from sardonyx.providers.cpu.kernels.math import byte_lookup, functions, integers, quantization
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.float_formats import F32
from sardonyx.providers.cpu.language.values import NARROW, SMALL, Val, bf16, bool_, f32, f64, register_dtype

Value: TypeAlias = "Val | int | float"
"""The value of a step: a vector, or a constant of the program."""

_FUNCTIONS = frozenset((
    "exp", "expm1", "log", "log1p", "erf", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
))  # fmt: skip


def supported(program: Program, dtypes: Sequence[DType]) -> str | None:
    """None if ``emit`` supports the program for these types, else the reason why not."""
    for step in program.steps:
        dtype = dtypes[step.type] if isinstance(step.type, int) else step.type
        if dtype is not None and dtype not in NARROW and dtype not in (f32, f64, bool_) and not _is_integer(dtype):
            return f"{dtype} has no registers"
        if step.op in _QUANTIZATION:
            continue
        if dtype in SMALL and step.op not in _MOVES:
            return f"{step.op} of {dtype} is not compiled"
        if step.op not in _OPERATIONS and step.op not in _LEAVES:
            return f"{step.op} has no vector code"
        if step.type is None and step.op not in _LEAVES:
            return f"{step.op} of constants alone"
    return None


_QUANTIZATION = {
    "quantize": quantization.quantize, "dequantize": quantization.dequantize, "lookup": byte_lookup.lookup,
    "saturate": quantization.saturate,
}  # fmt: skip
_MOVES = frozenset(("arg", "cast", "copy", "where"))


def _is_integer(dtype: DType) -> bool:
    return dtype.is_integer


def emit(k: Kernel, program: Program, args: Sequence[Val], dtypes: Sequence[DType]) -> Val:
    """The program on vectors. ``dtypes`` are the arguments' types in the graph; f16 and bf16 arrive as f32.

    The result has the register type of the program's result type.
    """
    reason = supported(program, dtypes)
    assert reason is None, reason
    assert len(args) == len(dtypes) == program.arity, (len(args), program.arity)

    def dtype_of(t: Type) -> DType:
        dtype = dtypes[t] if isinstance(t, int) else t
        assert dtype is not None
        return dtype

    values: list[Value] = []
    sigmoid_exps = _sigmoid_exps(program)
    for i, step in enumerate(program.steps):
        if step.op in _LEAVES:
            values.append(args[step.value] if step.op == "arg" else step.value)
        elif i in sigmoid_exps:
            values.append(functions.exp_in_sigmoid(k, *_unified(k, [values[step.args[0]]], dtype_of(step.type))))
        else:
            values.append(_apply(k, step, [values[i] for i in step.args], dtype_of(step.type)))
    last = values[-1]
    assert isinstance(last, Val)
    return k.cast(last, register_dtype(dtype_of(program.type)))


def _sigmoid_exps(program: Program) -> set[int]:
    """Exponentials e that are used only in 1 / (1 + e)."""
    steps = program.steps
    readers: dict[int, set[int]] = {i: set() for i in range(len(steps))}
    for reader, step in enumerate(steps):
        for i in step.args:
            readers[i].add(reader)

    def is_one(i: int) -> bool:
        return steps[i].op in ("int", "real") and steps[i].value == 1

    inverses = {i for i, step in enumerate(steps) if step.op == "div" and is_one(step.args[0])}
    sums = {i for i, step in enumerate(steps) if step.op == "add" and any(map(is_one, step.args))}
    sums = {i for i in sums if readers[i] and readers[i] <= inverses}
    return {i for i, step in enumerate(steps) if step.op == "exp" and readers[i] and readers[i] <= sums}


_LEAVES = frozenset(("arg", "int", "real"))


def _apply(k: Kernel, step: Step, operands: list[Value], dtype: DType) -> Val:
    if step.op == "cast":
        return cast(k, _vector(k, operands[0], dtype), dtype)
    if step.op == "bits":
        return k.bitcast(_vector(k, operands[0], dtype), dtype)
    if step.op == "where":
        condition = operands.pop(0)
        assert isinstance(condition, Val)
        return k.select(k.cast(condition, bool_), *_unified(k, operands, dtype))
    if step.op in _QUANTIZATION:
        return _QUANTIZATION[step.op](k, operands, dtype)
    if step.op == "pow":
        return power(k, operands[0], operands[1], dtype)
    return _OPERATIONS[step.op](k, *_unified(k, operands, dtype))


def _vector(k: Kernel, value: Value, dtype: DType) -> Val:
    return value if isinstance(value, Val) else k.value(value, register_dtype(dtype))


def _unified(k: Kernel, operands: Sequence[Value], dtype: DType) -> list[Val]:
    """Operands in one type: that of the first vector, or f64 if that is an integer type and another operand is real."""
    vectors = [v for v in operands if isinstance(v, Val)]
    common = vectors[0].dtype if vectors else register_dtype(dtype)
    if not common.is_float and any(_is_real_to(v, common) for v in operands):
        common = f64
    return [k.value(v, common) if not isinstance(v, Val) else k.cast(v, common) for v in operands]


def _is_real_to(value: Value, integer: DType) -> bool:
    """Whether an integer type cannot represent a value."""
    if isinstance(value, Val):
        return value.dtype.is_float and integer is not bool_
    return isinstance(value, float) or not _holds(integer, value)


def _holds(dtype: DType, value: int) -> bool:
    if dtype is bool_:
        return value in (0, 1)
    low, high = (-(1 << (dtype.bits - 1)), 1 << (dtype.bits - 1)) if dtype.kind == "int" else (0, 1 << dtype.bits)
    return low <= value < high


# Operations ---------------------------------------------------------------------------------------------------------


def cast(k: Kernel, v: Val, dtype: DType) -> Val:
    """A conversion. Narrow types are carried in wider registers; the value is rounded once, to the narrow type."""
    if dtype in NARROW and dtype is not bf16 and v.dtype is f64:
        return _to_odd(k, v).through(dtype)
    wide = k.cast(v, register_dtype(dtype))
    return wide.through(dtype) if (dtype in NARROW or dtype in SMALL) and v.dtype is not bool_ else wide


def _to_odd(k: Kernel, v: Val) -> Val:
    """f64 to f32 in round-to-odd mode, after which a second rounding to a narrower type is correct."""
    near = k.cast(v, f32)
    back = k.cast(near, f64)
    bits = k.bitcast(near, F32.bits)
    inside = k.select(k.abs(back) > k.abs(v), bits - 1, bits) | 1
    is_exact = back.eq(v) | v.ne(v)
    return k.bitcast(k.select(is_exact, bits, inside), f32)


def maximum(k: Kernel, a: Val, b: Val) -> Val:
    """The maximum; NaN if either is NaN."""
    return _propagating(k, "llvm.maximum", k.max, a, b)


def minimum(k: Kernel, a: Val, b: Val) -> Val:
    return _propagating(k, "llvm.minimum", k.min, a, b)


def _propagating(k: Kernel, name: str, pick: Callable[[Val, Val], Val], a: Val, b: Val) -> Val:
    """``pick`` returns its second operand if either is NaN; with a constant first, no further test is needed."""
    if not a.dtype.is_float:
        return pick(a, b)
    if b.is_number:
        return pick(b, a)
    if k.isa.name == "neon":
        return k.propagating(name, *k.unify(a, b))
    picked = pick(a, b)
    return picked if a.is_number else k.select(a.ne(a), a, picked)


def sign(k: Kernel, x: Val) -> Val:
    zero = k.zeros(x.dtype, x.lanes)
    otherwise = k.select(x.eq(0), zero, x) if x.dtype.is_float else zero
    if x.dtype.kind != "uint":
        otherwise = k.select(x < 0, -1, otherwise)
    return k.select(x > 0, 1, otherwise)


def power(k: Kernel, base: Value, exponent: Value, dtype: DType) -> Val:
    """Operands keep their own types: the exponent's decides between modular and real powers of integers."""
    x = _vector(k, base, dtype)
    if isinstance(exponent, Val):
        if not x.dtype.is_float and not exponent.dtype.is_float:
            return integers.power(k, x, exponent)
        return functions.pow(k, _as_real(k, x), exponent)
    if not x.dtype.is_float and isinstance(exponent, int) and exponent >= 0:
        return integers.power_constant(k, x, exponent)
    return functions.pow_constant(k, _as_real(k, x), float(exponent))


def mod(k: Kernel, a: Val, b: Val) -> Val:
    """The remainder with the sign of the divisor."""
    if not a.dtype.is_float:
        return integers.floor_mod(k, a, b)
    a, b = k.unify(a, b)
    rest = functions.fmod(k, a, b)
    crosses = rest.ne(0) & ((rest < 0) ^ (b < 0))
    return k.select(rest.eq(0), k.copysign(rest, b), k.select(crosses, rest + b, rest))


def _as_real(k: Kernel, x: Val) -> Val:
    return x if x.dtype.is_float else k.cast(x, f64)


def _function(name: str) -> Callable[[Kernel, Val], Val]:
    def apply(k: Kernel, x: Val) -> Val:
        fn: Callable[[Kernel, Val], Val] = getattr(functions, name)
        return fn(k, _as_real(k, x))

    return apply


def _rounding(fn: Callable[[Kernel, Val], Val]) -> Callable[[Kernel, Val], Val]:
    return lambda k, x: fn(k, x) if x.dtype.is_float else x


def _never(k: Kernel, x: Val) -> Val:
    return k.const(0, bool_, x.lanes)


_OPERATIONS: dict[str, Callable[..., Val]] = {
    "add": lambda k, a, b: a + b,
    "sub": lambda k, a, b: a - b,
    "mul": lambda k, a, b: a * b,
    "div": lambda k, a, b: a / b if a.dtype.is_float else integers.divide(k, a, b),
    "fma": Kernel.fma,
    "mod": mod,
    "fmod": lambda k, a, b: functions.fmod(k, a, b) if a.dtype.is_float else integers.remainder(k, a, b),
    "neg": lambda k, x: -x,
    "abs": lambda k, x: k.abs(x),
    "sign": sign,
    "minimum": minimum,
    "maximum": maximum,
    "lt": lambda k, a, b: a < b,
    "le": lambda k, a, b: a <= b,
    "gt": lambda k, a, b: a > b,
    "ge": lambda k, a, b: a >= b,
    "eq": lambda k, a, b: a.eq(b),
    "ne": lambda k, a, b: a.ne(b),
    "and": lambda k, a, b: a & b,
    "or": lambda k, a, b: a | b,
    "xor": lambda k, a, b: a ^ b,
    "not": lambda k, x: ~x,
    "shl": integers.shift_left,
    "shr": integers.shift_right,
    "isnan": lambda k, x: x.ne(x) if x.dtype.is_float else _never(k, x),
    "isinf": lambda k, x: k.abs(x).eq(math.inf) if x.dtype.is_float else _never(k, x),
    "sqrt": lambda k, x: k.sqrt(_as_real(k, x)),
    "floor": _rounding(Kernel.floor),
    "ceil": _rounding(Kernel.ceil),
    "round": _rounding(Kernel.rint),
    "copy": lambda k, x: x,
    **{name: _function(name) for name in _FUNCTIONS},
    "cast": cast,
    "bits": Kernel.bitcast,
    "where": Kernel.select,
    "pow": power,
}
