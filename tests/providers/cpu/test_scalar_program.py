"""Scalar programs as kernels, against numpy's interpreter of the same programs."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.scalar import Program, run_numpy, trace
from sardonyx.ops import activation, pointwise  # noqa: F401  (activation registers its programs)
from sardonyx.ops.pointwise import program_of
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.kernels.math import scalar_program
from sardonyx.providers.cpu.language.dsl import kernel
from sardonyx.providers.cpu.language.values import u8
from sardonyx.providers.cpu.machine import isa
from tests.slices import some

FLOATS = tuple(map(dtypes.of_name, ("f32", "f64", "f16", "bf16")))
SIGNED = tuple(map(dtypes.of_name, ("i8", "i16", "i32", "i64")))
UNSIGNED = tuple(map(dtypes.of_name, ("u8", "u16", "u32", "u64")))
f32, f64, f16, bf16, i32, i64, bool_ = map(dtypes.of_name, ("f32", "f64", "f16", "bf16", "i32", "i64", "bool"))
COUNT, WORD = 208, 8
REGION = COUNT * WORD

Rows = list[tuple[str, int, dict[str, Any]]]
"""Name, number of inputs, attributes."""

ARITHMETIC: Rows = [
    ("Add", 2, {}), ("Sub", 2, {}), ("Mul", 2, {}), ("Div", 2, {}), ("Mod", 2, {}), ("Mod", 2, {"fmod": 1}),
    ("Abs", 1, {}), ("Sign", 1, {}), ("Sum", 3, {}), ("Mean", 3, {}), ("Min", 3, {}), ("Max", 3, {}),
    ("Clip", 1, {}), ("Clip", 2, {}), ("Clip", 3, {}), ("Equal", 2, {}), ("Greater", 2, {}),
    ("GreaterOrEqual", 2, {}), ("Less", 2, {}), ("LessOrEqual", 2, {}), ("Relu", 1, {}),
]  # fmt: skip
ON_SIGNED: Rows = [("Neg", 1, {})]
ON_INTEGERS: Rows = [
    ("Pow", 2, {}), ("BitwiseAnd", 2, {}), ("BitwiseOr", 2, {}), ("BitwiseXor", 2, {}), ("BitwiseNot", 1, {}),
    ("BitShift", 2, {"direction": "LEFT"}), ("BitShift", 2, {"direction": "RIGHT"}),
]  # fmt: skip
ON_BOOLS: Rows = [("And", 2, {}), ("Or", 2, {}), ("Xor", 2, {}), ("Not", 1, {}), ("Equal", 2, {})]
EXACT_ON_FLOATS: Rows = [
    ("Reciprocal", 1, {}), ("IsNaN", 1, {}), ("IsInf", 1, {}), ("IsInf", 1, {"detect_negative": 0}),
    ("IsInf", 1, {"detect_positive": 0}), ("IsInf", 1, {"detect_positive": 0, "detect_negative": 0}), ("Sqrt", 1, {}),
    ("Floor", 1, {}), ("Ceil", 1, {}), ("Round", 1, {}), ("LeakyRelu", 1, {}), ("PRelu", 2, {}),
    ("ThresholdedRelu", 1, {"alpha": 0.5}), ("HardSigmoid", 1, {}), ("HardSwish", 1, {}), ("Softsign", 1, {}),
    ("Shrink", 1, {"bias": 0.25}),
]  # fmt: skip
NEAR_ON_FLOATS: Rows = [
    *((name, 1, {}) for name in (
        "Exp", "Log", "Erf", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh",
        "Atanh", "Elu", "Selu", "Sigmoid", "Swish", "Softplus", "Mish", "Gelu",
    )),
    ("Celu", 1, {"alpha": 0.7}), ("SwiGLU", 2, {}), ("Gelu", 1, {"approximate": "tanh"}), ("Pow", 2, {}),
]  # fmt: skip

CONSTANTS = {
    "real times integer": lambda e, x: x * 0.5 + 1,
    "real branch": lambda e, x: e.where(x < 3, x * 0.1, x),
    "real compared": lambda e, x: e.cast(x > 2.5, x),
    "real power": lambda e, x: e.pow(e.maximum(x, 1), 0.5),
    "~whole power": lambda e, x: e.pow(x, 5),
    "square root": lambda e, x: e.sqrt(e.maximum(x, 0)),
    "out of range": lambda e, x: e.where(x < 1 << 70, x, 0),
    "divided by constants": lambda e, x: (x / 7 + 7 / e.maximum(x, 1)) - e.mod(x, 5),
}
FLOAT_CONSTANTS = {
    "half in between": lambda e, x: e.cast(e.cast(x * 3, f16) / 7, x),
    "bf16 in between": lambda e, x: e.cast(e.cast(x * 3, bf16) / 7, x),
    "NaN constant": lambda e, x: e.maximum(e.minimum(x, math.nan), 0),
    "clamp crossed": lambda e, x: e.clamp(x, 2, -1),
    "reciprocal power": lambda e, x: e.pow(x, -1),
    "~root power": lambda e, x: e.pow(e.maximum(x, -9), 0.5),
    "cube": lambda e, x: e.pow(x, 2) + e.pow(x, 1) + e.pow(x, 0),
}

Case = tuple[Program, tuple[DType, ...]]
"""A program and the types of its arguments."""


def result_type(program: Program, types: tuple[DType, ...]) -> DType:
    found = types[program.type] if isinstance(program.type, int) else program.type
    assert found is not None
    return found


def _operators(rows: Rows, dtype: DType) -> dict[str, Case]:
    found = {}
    for name, arity, attributes in rows:
        program = program_of(name, arity, **attributes)
        assert program is not None, name
        found[f"{name}/{arity}{attributes or ''}"] = (program, (dtype,) * arity)
    return found


def _written(table: dict[str, Any], dtype: DType) -> dict[str, Case]:
    return {name: (trace(fn, (True,)), (dtype,)) for name, fn in table.items()}


@cache
def cases(dtype: DType) -> dict[str, Case]:
    """Every program that takes the type; the names of those with functions in them begin with ``~``."""
    others = (*FLOATS, *SIGNED, *UNSIGNED, bool_)
    found: dict[str, Case] = {
        f"Cast {to}": (trace(lambda e, x, to: e.cast(x, to), (True,), to=to), (dtype,)) for to in others
    }
    where = program_of("Where", 3)
    assert where is not None
    found["Where"] = (where, (bool_, dtype, dtype))
    if dtype is bool_:
        return found | _operators(ON_BOOLS, dtype)
    found |= _operators(ARITHMETIC, dtype) | _written(CONSTANTS, dtype)
    if dtype not in UNSIGNED:
        found |= _operators(ON_SIGNED, dtype)
    if dtype not in FLOATS:
        return found | _operators(ON_INTEGERS, dtype)
    found |= _operators(EXACT_ON_FLOATS, dtype) | _written(FLOAT_CONSTANTS, dtype)
    mixed = program_of("Pow", 2)
    assert mixed is not None
    found |= {f"~Pow {t}": (mixed, (dtype, t)) for t in (i32, i64, f32) if t is not dtype}
    near = NEAR_ON_FLOATS if dtype in (f32, f64) else NEAR_ON_FLOATS[::5]
    return found | {f"~{name}": case for name, case in _operators(near, dtype).items()}


@cache
def data(dtype: DType, position: int) -> Any:
    rng = np.random.default_rng(100 * position + len(dtype.name))
    if dtype is bool_:
        return rng.integers(0, 2, COUNT).astype(bool)
    if dtype.is_float:
        values = rng.standard_normal(COUNT) * np.repeat([0.3, 3, 40, 1e4], COUNT)[rng.permutation(COUNT)]
        special = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            1.5,
            2.5,
            -2.5,
            np.inf,
            -np.inf,
            np.nan,
            1e-7,
            6e-8,
            1e-40,
            1e30,
            3e4,
            7.0,
        ]
    else:
        limits = np.iinfo(dtype.numpy)
        values = rng.integers(limits.min, limits.max, COUNT, dtype.numpy, endpoint=True)
        values[::2] = rng.integers(max(limits.min, -9), 9, values[::2].size)
        special = [0, 1, 2, 3, limits.max, limits.min, limits.max, limits.min, limits.min, 0, limits.max, 5]
        special += [] if limits.min == 0 else [-1, -1, -2]
    with np.errstate(all="ignore"):
        out = np.asarray(values).astype(dtype.numpy)
        out[: len(special)] = np.roll(np.asarray(special, out.dtype if not dtype.is_float else None), 3 * position)
    return out


@kernel(x=(u8,), y=(u8,), count=dtypes.i64)
def run_all(k: Any, x: Any, y: Any, count: Any, *, programs: Any, lanes: int | None) -> None:
    slot = 0
    for number, (program, types) in enumerate(programs):
        with k.loop(0, count, lanes or k.lanes) as at:
            args = [
                x.at((slot + i) * REGION).as_type(dtype).load(at, lanes or k.lanes) for i, dtype in enumerate(types)
            ]
            y.at(number * REGION).as_type(result_type(program, types)).store(
                at, scalar_program.emit(k, program, args, types)
            )
        slot += len(types)


def arguments(types: tuple[DType, ...]) -> list[Any]:
    return [data(dtype, i) for i, dtype in enumerate(types)]


@cache
def outputs(dtype: DType, cpu: str | None = None, lanes: int | None = None, every: int = 1) -> dict[str, Any]:
    """The results of every program on a type, or of some of them, by one kernel."""
    table = dict(some(list(cases(dtype).items()), every))
    programs = tuple(table.values())
    inputs = [a for _, types in programs for a in arguments(types)]
    x, y = np.zeros(len(inputs) * REGION, np.uint8), np.zeros(len(programs) * REGION, np.uint8)
    for i, a in enumerate(inputs):
        x[i * REGION :][: a.nbytes] = a.view(np.uint8)
    Launch(run_all(programs=programs, lanes=lanes), {"x": x, "y": y, "count": COUNT}, isa=isa.named(cpu))()
    found = {}
    for i, (name, (program, types)) in enumerate(table.items()):
        want = result_type(program, types).numpy
        found[name] = y[i * REGION :][: COUNT * want.itemsize].view(want)
    return found


TABLE = [(dtype, name) for dtype in (*FLOATS, *SIGNED, *UNSIGNED, bool_) for name in cases(dtype)]
NEAR = {f32: 4e-7, f64: 1e-15, f16: 2**-10, bf16: 2**-7}


@pytest.mark.parametrize(("dtype", "name"), TABLE, ids=[f"{d}-{n}" for d, n in TABLE])
def test_matches_numpy(dtype: DType, name: str) -> None:
    program, types = cases(dtype)[name]
    got, args = outputs(dtype)[name], arguments(types)
    if name.startswith("~") and dtype.is_float:
        wide = [a.astype(np.float64) if t.is_float else a for a, t in zip(args, types, strict=True)]
        with np.errstate(all="ignore"):
            want = run_numpy(program, *wide).astype(dtype.numpy)
        rtol, atol = 5 * NEAR[dtype], (4 if "Gelu" in name else 1) * NEAR[dtype]
    else:
        want, rtol, atol = run_numpy(program, *args), 0.0, 0.0
    defined = _defined(program, types, args)
    if name == "real branch" and dtype.is_integer:
        defined &= args[0].astype(np.float64) < float(np.iinfo(dtype.numpy).max)
    assert got.dtype == want.dtype
    got, want = (v[defined] if v.dtype.isbuiltin else v[defined].astype(np.float32) for v in (got, want))
    np.testing.assert_allclose(got, want, rtol, atol, equal_nan=True)


def _defined(program: Program, types: tuple[DType, ...], args: list[Any]) -> Any:
    """Where the rules say what comes out: not for reals out of an integer's range, nor for 0 to a negative power."""
    target = result_type(program, types)
    with np.errstate(all="ignore"):
        if types[0].is_float and target.is_integer:
            limits = np.iinfo(target.numpy)
            value = args[0].astype(np.float64)
            return (value > limits.min - 1.0) & (value < float(limits.max))
        if program is program_of("Pow", 2) and types[0].is_integer:
            return (args[0] != 0) | (args[1] >= 0)
    return np.ones(COUNT, bool)


@pytest.mark.parametrize(
    ("dtype", "cpu", "lanes"), [(f32, "haswell", None), (i64, "sapphirerapids", None), (f16, None, 1)]
)
def test_width_does_not_matter(dtype: DType, cpu: str | None, lanes: int | None) -> None:
    for name, got in outputs(dtype, cpu, lanes, every=3).items():
        want = outputs(dtype)[name]
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64), err_msg=name)


@pytest.mark.parametrize("name", ["string", "c64", "f6e2m3", "i4", "u2"])
def test_unsupported_types_are_named(name: str) -> None:
    dtype = dtypes.of_name(name)
    program = program_of("Add", 2)
    assert program is not None
    assert name in str(scalar_program.supported(program, [dtype, dtype]))
    assert scalar_program.supported(program, [f32, f32]) is None


@pytest.mark.parametrize("write", [
    lambda e, x: e.log(1 + e.exp(x)),
    lambda e, x: x / (1 + e.exp(x)),
    lambda e, x: 1 / (1 + e.exp(x)) + e.exp(x),
    lambda e, x: e.exp(x) - 1,
])  # fmt: skip
def test_exponentials_that_are_no_sigmoids_are_whole(write: Any) -> None:
    """From 2^127.5 on, a sigmoid's is infinite; others are not."""
    x, y, program = np.linspace(88.3, 88.7, 64).astype(np.float32), np.zeros(64, np.float32), trace(write, (True,))
    memory = {"x": x.view(np.uint8), "y": y.view(np.uint8), "count": len(x)}
    Launch(run_all(programs=((program, (f32,)),), lanes=None), memory)()
    assert np.isfinite(y).all()
    np.testing.assert_allclose(y, run_numpy(program, x.astype(np.float64)), rtol=1e-6)
