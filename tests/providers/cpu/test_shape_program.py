"""Shape programs: native code computes what Python computes, and reports values that it cannot."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sardonyx.ir import dims
from sardonyx.plan.sizes import LARGEST, Sizes, SizesDiffer
from sardonyx.providers.cpu.codegen.jit import call
from sardonyx.providers.cpu.memory.allocator import address
from sardonyx.providers.cpu.runtime.shape_program import evaluate
from tests.providers.cpu.running import Array

A, B = dims.symbol("a"), dims.symbol("b")
FUNCTIONS: list[Callable[..., dims.Known | None]] = [
    dims.add, dims.sub, dims.mul, dims.floordiv, dims.mod, dims.minimum, dims.maximum, dims.broadcast,
]  # fmt: skip
LEAVES = st.sampled_from([A, B]) | st.integers(-40, 40) | st.integers(-(1 << 70), 1 << 70)
EXPRESSIONS: st.SearchStrategy[dims.Known | None] = st.recursive(
    LEAVES,
    lambda inner: st.tuples(st.sampled_from(FUNCTIONS), inner, inner).map(lambda t: t[0](t[1], t[2])),
    max_leaves=8,
)
NAMES = st.integers(0, 40) | st.sampled_from([1 << 20, 1 << 31, LARGEST - 1, LARGEST, LARGEST + 1, (1 << 63) - 1])


def native(sizes: Sizes, numbers: list[int], a: int, b: int) -> list[int] | None:
    """The values of numbers; None where the program does not go on."""
    rows, places = sizes.program(numbers)
    values, bad = run(rows, a, b)
    return None if bad else [int(values[places[i]]) for i in numbers]


def run(rows: list[tuple[int, int, int]], a: int, b: int) -> tuple[Array, bool]:
    """All values of a program, and whether it does not go on."""
    program = np.array(rows, np.int64).reshape(-1, 3)
    values, bad = np.array([a, b, *[0] * len(rows)], np.int64), np.array([9], np.int64)
    call(evaluate(), address(values), 2, address(program), len(program), address(bad))
    assert bad[0] in (0, 1)
    return values, bool(bad[0])


@given(EXPRESSIONS, NAMES, NAMES)
@example(dims.mul(A, B), 1 << 31, 1 << 31)
@example(dims.mul(A, B), LARGEST, 1)
@example(dims.floordiv(dims.sub(A, 7), B), 3, 2)
@example(dims.floordiv(A, B), 3, 0)
@example(dims.broadcast(A, B), 3, 2)
@example(dims.floordiv(dims.product((2, A, A)), dims.sub(B, 1)), 1 << 31, 0)
def test_native_values_are_those_of_python(size: dims.Known | None, a: int, b: int) -> None:
    if size is None:
        return
    sizes = Sizes(("a", "b"))
    number = sizes.number(size)
    try:
        every = sizes.compiled()((a, b))
    except SizesDiffer:
        assert native(sizes, [number], a, b) is None
        return
    found = native(sizes, [number], a, b)
    assert every[number] == dims.evaluate(size, {"a": a, "b": b})
    assert found == ([every[number]] if max(map(abs, every)) <= LARGEST else None)


def test_overflowing_values_are_reported_as_bad() -> None:
    """A product that becomes the least word must not be divided by -1."""
    sizes = Sizes(("a", "b"))
    quotient = sizes.number(dims.floordiv(dims.product((2, A, A)), dims.sub(B, 1)))
    rows, places = sizes.program([quotient])
    values, bad = run(rows, 1 << 31, 0)
    assert bad and np.all(np.abs(values) < 1 << 32) and values[places[quotient]] == 0


@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", range(4))
def test_conditions_are_values(a: int, b: int) -> None:
    sizes = Sizes(("a", "b"))
    conditions = [
        sizes.satisfies(A, (B, 1), None), sizes.satisfies(A, (), 2), sizes.satisfies(B, (A,), 1),
        sizes.largest([A, B, 2]),
        sizes.bit_or([A, B]), sizes.satisfies(A, (), None),
    ]  # fmt: skip
    expected = [a in (b, 1), a >= 2, a == b >= 1, max(a, b, 2), operator.or_(a, b), True]
    assert native(sizes, conditions, a, b) == expected == list(sizes.compiled(tuple(conditions))((a, b)))
