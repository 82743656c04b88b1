"""Pointwise operators: arithmetic, comparison, logic, bits, rounding and elementary functions.

Each is a scalar program (see ``ir.scalar``). ``pointwise`` registers its numpy implementation, with ONNX's
broadcasting,
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ir.scalar import Emitter, Expr, Program, run_numpy, trace
from sardonyx.ops.limits import check_elements
from sardonyx.ops.registry import find, op

Array = np.ndarray[Any, Any]
F = TypeVar("F", bound=Callable[..., Expr])

PROGRAMS: dict[tuple[str, str], Callable[..., Expr]] = {}
"""Functions that write scalar programs, by domain and operator."""
_LARGE = 1 << 28


def pointwise(name: str, *, domain: str = "") -> Callable[[F], F]:
    """Declare an operator by its scalar program ``fn(e, *scalars, **attributes)``; absent optional inputs are None."""

    def register(fn: F) -> F:
        op(name, domain=domain)(meaning_of(name, fn))
        PROGRAMS[domain, name] = fn
        return fn

    return register


def meaning_of(name: str, fn: Callable[..., Expr]) -> Callable[..., Array]:
    """The numpy implementation of a scalar program, with ONNX's broadcasting."""
    _, *parameters = inspect.signature(fn).parameters.values()
    has_optional = any(p.default is None for p in parameters)
    programs: dict[Any, Program] = {}

    def meaning(*inputs: Any, **attributes: Any) -> Array:
        if has_optional:
            present = tuple([x is not None for x in inputs])
            inputs = tuple([x for x in inputs if x is not None])
        else:
            present = (True,) * len(inputs)
        key = (present, *attributes.items())
        program = programs.get(key)
        if program is None:
            program = programs[key] = trace(fn, present, **attributes)
        if len(inputs) > 1 and math.prod([x.size for x in inputs]) > _LARGE:
            _check_broadcast(name, inputs)
        try:
            return run_numpy(program, *inputs)
        except ValueError:
            _check_broadcast(name, inputs)
            raise

    meaning.__name__, meaning.__doc__ = fn.__name__, fn.__doc__
    if fn.__module__.rpartition(".")[0] == __package__:
        meaning.__module__ = fn.__module__
    meaning.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return meaning


def has_program(domain: str, name: str) -> bool:
    """Whether an operator has a scalar program."""
    find(domain, name)
    return (domain, name) in PROGRAMS


def program_of(name: str, arity: int | Sequence[bool], *, domain: str = "", **attributes: Any) -> Program | None:
    """The scalar program of an operator for this number of inputs, or for these present inputs; None if it has none."""
    fn = PROGRAMS[domain, name] if has_program(domain, name) else None
    present = (True,) * arity if isinstance(arity, int) else tuple(arity)
    return None if fn is None else trace(fn, present, **hashable(attributes))


def hashable(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as a cache key: lists as tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()}


def _check_broadcast(name: str, arrays: tuple[Array, ...]) -> None:
    try:
        count = math.prod(np.broadcast_shapes(*(a.shape for a in arrays)))
    except ValueError:
        raise InvalidArgument(
            f"{name}: the inputs do not broadcast together", got=", ".join(str(list(a.shape)) for a in arrays)
        ) from None
    check_elements(count, arrays[0].dtype, f"the result of {name}")


# Arithmetic


@pointwise("Add")
def add(e: Emitter, a: Expr, b: Expr) -> Expr:
    return a + b


@pointwise("Sub")
def sub(e: Emitter, a: Expr, b: Expr) -> Expr:
    return a - b


@pointwise("Mul")
def mul(e: Emitter, a: Expr, b: Expr) -> Expr:
    return a * b


@pointwise("Div")
def div(e: Emitter, a: Expr, b: Expr) -> Expr:
    return a / b


@pointwise("Mod")
def mod(e: Emitter, a: Expr, b: Expr, *, fmod: int = 0) -> Expr:
    return e.fmod(a, b) if fmod else e.mod(a, b)


@pointwise("Pow")
def pow_(e: Emitter, x: Expr, exponent: Expr) -> Expr:
    return e.pow(x, exponent)


@pointwise("Neg")
def neg(e: Emitter, x: Expr) -> Expr:
    return -x


@pointwise("Abs")
def abs_(e: Emitter, x: Expr) -> Expr:
    return e.abs(x)


@pointwise("Sign")
def sign(e: Emitter, x: Expr) -> Expr:
    return e.sign(x)


@pointwise("Reciprocal")
def reciprocal(e: Emitter, x: Expr) -> Expr:
    return 1 / x


# Variadic


@pointwise("Sum")
def sum_(e: Emitter, *xs: Expr) -> Expr:
    return reduce(lambda a, b: a + b, xs)


@pointwise("Mean")
def mean(e: Emitter, *xs: Expr) -> Expr:
    return sum_(e, *xs) / len(xs)


@pointwise("Min")
def min_(e: Emitter, *xs: Expr) -> Expr:
    return reduce(e.minimum, xs)


@pointwise("Max")
def max_(e: Emitter, *xs: Expr) -> Expr:
    return reduce(e.maximum, xs)


# Selection


@pointwise("Clip")
def clip(e: Emitter, x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    x = x if low is None else e.maximum(x, low)
    return x if high is None else e.minimum(x, high)


@pointwise("Where")
def where(e: Emitter, condition: Expr, x: Expr, y: Expr) -> Expr:
    return e.where(condition, x, y)


# Comparison


@pointwise("Equal")
def equal(e: Emitter, a: Expr, b: Expr) -> Expr:
    return e.eq(a, b)


@pointwise("Greater")
def greater(e: Emitter, a: Expr, b: Expr) -> Expr:
    return a > b


@pointwise("GreaterOrEqual")
def greater_or_equal(e: Emitter, a: Expr, b: Expr) -> Expr:
    return a >= b


@pointwise("Less")
def less(e: Emitter, a: Expr, b: Expr) -> Expr:
    return a < b


@pointwise("LessOrEqual")
def less_or_equal(e: Emitter, a: Expr, b: Expr) -> Expr:
    return a <= b


@pointwise("IsNaN")
def is_nan(e: Emitter, x: Expr) -> Expr:
    return e.isnan(x)


@pointwise("IsInf")
def is_inf(e: Emitter, x: Expr, *, detect_negative: int = 1, detect_positive: int = 1) -> Expr:
    if detect_negative and detect_positive:
        return e.isinf(x)
    infinity = math.inf if detect_positive else -math.inf
    return e.eq(x, infinity) if detect_positive or detect_negative else e.ne(x, x) & e.eq(x, x)


# Logic and bits


@pointwise("And")
@pointwise("BitwiseAnd")
def and_(e: Emitter, a: Expr, b: Expr) -> Expr:
    return a & b


@pointwise("Or")
@pointwise("BitwiseOr")
def or_(e: Emitter, a: Expr, b: Expr) -> Expr:
    return a | b


@pointwise("Xor")
@pointwise("BitwiseXor")
def xor(e: Emitter, a: Expr, b: Expr) -> Expr:
    return a ^ b


@pointwise("Not")
@pointwise("BitwiseNot")
def not_(e: Emitter, x: Expr) -> Expr:
    return ~x


@pointwise("BitShift")
def bit_shift(e: Emitter, x: Expr, y: Expr, *, direction: str) -> Expr:
    if direction not in ("LEFT", "RIGHT"):
        raise InvalidArgument("BitShift: the direction is LEFT or RIGHT", got=direction)
    return e.shl(x, y) if direction == "LEFT" else e.shr(x, y)


# Elementary functions

_FUNCTIONS = {
    "Exp": Emitter.exp, "Log": Emitter.log, "Sqrt": Emitter.sqrt, "Erf": Emitter.erf,
    "Sin": Emitter.sin, "Cos": Emitter.cos, "Tan": Emitter.tan,
    "Asin": Emitter.asin, "Acos": Emitter.acos, "Atan": Emitter.atan,
    "Sinh": Emitter.sinh, "Cosh": Emitter.cosh, "Tanh": Emitter.tanh,
    "Asinh": Emitter.asinh, "Acosh": Emitter.acosh, "Atanh": Emitter.atanh,
    "Floor": Emitter.floor, "Ceil": Emitter.ceil, "Round": Emitter.round,
}  # fmt: skip
for _name, _function in _FUNCTIONS.items():
    pointwise(_name)(_function)
