"""Matrix products on vectors, against numpy in float64: types, sizes, layouts, epilogues, special numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx import dtypes
from sardonyx.dtypes import f32
from sardonyx.errors import NotImplemented
from sardonyx.ir import dims
from sardonyx.ir.scalar import trace
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.groups import Apply, Contraction, Expression, Reduce, Storage, View
from sardonyx.ops import activation  # noqa: F401 (registers programs)
from sardonyx.ops.pointwise import program_of
from sardonyx.providers.cpu import select
from sardonyx.providers.cpu.kernels.common.matrices import problem
from sardonyx.providers.cpu.kernels.gemm import contraction
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.analysis import Analysis, Target
from sardonyx.providers.cpu.program.constants import content
from sardonyx.providers.cpu.program.steps import Packed, Step
from tests.providers.cpu.running import Array, Memory

CHIPS = (None, "haswell", "skylake-avx512")
"""Chips whose multiply-adds are fused: all give the same bits."""
BF16 = np.dtype(ml_dtypes.bfloat16)


class Arrays(Memory):
    """Storages that may be constants as well."""

    def _allocate(self, storage: Storage) -> None:
        super()._allocate(storage)
        if isinstance(storage, Packed):
            self._flat[storage.number] = content(storage)

    def bind(self, storage: Storage, array: Array) -> None:
        self._flat[storage.number] = array.reshape(-1)

    def constant(self, array: Array) -> View:
        """A view of a constant; a transposed array is a transposed view of a contiguous one."""
        axes = np.argsort([-s for s in array.strides], kind="stable")
        tensor = Tensor.of(np.ascontiguousarray(array.transpose(axes)))
        storage = Storage("constant", tensor.dtype, array.size, tensor=tensor)
        strides = [0] * array.ndim
        for axis, step in zip(axes, tensor.numpy().strides, strict=True):
            strides[axis] = step // array.itemsize
        return View(storage, array.shape, tuple(strides))


def steps_of(group: Contraction, cpu: str | None, precision: str = "highest") -> list[Step]:
    return contraction.multiply_adds(problem(group), Analysis(Target(isa.named(cpu), precision)))


def random(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed + sum(shape))
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 1000, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def identity(dtype: Any) -> Expression:
    kept = dtypes.of_numpy(np.dtype(dtype))
    summed = f32 if kept.bits < 32 else kept
    return Expression((summed,), (), (0,))


def product(
    a: Array, b: Array, *, cpu: str | None = None, threads: int = 1, checked: bool = False, is_constant: bool = True,
    precision: str = "highest",
) -> Array:  # fmt: skip
    """a times b, with broadcast batch axes."""
    memory = Arrays()
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    views = memory.input(a), memory.constant(b) if is_constant else memory.input(b)
    x, y = (_stretched(v, batch) for v in views)
    out = memory.output((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    group = Contraction((), identity(a.dtype), (), (out,), batch, a.shape[-2], b.shape[-1], a.shape[-1], x, y)
    memory.run(steps_of(group, cpu, precision), threads=threads, isa=isa.named(cpu), checked=checked)
    return memory.array(out)


def _stretched(view: View, batch: tuple[int, ...]) -> View:
    lead = len(batch) + 2 - len(view.shape)
    strides = [0] * lead + [s if n != 1 else 0 for n, s in zip(view.shape[:-2], view.strides, strict=False)]
    return replace(view, shape=(*batch, *view.shape[-2:]), strides=(*strides, *view.strides[-2:]))


def check(got: Array, a: Array, b: Array, rounding: float = 0.0) -> None:
    """Within a few roundings of what each sum adds up in absolute values."""
    wide = np.float64 if a.dtype.kind in "fV" else a.dtype
    x, y = a.astype(wide), b.astype(wide)
    expected = x @ y
    if a.dtype.kind in "iu":
        np.testing.assert_array_equal(got, expected)
        return
    unit = 2.0**-53 if a.dtype == np.float64 else 2.0**-24
    bound = (8 * unit + rounding) * (abs(x) @ abs(y)) + abs(expected) * _own_rounding(a.dtype) + 1e-300
    assert (abs(got.astype(wide) - expected) <= bound).all()


def _own_rounding(dtype: Any) -> float:
    return {np.dtype(np.float16): 2.0**-10, BF16: 2.0**-8}.get(np.dtype(dtype), 0.0)


SIZES = [
    (0, 5, 3), (3, 0, 5), (4, 5, 0), (1, 1, 1), (1, 33, 7), (2, 15, 16), (3, 16, 17), (4, 17, 4), (5, 31, 5),
    (6, 32, 64), (7, 64, 65), (13, 47, 3), (14, 48, 255), (15, 49, 256), (29, 95, 257), (57, 17, 511), (130, 37, 600),
]  # fmt: skip


@pytest.mark.parametrize(("cpu", "checked"), [*((cpu, False) for cpu in (*CHIPS, "x86-64")), (None, True)])
def test_every_size(cpu: str | None, checked: bool) -> None:
    for m, n, k in SIZES:
        a, b = random((m, k), np.float32), random((k, n), np.float32, 1)
        check(product(a, b, cpu=cpu, checked=checked), a, b)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, BF16, np.int32, np.int64, np.uint32, np.uint64], ids=str)
@pytest.mark.parametrize("is_constant", [True, False])
def test_every_type(dtype: Any, is_constant: bool) -> None:
    for m, n, k in ((1, 5, 3), (7, 37, 300), (16, 16, 16)):
        a, b = random((m, k), dtype), random((k, n), dtype, 1)
        check(product(a, b, is_constant=is_constant), a, b)


@pytest.mark.parametrize("cpu", CHIPS)
def test_transposed_operands_constant_and_computed(cpu: str | None) -> None:
    for m, n, k in ((3, 5, 7), (16, 48, 32), (19, 45, 70)):
        a, b = random((k, m), np.float32).T, random((n, k), np.float32, 1).T
        wide = np.ascontiguousarray(np.stack([b, b], -1))[..., 0]
        for right, is_constant in ((b, True), (b, False), (wide, False)):
            check(product(a, right, cpu=cpu, is_constant=is_constant, checked=cpu is None), a, b)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3, 5, 7), (7, 4)), ((2, 1, 5, 7), (3, 7, 4)), ((5, 7), (3, 2, 7, 4)), ((2, 3, 1, 7), (2, 3, 7, 4)),
        ((2, 1, 2, 5, 7), (1, 3, 2, 7, 4)), ((0, 5, 7), (7, 4)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_constant", [True, False])
def test_batches_and_broadcasts(left: tuple[int, ...], right: tuple[int, ...], is_constant: bool) -> None:
    a, b = random(left, np.float32), random(right, np.float32, 1)
    for threads in (1, 3):
        check(product(a, b, threads=threads, is_constant=is_constant), a, b)


def test_a_batch_with_one_right_operand_is_more_rows() -> None:
    memory = Arrays()
    size = dims.symbol("batch"), dims.symbol("tokens")
    memory.sizes = {"batch": 2, "tokens": 11}
    a, b = random((2, 11, 20), np.float32), random((20, 9), np.float32, 1)
    tokens: Any = dims.mul(size[1], 20)
    x = replace(memory.input(a), shape=(*size, 20), strides=(tokens, 20, 1))
    y = replace(memory.constant(b), shape=(size[0], 20, 9), strides=(0, 9, 1))
    out = memory.output((*size, 9), np.float32)
    group = Contraction((), identity(np.float32), (), (out,), size[:1], size[1], 9, 20, x, y)
    p = problem(group)
    assert p.batch == () and p.m == dims.mul(*size)
    memory.run(steps_of(group, None))
    check(memory.array(out), a, b)


def test_a_constant_whose_sizes_are_named_is_packed_at_each_run() -> None:
    memory = Arrays({"width": 20})
    a, b = random((3, 20), np.float32), random((20, 9), np.float32, 1)
    y, width = memory.constant(b), dims.symbol("width")
    memory.bind(y.storage, b)
    out = memory.output((3, 9), np.float32)
    group = Contraction((), identity(np.float32), (), (out,), (), 3, 9, width, memory.input(a), y)
    memory.run(steps_of(group, None))
    check(memory.array(out), a, b)


def test_results_depend_on_neither_rows_nor_threads_nor_registers() -> None:
    a, b = random((37, 700), np.float32), random((700, 50), np.float32, 1)
    whole = product(a, b)
    for threads in (2, 3, 16):
        np.testing.assert_array_equal(product(a, b, threads=threads), whole)
    for rows in (1, 2, 5, 14):
        np.testing.assert_array_equal(product(a[:rows], b), whole[:rows])
    for cpu in CHIPS:
        np.testing.assert_array_equal(product(a, b, cpu=cpu), whole)
    np.testing.assert_array_equal(product(a, b, is_constant=False), whole)


def test_long_sums_are_as_exact_as_short_ones() -> None:
    a, b = random((4, 20_000), np.float32), random((20_000, 16), np.float32, 1)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    one_by_one = np.zeros_like(exact, np.float32)
    for i in range(a.shape[1]):
        one_by_one += a[:, i : i + 1] * b[i]
    assert abs(product(a, b) - exact).mean() < abs(one_by_one - exact).mean() / 2


MOST, LEAST = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal


@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_special_numbers(cpu: str | None, precision: str) -> None:
    """One special number in a row of ones, and B of ones: each result shows what became of it."""
    specials = np.array([np.inf, -np.inf, np.nan, MOST, -MOST, LEAST, -LEAST, 0.0, -0.0], np.float32)
    for where in range(2):
        a, b = np.eye(9, 300, dtype=np.float32), np.ones((300, 20), np.float32)
        if where == 0:
            a[range(9), range(9)] = specials
        else:
            b[:9] = specials[:, None]
        with np.errstate(all="ignore"):
            expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
        got = product(a, b, cpu=cpu, precision=precision)
        np.testing.assert_array_equal(got, expected)


def test_bf16_weights_at_medium() -> None:
    a, b = random((9, 300), np.float32), random((300, 37), np.float32, 1)
    got = product(a, b, precision="medium")
    check(got, a, b, rounding=2.0**-8)
    check(got, a, b.astype(BF16).astype(np.float32))


# -- epilogues


def apply(name: str, *args: int, **attributes: Any) -> Apply:
    program = program_of(name, len(args), **attributes)
    assert program is not None
    return Apply(program, args, f32)


def gelu(x: Array) -> Array:
    from math import erf

    found: Array = x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2
    return found


@dataclass
class Case:
    """An expression of the sums and further operands, by shape, with its meaning."""

    shapes: tuple[tuple[int, ...], ...]
    steps: tuple[Apply, ...]
    meaning: Any
    dtype: Any = np.float32
    order: tuple[int, ...] | None = None
    is_checked: bool = False


EPILOGUES = {
    "bias": Case(((1, 1, 37),), (apply("Add", 0, 1),), lambda s, x: s + x),
    "bias and residual": Case(
        ((1, 1, 37), (2, 11, 37)), (apply("Add", 0, 1), apply("Add", 3, 2)), lambda s, x, y: s + x + y,
        is_checked=True,
    ),
    "row, number, relu": Case(
        ((2, 11, 1), (1, 1, 1)), (apply("Mul", 0, 1), apply("Sub", 3, 2), apply("Relu", 4)),
        lambda s, x, y: np.maximum(s * x - y, 0),
    ),
    "bias and gelu": Case(
        ((1, 1, 37),), (apply("Add", 0, 1), apply("Gelu", 2, approximate="none")), lambda s, x: gelu(s + x)
    ),
    "transposed": Case(((1, 1, 37),), (apply("Add", 0, 1),), lambda s, x: s + x, order=(0, 2, 1), is_checked=True),
    "f16": Case((), (), lambda s: s, np.float16),
    "bool": Case((), (Apply(trace(lambda e, x: x > 0, (True,)), (0,), dtypes.bool_),), lambda s: s > 0, np.bool_),
}  # fmt: skip


@pytest.mark.parametrize(("name", "cpu"), [*((name, None) for name in EPILOGUES), ("bias and gelu", "skylake-avx512")])
def test_epilogues(name: str, cpu: str | None) -> None:
    case = EPILOGUES[name]
    memory = Arrays()
    a, b = random((2, 11, 70), np.float32), random((2, 70, 37), np.float32, 1)
    extra = [random(shape, np.float32, 2 + i) for i, shape in enumerate(case.shapes)]
    views = [memory.input(np.broadcast_to(x, (2, 11, 37))) for x in extra]
    results = (len(extra) + len(case.steps),)
    expression = Expression((f32,) * (1 + len(extra)), case.steps, results)
    out = memory.output((2, 11, 37), case.dtype, order=case.order)
    ends = memory.input(a), memory.input(b)
    group = Contraction((), expression, tuple(views), (out,), (2,), 11, 37, 70, *ends)
    memory.run(steps_of(group, cpu), threads=2, isa=isa.named(cpu), checked=case.is_checked)
    expected = case.meaning(a.astype(np.float64) @ b.astype(np.float64), *extra)
    rtol = 2e-3 if case.dtype == np.float16 else 1e-4
    np.testing.assert_allclose(memory.array(out), expected.astype(case.dtype), rtol=rtol, atol=1e-4)


def test_several_outputs() -> None:
    memory = Arrays()
    a, b = random((6, 20), np.float32), random((20, 18), np.float32, 1)
    expression = Expression((f32,), (apply("Relu", 0), apply("Neg", 0)), (1, 2, 0))
    outs = tuple(memory.output((6, 18), np.float32, order=order) for order in ((0, 1), (1, 0), (0, 1)))
    group = Contraction((), expression, (), outs, (), 6, 18, 20, memory.input(a), memory.constant(b))
    memory.run(steps_of(group, None))
    relu, neg, same = (memory.array(o) for o in outs)
    check(same, a, b)
    np.testing.assert_array_equal(relu, np.maximum(same, 0))
    np.testing.assert_array_equal(neg, -same)


def test_refusals_say_why() -> None:
    assert contraction.types_refusal(f32, f32) is None
    assert contraction.types_refusal(dtypes.u8, dtypes.u8) == "sums of u8 products are not compiled"
    assert contraction.types_refusal(f32, dtypes.f64) == "f32 times f64 is not compiled"
    memory = Arrays()
    a = memory.input(random((2, 2), np.float32))
    sums = Expression((f32,), (Reduce("sum", 0, f32),), (1,))
    group = Contraction((), sums, (), (memory.output((2, 2), np.float32),), (), 2, 2, 2, a, a)
    with pytest.raises(NotImplemented, match="reduction"):
        select.steps_of(group, Analysis(Target(isa.named(None))))


def test_a_constant_is_packed_once() -> None:
    memory = Arrays()
    view = memory.constant(random((20, 9), np.float32))
    a = memory.input(random((3, 20), np.float32))
    packed = []
    for _ in range(2):
        out = memory.output((3, 9), np.float32)
        step = steps_of(Contraction((), identity(np.float32), (), (out,), (), 3, 9, 20, a, view), None)[-1]
        packed.append(step.args["b"].storage)  # type: ignore[union-attr]
    assert content(packed[0]) is content(packed[1])
