"""Scalar programs: a pointwise operator written once, for all interpreters.

A pointwise operator is written once, as a Python function of an emitter and scalars::

    def hard_swish(e, x):
        return x * e.clamp(x * (1 / 6) + 0.5, 0, 1)

``trace`` runs it on symbols and gives a ``Program``: straight-line code without duplicates, hashable, the same for
every element type. An interpreter gives the program a meaning on its machine; numpy's is ``run_numpy``.

The rules, which hold for every interpreter:

- **Compute type.** Floats narrower than 32 bits (f16, bf16, the float8, float6 and float4 families) are widened to f32
  on entry and rounded once, at the end. Every other type is computed in itself. A program that only selects
  (``where``, logic) widens nothing.
- **Types.** A value has the type of an argument, or bool, or the type it was cast to. An operation has the type of
  its first operand that is not a constant; comparisons and tests are bool. The result is converted to the type of the
  program's last value. Constants take the type of what they meet: an integer constant suits every type, a real one
  turns an integer operation into an f64 one that is truncated at the end.
- **NaN.** ``minimum``, ``maximum`` and ``clamp`` give NaN if any operand is NaN; ``clamp`` with low > high gives high.
  Comparisons with NaN are false, ``ne`` is true. ``sign(NaN)`` is NaN.
- **Rounding.** ``round`` takes halves to even. Casts from reals to integers truncate towards zero; out of range
  is the machine's.
- **Integers.** Arithmetic wraps. ``div`` truncates towards zero, ``mod`` has the sign of the divisor and ``fmod`` that
  of the dividend; all three give 0 for a zero divisor. ``pow`` wraps; a negative exponent truncates the real result.
  Real exponents of integer bases are computed in f64 and truncated.
- **Quantization.** ``quantize`` and ``dequantize`` are ONNX's, of f32 and integers of at most 16 bits: x / scale is
  rounded to f32, then to even, then the zero point is added, and the sum is saturated. For a positive scale NaN
  gives the least integer. For a scale of 0, an infinite one or NaN the integer is arbitrary. ``saturate`` is
  ``quantize`` of f32 numbers below 2^30 that are in units of the scale already.
- **Shifts.** By a negative count or by the width or more: all bits are shifted out (0, or -1 for a negative number
  shifted right). Right shifts of signed numbers keep the sign.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.forks import cached_property
from sardonyx.ir import special
from sardonyx.records import Record

Array = np.ndarray[Any, Any]
Type: TypeAlias = "int | DType | None"
"""The index of the argument whose type it is, a fixed type, or None for a constant."""
Operand: TypeAlias = "Expr | float"


class Expr:
    """A value of a program that is being written. Compare with ``e.eq``: ``==`` is identity."""

    __slots__ = ("args", "op", "type", "value")

    def __init__(self, op: str, args: tuple[Expr, ...], type: Type, value: Any = None) -> None:
        self.op, self.args, self.type, self.value = op, args, type, value

    def __add__(self, other: Operand) -> Expr:
        return apply("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return apply("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return apply("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return apply("div", other, self)

    def __neg__(self) -> Expr:
        return apply("neg", self)

    def __lt__(self, other: Operand) -> Expr:
        return apply("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return apply("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return apply("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return apply("ge", self, other)

    def __and__(self, other: Operand) -> Expr:
        return apply("and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return apply("or", self, other)

    def __xor__(self, other: Operand) -> Expr:
        return apply("xor", self, other)

    def __invert__(self) -> Expr:
        return apply("not", self)


def apply(op: str, *operands: Operand) -> Expr:
    """The operation ``op``, typed by the rules above."""
    args = tuple(x if isinstance(x, Expr) else _constant(x) for x in operands)
    if op in _PREDICATES:
        return Expr(op, args, dtypes.bool_)
    typed = args[1:] if op == "where" else args
    return Expr(op, args, next((a.type for a in typed if a.type is not None), None))


def _constant(value: float) -> Expr:
    return Expr("int" if isinstance(value, int) else "real", (), None, value)


def _unary(op: str) -> Callable[[Emitter, Operand], Expr]:
    return lambda self, x: apply(op, x)


def _binary(op: str) -> Callable[[Emitter, Operand, Operand], Expr]:
    return lambda self, x, y: apply(op, x, y)


class Emitter:
    """The functions that a program may use in addition to Python's operators."""

    exp, expm1, log, log1p, sqrt = map(_unary, ("exp", "expm1", "log", "log1p", "sqrt"))
    sin, cos, tan, asin, acos, atan = map(_unary, ("sin", "cos", "tan", "asin", "acos", "atan"))
    sinh, cosh, tanh, asinh, acosh, atanh = map(_unary, ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"))
    erf, abs, sign, floor, ceil, round = map(_unary, ("erf", "abs", "sign", "floor", "ceil", "round"))
    isnan, isinf = map(_unary, ("isnan", "isinf"))
    minimum, maximum, pow, mod, fmod = map(_binary, ("minimum", "maximum", "pow", "mod", "fmod"))
    eq, ne, shl, shr = map(_binary, ("eq", "ne", "shl", "shr"))

    def where(self, condition: Expr, x: Operand, y: Operand) -> Expr:
        return apply("where", condition, x, y)

    def fma(self, x: Operand, y: Operand, z: Operand) -> Expr:
        """x * y + z of reals, rounded once; in numpy, that of f64 is rounded twice."""
        return apply("fma", x, y, z)

    def clamp(self, x: Operand, low: Operand, high: Operand) -> Expr:
        return self.minimum(self.maximum(x, low), high)

    def sigmoid(self, x: Expr) -> Expr:
        return 1 / (1 + self.exp(-x))

    def softplus(self, x: Expr) -> Expr:
        """log(1 + exp(x)), without overflow."""
        return self.maximum(x, 0) + self.log1p(self.exp(-self.abs(x)))

    def cast(self, x: Expr, to: DType | Expr) -> Expr:
        """``x`` in a fixed type, or in the type of another value."""
        return Expr("cast", (x,), to.type if isinstance(to, Expr) else to)

    def quantize(self, x: Expr, scale: Expr | None, zero: Expr | None, to: DType) -> Expr:
        """round(x / scale) + zero, saturated to an integer type; without a scale, x is in units of it."""
        scale = _constant(1.0) if scale is None else scale
        return Expr("quantize", (x, scale, _constant(0) if zero is None else zero), to)

    def dequantize(self, q: Expr, scale: Expr, zero: Expr | None) -> Expr:
        """(q - zero) * scale, in f32."""
        return Expr("dequantize", (q, scale, _constant(0) if zero is None else zero), dtypes.f32)

    def saturate(self, x: Expr, zero: Expr | None, to: DType) -> Expr:
        """round(x) + zero, saturated to an integer type of 8 bits; x is an f32 below 2^30."""
        return Expr("saturate", (x, _constant(0) if zero is None else zero), to)

    def bits(self, x: Expr, to: DType) -> Expr:
        """The bits of ``x``, a whole number or a real of at least 32 bits, as a number of another type of its width."""
        return Expr("bits", (x,), to)


_PREDICATES = frozenset(("lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf"))
_LEAVES = frozenset(("arg", "int", "real"))
_SELECTORS = _LEAVES | frozenset(("copy", "where", "and", "or", "xor", "not"))
_QUIET = _SELECTORS | _PREDICATES | {"minimum", "maximum", "abs", "neg", "shl", "shr"}
"""Operations that raise no floating-point flag, so numpy prints no warning."""


class Step(Record):
    """One operation on the results of earlier steps."""

    op: str
    args: tuple[int, ...]
    type: Type
    value: Any = None


class Program(Record):
    """Straight-line code: the first ``arity`` steps are the arguments, the last step is the result."""

    arity: int
    steps: tuple[Step, ...]

    @property
    def type(self) -> Type:
        return self.steps[-1].type

    def __str__(self) -> str:
        def line(i: int, s: Step) -> str:
            words = [s.op, *(f"%{a}" for a in s.args)] if s.op not in _LEAVES else [s.op, repr(s.value)]
            return f"%{i} = {' '.join(words)}"

        return "\n".join(line(i, s) for i, s in enumerate(self.steps))

    @cached_property
    def _numpy(self) -> _NumpyCode:
        return _NumpyCode(self)


@lru_cache(maxsize=4096, typed=True)
def trace(fn: Callable[..., Expr], present: tuple[bool, ...], **attributes: Any) -> Program:
    """The program that ``fn(emitter, *scalars, **attributes)`` writes; arguments that are not ``present`` are passed as
    None.
    """
    steps: list[Step] = []
    numbers: dict[Step, int] = {}
    seen: dict[int, int] = {}

    def emit(expr: Expr) -> int:
        """Value numbering, depth first, so that a step follows its operands."""
        todo = [expr]
        while todo:
            top = todo[-1]
            waiting = [a for a in top.args if id(a) not in seen]
            if waiting:
                todo += reversed(waiting)
                continue
            todo.pop()
            if id(top) not in seen:
                step = Step(top.op, tuple(seen[id(a)] for a in top.args), top.type, top.value)
                number = seen[id(top)] = numbers.setdefault(step, len(steps))
                if number == len(steps):
                    steps.append(step)
        return seen[id(expr)]

    arguments = [Expr("arg", (), i, i) for i in range(sum(present))]
    for argument in arguments:
        emit(argument)
    given = iter(arguments)
    result = fn(Emitter(), *(next(given) if p else None for p in present), **attributes)
    if emit(result) != len(steps) - 1:
        steps.append(Step("copy", (emit(result),), result.type))
    return Program(len(arguments), tuple(steps))


# numpy --------------------------------------------------------------------------------------------------------------


def _div(a: Any, b: Any) -> Any:
    if not _is_int(a, b):
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    if np.result_type(a, b).kind == "u":
        return quotient
    inexact = np.not_equal(quotient * b, a) & np.not_equal(b, 0)
    return quotient + (inexact & np.less(np.bitwise_xor(a, b), 0))


def _pow(a: Any, b: Any) -> Any:
    if not _is_int(a):
        return np.power(a, b)
    if not _is_int(b):
        return np.power(np.asarray(a, np.float64), b)
    b = np.asarray(b)
    if b.dtype.kind == "i" and (b < 0).any():
        wrapped = np.power(a, np.maximum(b, 0).astype(a.dtype))
        return np.where(b < 0, np.power(np.asarray(a, np.float64), b).astype(a.dtype), wrapped)
    return np.power(a, b.astype(a.dtype))


def _fma(a: Any, b: Any, c: Any) -> Any:
    """The product of two f32 is exact in f64."""
    dtype = np.result_type(a, b, c)
    return (np.asarray(a, np.float64) * b + c).astype(dtype)


def _is_int(*values: Any) -> bool:
    return all(v.dtype.kind in "iu" if hasattr(v, "dtype") else isinstance(v, int) for v in values)


def _quantize(x: Any, scale: Any, zero: Any, *, to: DType) -> Any:
    low, high = (-(1 << (to.bits - 1)), 1 << (to.bits - 1)) if to.kind == "int" else (0, 1 << to.bits)
    units = np.rint(np.asarray(x, np.float32) / np.float32(scale)) + np.float32(zero)
    return np.minimum(np.fmax(units, low), high - 1).astype(np.int32).astype(to.numpy)


def _saturate(x: Any, zero: Any, *, to: DType) -> Any:
    return _quantize(x, 1.0, zero, to=to)


def _dequantize(q: Any, scale: Any, zero: Any) -> Any:
    return (np.asarray(q).astype(np.float32) - np.float32(zero)) * np.asarray(scale, np.float32)


_NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _div, "neg": np.negative, "pow": _pow,
    "mod": np.mod, "fmod": np.fmod, "minimum": np.minimum, "maximum": np.maximum, "where": np.where,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "shl": np.left_shift, "shr": np.right_shift, "isnan": np.isnan, "isinf": np.isinf,
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "erf": special.erf,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "abs": np.absolute, "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "copy": np.copy, "dequantize": _dequantize, "fma": _fma,
}  # fmt: skip

_BLOCK = 1 << 14
"""Elements evaluated at a time: the temporaries of a long program stay in L2."""


class _NumpyCode:
    """A program as a list of numpy calls on a list of registers: the arguments, the constants, one per call."""

    def __init__(self, program: Program) -> None:
        self.like = program.type if isinstance(program.type, int) else None
        self.fixed = None if isinstance(program.type, int) else _numpy_type(program.type)
        self.widens = any(s.op not in _SELECTORS for s in program.steps)
        self.is_quiet = all(s.op in _QUIET for s in program.steps)
        leaves = [i for i, s in enumerate(program.steps) if s.op in _LEAVES]
        rest = [i for i, s in enumerate(program.steps) if s.op not in _LEAVES]
        register = {step: i for i, step in enumerate(leaves + rest)}
        self.constants = [program.steps[i].value for i in leaves[program.arity :]]
        self.calls = [_numpy_call(program.steps[i], register) for i in rest]

    def __call__(self, arrays: tuple[Array, ...]) -> Array:
        if self.is_quiet:
            return self.run(arrays)
        with np.errstate(all="ignore"):
            return self.run(arrays)

    def run(self, arrays: tuple[Array, ...]) -> Array:
        want = self.fixed if self.like is None else arrays[self.like].dtype
        first = arrays[0]
        if first.size > 2 * _BLOCK and len(self.calls) > 1 and _is_blockable(arrays):
            out = np.empty(first.shape, want)
            flat = [a.reshape(-1) if a.size > 1 else a.reshape(()) for a in arrays]
            into = out.reshape(-1)
            for i in range(0, first.size, _BLOCK):
                into[i : i + _BLOCK] = self.evaluate([a[i : i + _BLOCK] if a.ndim else a for a in flat])
            return out
        value = self.evaluate(list(arrays))
        if type(value) is not np.ndarray:
            value = np.asarray(value, want)
        return value if value.dtype == want else value.astype(want)

    def evaluate(self, registers: list[Any]) -> Array:
        if self.widens:
            for i, a in enumerate(registers):
                if a.dtype not in _WIDE:
                    registers[i] = a.astype(np.float32)
        registers += self.constants
        for fn, args in self.calls:
            registers.append(fn(*[registers[i] for i in args]))
        result: Array = registers[-1]
        return result


_WIDE = frozenset(map(np.dtype, ("?", "b", "h", "i", "q", "B", "H", "I", "Q", "f", "d", "F", "D", "O")))


def _is_blockable(arrays: tuple[Array, ...]) -> bool:
    shape = arrays[0].shape
    return all(a.size == 1 or (a.shape == shape and a.flags.c_contiguous) for a in arrays) and all(
        a.ndim <= len(shape) for a in arrays
    )


def _numpy_type(type: Type) -> np.dtype[Any]:
    assert isinstance(type, DType), "a program's result is a constant"
    return type.numpy


def _numpy_call(step: Step, register: dict[int, int]) -> tuple[Callable[..., Any], list[int]]:
    args = [register[a] for a in step.args]
    if step.op == "bits":
        target = _numpy_type(step.type)
        return (lambda x: x.view(target)), args
    if step.op == "quantize":
        assert isinstance(step.type, DType)
        return partial(_quantize, to=step.type), args
    if step.op == "saturate":
        assert isinstance(step.type, DType)
        return partial(_saturate, to=step.type), args
    if step.op != "cast":
        return _NUMPY[step.op], args
    if isinstance(step.type, int):
        return (lambda x, like: x.astype(like.dtype)), [*args, register[step.type]]
    dtype = _numpy_type(step.type)
    compute = dtype if dtype in _WIDE else np.dtype(np.float32)
    return (lambda x: x.astype(dtype).astype(compute, copy=False)), args


def run_numpy(program: Program, *arrays: Array) -> Array:
    """The program applied to every element, with numpy's broadcasting. A program that is one argument returns it."""
    return program._numpy(arrays)
