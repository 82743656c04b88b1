"""Fused loops against numpy in float64: sizes, strides, types, special values, threads and instruction sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.scalar import Program, Step, trace
from sardonyx.lower.groups import Apply, Count, Expression, Loop, Reduce, View
from sardonyx.ops.pointwise import program_of
from sardonyx.providers.cpu.kernels.common.loop_nest import Nest, typical
from sardonyx.providers.cpu.kernels.loops import loop
from sardonyx.providers.cpu.kernels.loops.passes import Schedule
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.analysis import Analysis, Target
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array, Memory, by_pixel

f32, f64, f16, bf16, i64, i32, u8, bool_ = (
    dtypes.of_name(n) for n in ("f32", "f64", "f16", "bf16", "i64", "i32", "u8", "bool")
)
MACHINES = [None, "haswell", "sapphirerapids"]
"""4, 8 and 16 lanes."""
SIZES = (0, 1, 3, 4, 5, 15, 16, 17, 67, 1031, 4099)
RNG = np.random.default_rng(7)


def program(name: str, arity: int) -> Program:
    found = program_of(name, arity)
    assert found is not None
    return found


ADD, SUB, MUL, DIV = (program(n, 2) for n in ("Add", "Sub", "Mul", "Div"))
EXP, SQRT, LOG = (program(n, 1) for n in ("Exp", "Sqrt", "Log"))


def run(
    inputs: Sequence[Array],
    expression: Expression,
    outputs: Sequence[tuple[Sequence[int], Any]],
    *,
    reduced: int = 0,
    extents: Sequence[int] | None = None,
    order: Sequence[int] | None = None,
    threads: int = 1,
    machine: str | None = None,
    checked: bool = True,
) -> list[Array]:
    """The outputs of a loop whose inputs are broadcast to its extents."""
    chip, memory = isa.named(machine), Memory()
    shape = tuple(extents if extents is not None else np.broadcast_shapes(*(a.shape for a in inputs)))
    views = tuple(memory.input(np.broadcast_to(a, shape)) for a in inputs)
    outs = tuple(memory.output(s, t, order=order) for s, t in outputs)
    memory.run(
        loop.steps(Loop((), shape, reduced, views, expression, outs), Analysis(Target(chip))),
        threads=threads, isa=chip, checked=checked,
    )  # fmt: skip
    return [memory.array(o) for o in outs]


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


# -- pointwise


@pytest.mark.parametrize("machine", MACHINES)
def test_pointwise_sizes_and_threads(machine: str | None) -> None:
    """Two results of different types from one pass, for every length and any number of threads."""
    less = trace(lambda e, a, b: a < b, (True, True))
    e = Expression((f32, f32), (Apply(MUL, (0, 1), f32), Apply(EXP, (2,), f32), Apply(less, (0, 1), bool_)), (3, 4))
    for n in SIZES:
        a, b = floats(3, n), floats(n)
        for threads in (1, 3):
            y, mask = run([a, b], e, [((3, n), "f"), ((3, n), "?")], threads=threads, machine=machine)
            want = np.exp((a * b).astype(np.float64))
            np.testing.assert_allclose(y, want, rtol=3e-7)
            assert np.array_equal(mask, a < b)


@pytest.mark.parametrize(
    ("inputs", "out"),
    [
        ([(2, 3, 5), (2, 3, 5)], (2, 3, 5)),
        ([(2, 3, 5), (5,)], (2, 3, 5)),
        ([(2, 3, 5), (3, 1)], (2, 3, 5)),
        ([(2, 1, 5), (3, 1)], (2, 3, 5)),
        ([(4, 1, 3, 1), (2, 1, 70)], (4, 2, 3, 70)),
        ([(), (7,)], (7,)),
        ([(), ()], ()),
        ([(0, 3), (3,)], (0, 3)),
        ([(1, 5000), (2, 1)], (2, 5000)),
    ],
)
def test_broadcasting(inputs: list[tuple[int, ...]], out: tuple[int, ...]) -> None:
    a, b = (floats(*shape) for shape in inputs)
    (y,) = run([a, b], Expression((f32, f32), (Apply(SUB, (0, 1), f32),), (2,)), [(out, "f")], threads=2)
    assert np.array_equal(y, a - b)


@pytest.mark.parametrize("machine", [None, "skylake-avx512"])
def test_strides(machine: str | None) -> None:
    """Steps of two, reversed and transposed inputs; an output whose axes lie in another order."""
    e = Expression((f32, f32), (Apply(ADD, (0, 1), f32), Apply(EXP, (2,), f32)), (3,))
    base = floats(40, 46)
    a, b = base[::2, ::2], base[:23, :20].T
    (y,) = run([a, b], e, [((20, 23), "f")], threads=2, machine=machine)
    np.testing.assert_allclose(y, np.exp((a + b).astype(np.float64)), rtol=3e-7)
    (y,) = run([a, b], e, [((20, 23), "f")], order=(1, 0), machine=machine)
    np.testing.assert_allclose(y, np.exp((a + b).astype(np.float64)), rtol=3e-7)


@pytest.mark.parametrize("numpy_type", ["f8", "f2", ml_dtypes.bfloat16, "i8", "i4", "i2", "u1", "u8"])
def test_types(numpy_type: Any) -> None:
    d = dtypes.of_numpy(np.dtype(numpy_type))
    a, b = ((RNG.standard_normal(133) * 9).astype(np.int8).astype(numpy_type) for _ in range(2))
    e = Expression((d, d), (Apply(MUL, (0, 1), d), Apply(SUB, (2, 0), d)), (3,))
    (y,) = run([a, b], e, [((133,), numpy_type)])
    exact = a.astype(np.float64) * b.astype(np.float64) - a.astype(np.float64)
    want = exact.astype(numpy_type) if d.is_float else a * b - a
    assert np.array_equal(y, want)


def test_frames_of_a_signal_are_longer_than_a_number() -> None:
    """An axis whose stride is 0 for short sequences must not be ordered after the contiguous axis."""
    frames = dims.known(dims.sub(dims.floordiv(dims.add(dims.symbol("samples"), 64), 128), 1))
    assert frames is not None and typical(frames) > 1
    assert [typical(d) for d in (0, 1, 7, dims.symbol("n"))] == [0, 1, 7, 64]


def test_constant_expression() -> None:
    three = Program(0, (Step("int", (), None, 3),))
    (y,) = run([], Expression((), (Apply(three, (), f32),), (0,)), [((5, 9), "f")], extents=(5, 9))
    assert np.array_equal(y, np.full((5, 9), 3, "f"))


def test_symbolic_sizes_share_one_kernel() -> None:
    """Axes join where their strides say so for every size, and a new size compiles nothing."""
    batch, length = dims.symbol("batch"), dims.symbol("length")
    e = Expression((f32, f32), (Apply(ADD, (0, 1), f32),), (2,))
    specs = set()
    for sizes in ({"batch": 2, "length": 5}, {"batch": 1, "length": 300}, {"batch": 0, "length": 4}):
        memory = Memory(sizes)
        shape = (batch, length, 8)
        numbers = tuple(memory.number(n) for n in shape)
        a, b = floats(*numbers), floats(8)
        views = [memory.output(shape, "f"), memory.input(np.broadcast_to(b, numbers))]
        memory.array(views[0])[...] = a
        views[1] = View(views[1].storage, shape, (0, 0, 1))
        out = memory.output(shape, "f")
        steps = loop.steps(Loop((), shape, 0, tuple(views), e, (out,)), Analysis(Target(isa.named(None))))
        memory.run(steps, threads=2, checked=True)
        specs |= {s.spec for s in steps}
        assert np.array_equal(memory.array(out), a + b)
    assert len(specs) == 1
    assert len(Nest.of(shape, views).axes) == 2


# -- reductions


def softmax() -> Expression:
    steps = (
        Reduce("max", 0, f32), Apply(SUB, (0, 1), f32), Apply(EXP, (2,), f32), Reduce("sum", 3, f32),
        Apply(DIV, (3, 4), f32),
    )  # fmt: skip
    return Expression((f32,), steps, (5,))


def layer_norm() -> Expression:
    deviation = trace(lambda e, v: e.sqrt(v + 1e-5), (True,))
    steps = (
        Reduce("sum", 0, f32), Count(f32), Apply(DIV, (3, 4), f32), Apply(SUB, (0, 5), f32), Apply(MUL, (6, 6), f32),
        Reduce("sum", 7, f32), Apply(DIV, (8, 4), f32), Apply(deviation, (9,), f32), Apply(DIV, (6, 10), f32),
        Apply(MUL, (11, 1), f32), Apply(ADD, (12, 2), f32),
    )  # fmt: skip
    return Expression((f32, f32, f32), steps, (13,))


def exact_softmax(x: Array, axis: int = -1) -> Array:
    with np.errstate(invalid="ignore"):
        e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True).astype(np.float64))
    return e / e.sum(axis, keepdims=True)


def exact_layer_norm(x: Array, scale: Array, bias: Array) -> Array:
    d = x.astype(np.float64)
    d = d - d.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * scale + bias


def test_passes() -> None:
    """Exponentials are computed once; sums and differences again."""
    (first, second, third) = Schedule(softmax(), frozenset(), frozenset()).passes
    assert (first.reductions, second.reductions, third.stores) == ((1,), (4,), (0,))
    assert (second.saves, third.reloads, third.values) == ((3,), (3,), (3, 5))
    passes = Schedule(layer_norm(), frozenset(), frozenset()).passes
    assert [p.saves for p in passes] == [(), (), ()]
    assert [p.stage for p in passes] == [0, 1, 2]


@pytest.mark.parametrize("machine", MACHINES)
def test_softmax(machine: str | None) -> None:
    for n in SIZES[1:]:
        x = floats(5, n) * 3
        many = [run([x], softmax(), [(x.shape, "f")], reduced=1, threads=t, machine=machine)[0] for t in (1, 2, 3)]
        assert all(np.array_equal(many[0], y) for y in many)
        np.testing.assert_allclose(many[0], exact_softmax(x), rtol=3e-6, atol=1e-37)


@pytest.mark.parametrize("machine", MACHINES)
def test_softmax_across_rows(machine: str | None) -> None:
    """The reduced axis is not the contiguous one."""
    for n in (1, 5, 16, 67, 130):
        x = (floats(2, 7, n) * 3).transpose(0, 2, 1)
        (y,) = run([x], softmax(), [(x.shape, "f")], reduced=1, order=(0, 2, 1), threads=3, machine=machine)
        np.testing.assert_allclose(y, exact_softmax(x), rtol=3e-6)


def test_softmax_of_special_values() -> None:
    inf, nan, low = np.float32(np.inf), np.float32(np.nan), np.finfo(np.float32).min
    x = np.array(
        [[0, -inf, 1], [-inf, -inf, -inf], [nan, 0, 1], [1, 0, nan], [inf, 0, 1], [low, low, 0], [low] * 3], "f"
    )
    (y,) = run([x], softmax(), [(x.shape, "f")], reduced=1)
    np.testing.assert_allclose(y, exact_softmax(x), rtol=3e-6)


@pytest.mark.parametrize("machine", MACHINES)
def test_layer_norm(machine: str | None) -> None:
    for n in SIZES[1:]:
        x, scale, bias = floats(4, n) + 3, floats(n), floats(n)
        (y,) = run([x, scale, bias], layer_norm(), [(x.shape, "f")], reduced=1, threads=2, machine=machine)
        np.testing.assert_allclose(y, exact_layer_norm(x, scale, bias), rtol=1e-5, atol=1e-5)


def test_group_norm_rows_of_two_axes() -> None:
    """Scale and bias belong to one of two reduced axes, so they stay two."""
    x, scale, bias = floats(2, 3, 4, 35), floats(3, 4, 1), floats(3, 4, 1)
    (y,) = run([x, scale, bias], layer_norm(), [(x.shape, "f")], reduced=2, threads=2)
    flat = exact_layer_norm(x.reshape(2, 3, 140), np.float64(1), np.float64(0)).reshape(x.shape)
    np.testing.assert_allclose(y, flat * scale + bias, rtol=1e-5, atol=1e-5)


REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}


def axes_last(x: Array, axes: Sequence[int]) -> Array:
    return np.moveaxis(x, axes, range(-len(axes), 0))


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("numpy_type", ["f4", "f2", "f8", "i4", "u1"])
def test_reductions(kind: str, numpy_type: str) -> None:
    """Over the last, the first, the middle and all axes."""
    d = dtypes.of_numpy(np.dtype(numpy_type))
    e = Expression((d,), (Reduce(kind, 0, d),), (1,))
    for shape, axes in (((3, 37), (1,)), ((37, 19), (0,)), ((2, 9, 70), (1,)), ((4, 5, 6), (0, 2))):
        data = RNG.standard_normal(shape) if d.is_float else RNG.integers(1, 4, shape)
        x = (data * (0.3 if kind == "sum" and d.is_float else 1)).astype(numpy_type)
        turned = axes_last(x, axes)
        out = turned.shape[: x.ndim - len(axes)]
        (y,) = run([turned], e, [(out, numpy_type)], reduced=len(axes), threads=2)
        wide = x.astype(np.float64) if d.is_float else x
        want = REDUCTIONS[kind](wide, axis=axes, **({} if kind in ("max", "min") else {"dtype": wide.dtype}))
        np.testing.assert_allclose(
            y, want.astype(numpy_type), rtol={"f2": 2e-3, "f4": 2e-5}.get(numpy_type, 1e-12), atol=1e-6
        )


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("columns", [False, True])
def test_extremes_with_nan(machine: str | None, columns: bool) -> None:
    x = floats(6, 37)
    x[0, 36] = x[1, 0] = x[2, 20] = np.nan
    x[3], x[4, 5] = -np.inf, np.inf
    source, axis = (np.ascontiguousarray(x.T).T, -1) if columns else (x, -1)
    e = Expression((f32,), (Reduce("max", 0, f32), Reduce("min", 0, f32)), (1, 2))
    high, low = run([source], e, [((6,), "f"), ((6,), "f")], reduced=1, machine=machine)
    np.testing.assert_array_equal(high, x.max(axis))
    np.testing.assert_array_equal(low, x.min(axis))


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_arg_reductions(kind: str, is_last: bool, columns: bool) -> None:
    find = getattr(np, kind)
    for numpy_type in ("f4", "u1"):
        d = dtypes.of_numpy(np.dtype(numpy_type))
        e = Expression((d,), (Reduce(kind, 0, i64, is_last),), (1,))
        for n in (1, 3, 4, 17, 300):
            x = RNG.integers(0, 3, (8, n)).astype(numpy_type)
            if d.is_float:
                x[0], x[1], x[2, n // 2], x[3, -1] = -np.inf, np.inf, np.nan, np.nan
                x[3, 0] = np.nan
            source = np.ascontiguousarray(x.T).T if columns else x
            (y,) = run([source], e, [((8,), "i8")], reduced=1, threads=2, checked=False)
            want = n - 1 - find(x[:, ::-1], axis=1) if is_last else find(x, axis=1)
            assert np.array_equal(y, want), (numpy_type, n)


@pytest.mark.parametrize("columns", [False, True])
def test_empty_rows(columns: bool) -> None:
    """The neutral elements of sums, products and extremes."""
    x = np.zeros((0, 3), "f").T if columns else np.zeros((3, 0), "f")
    e = Expression((f32,), tuple(Reduce(kind, 0, f32) for kind in REDUCTIONS), (1, 2, 3, 4))
    results = run([x], e, [((3,), "f")] * 4, reduced=1)
    assert [r.tolist() for r in results] == [[v] * 3 for v in (0.0, 1.0, -np.inf, np.inf)]
    whole = np.zeros((3, 0), "i4")
    e = Expression((i32,), (Reduce("max", 0, i32), Reduce("min", 0, i32)), (1, 2))
    high, low = run([whole], e, [((3,), "i4")] * 2, reduced=1)
    assert high.tolist() == [np.iinfo("i4").min] * 3
    assert low.tolist() == [np.iinfo("i4").max] * 3


@pytest.mark.parametrize(
    ("shape", "room", "outer"), [((2, 21, 5, 6), 0, 0), ((2, 21, 1, 1), 0, 1), ((2, 21, 5, 6), 3, 1)]
)
def test_nhwc_images_are_traversed_in_memory_order(shape: tuple[int, ...], room: int, outer: int) -> None:
    """One long row where images are whole; with a number for each channel, or some of many, a row is a pixel."""
    full = (2, 21, 5, 6)
    a, b = by_pixel(floats(*full), room), by_pixel(floats(*shape))
    memory = Memory()
    views = tuple(memory.input(np.broadcast_to(x, full)) for x in (a, b))
    out = memory.output(full, "f", order=(0, 2, 3, 1))
    e = Expression((f32, f32), (Apply(MUL, (0, 1), f32),), (2,))
    (step,) = loop.steps(Loop((), full, 0, views, e, (out,)), Analysis(Target(isa.named(None))))
    config = dict(step.spec.statics)["config"]
    assert {access.kind for access in (*config.inputs, *config.outputs)} == {"1"}
    assert config.outer <= 2 * outer
    memory.run([step], threads=2, checked=True)
    np.testing.assert_array_equal(memory.array(out), a * b)


def test_division_by_extreme_sums() -> None:
    """Products with a reciprocal, where 1 / divisor would overflow, vanish or lose precision."""
    e = Expression((f32,), (Reduce("max", 0, f32), Apply(DIV, (0, 1), f32)), (2,))
    tops = np.array([1e-40, 1e-45, 3e38, np.inf, 0.0, 1.0, 1e-30], "f")
    x = (tops[:, None] * np.array([1, 0.5, 0.25], "f")).astype("f")
    with np.errstate(invalid="ignore"):
        x = np.nan_to_num(x, nan=0.0, posinf=np.inf)
        want = (x.astype(np.float64) / x.max(-1, keepdims=True)).astype("f")
    (y,) = run([x], e, [(x.shape, "f")], reduced=1)
    np.testing.assert_allclose(y, want, rtol=2e-7)


def test_narrow_floats_are_rounded_once() -> None:
    x = floats(4, 65).astype(np.float16)
    steps = tuple(type(s)(**{**vars(s), "dtype": f16}) for s in softmax().steps)
    (y,) = run([x], Expression((f16,), steps, (5,)), [(x.shape, "f2")], reduced=1)
    np.testing.assert_allclose(y.astype(np.float64), exact_softmax(x), rtol=1e-3, atol=1e-7)


def test_row_and_element_results_together() -> None:
    """A reduction, elements that use it, and the reduction repeated for each element."""
    same = trace(lambda e, a, b: e.where(e.eq(a, a), b, b), (True, True))
    e = Expression((f32,), (Reduce("sum", 0, f32), Apply(SUB, (0, 1), f32), Apply(same, (0, 1), f32)), (1, 2, 3))
    x = RNG.integers(-8, 8, (3, 21)).astype("f")
    total, rest, repeated = run([x], e, [((3,), "f"), (x.shape, "f"), (x.shape, "f")], reduced=1)
    assert np.array_equal(total, x.sum(-1))
    assert np.array_equal(rest, x - x.sum(-1, keepdims=True))
    assert np.array_equal(repeated, np.broadcast_to(x.sum(-1, keepdims=True), x.shape))


def dtype_name(d: DType) -> str:
    return d.name


@pytest.mark.parametrize("d", [f32, f16, bf16, f64], ids=dtype_name)
def test_expensive_pointwise(d: DType) -> None:
    numpy_type = d.numpy
    x = np.abs(RNG.standard_normal(97)).astype(numpy_type) + numpy_type.type(0.5)
    e = Expression((d,), (Apply(LOG, (0,), d), Apply(SQRT, (0,), d), Apply(MUL, (1, 2), d)), (3,))
    (y,) = run([x], e, [((97,), numpy_type)])
    wide = x.astype(np.float64)
    tolerance = {f16: 1e-3, bf16: 8e-3, f64: 1e-14}.get(d, 4e-7)
    np.testing.assert_allclose(y.astype(np.float64), np.log(wide) * np.sqrt(wide), rtol=tolerance, atol=tolerance / 8)


@pytest.mark.parametrize("cpu", [None, "haswell", "skylake-avx512", "sapphirerapids"])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("width", [1, 16, 77, 1000])
def test_a_softmax_is_nan_where_a_row_has_nan(op: str, width: int, cpu: str | None) -> None:
    """Its maximum leaves NaN out, and its sum does not."""
    x = np.random.default_rng(width).standard_normal((7, width)).astype(np.float32)
    x[1, width // 2], x[2], x[3], x[4, 0], x[5, -1] = np.nan, np.nan, -np.inf, np.inf, -np.inf
    got = Compiled(f"y = {op}(x)", "float[n,m] x", "float[n,m] y", cpu).run([x])[0]
    with np.errstate(invalid="ignore", divide="ignore"):
        exps = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        want = exps / exps.sum(1, keepdims=True)
        want = np.log(want) if op == "LogSoftmax" else want
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)
