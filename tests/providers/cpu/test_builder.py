"""The builder of IR: what is written once, what leaves loops, and that programs still mean what they say."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.errors import Fail
from sardonyx.providers.cpu.codegen.jit import call
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.language.context import Code
from sardonyx.providers.cpu.language.dsl import Kernel, function, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.memory.allocator import address

COUNT = 3
"""Variables of a random program."""
OPERATIONS = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "rem": Val.remainder,
}  # fmt: skip
"""Of numbers of either sign, which ``//`` and ``%`` are not for."""


def lines_of(body: Callable[..., None]) -> list[str]:
    """The IR of a function of two memories and two numbers."""
    spec = function(x=(i64,), y=(i64,), n=i64, m=i64)(body)()
    return str(spec.emit(isa.current()).module).splitlines()


def test_checked_kernels_refuse_negative_divisors() -> None:
    """``//`` and ``%`` are for sizes: 0 divides like 1, and what is negative would too."""

    @kernel(y=(i64,), n=i64, m=i64)
    def divide(k: Kernel, y: Buf, n: Val, m: Val) -> None:
        y.store(0, n // m)
        y.store(1, n % m)

    for m in (3, 1, 0):
        y = np.full(2, -1)
        Launch(divide(), {"y": y, "n": 7, "m": m}, checked=True)()
        assert y.tolist() == list(divmod(7, max(m, 1)))
    with pytest.raises(Fail, match=f"error {Code.DIVISOR}.*-2"):
        Launch(divide(), {"y": y, "n": 7, "m": -2}, checked=True)()


def blocks_of(lines: list[str], instruction: str) -> list[str]:
    """The labels of the blocks that hold an instruction."""
    label, found = "", []
    for line in lines:
        if re.fullmatch(r"\w+:", line):
            label = line[:-1]
        elif f"= {instruction} " in line:
            found.append(label)
    return found


def test_the_same_instruction_is_written_once() -> None:
    def body(k: Kernel, x: Buf, y: Buf, n: Val, m: Val) -> None:
        y.store(n * m, n * m)
        with k.when(n > 0):
            y.store(0, n * m)

    assert len(blocks_of(lines_of(body), "mul")) == 1


def test_branches_share_nothing() -> None:
    def body(k: Kernel, x: Buf, y: Buf, n: Val, m: Val) -> None:
        with k.either(n > 0) as (yes, no):
            with yes:
                y.store(0, n * m)
            with no:
                y.store(1, n * m)

    assert len(blocks_of(lines_of(body), "mul")) == 2


def test_loop_invariant_instructions_are_emitted_before_the_loop() -> None:
    def body(k: Kernel, x: Buf, y: Buf, n: Val, m: Val) -> None:
        with k.loop(0, n) as i, k.loop(0, m) as j:
            y.store(i, n * m)
            y.store(j, i * m)

    first, second = blocks_of(lines_of(body), "mul")
    loops = blocks_of(lines_of(body), "phi i64")
    assert first != second and not {first, second} & set(loops)


@pytest.mark.parametrize(("divisor", "leaves"), [(7, True), (None, False)])
def test_a_division_leaves_a_loop_only_if_it_cannot_trap(divisor: int | None, leaves: bool) -> None:
    def body(k: Kernel, x: Buf, y: Buf, n: Val, m: Val) -> None:
        with k.loop(0, n) as i:
            y.store(i, n / (m if divisor is None else divisor))

    lines = lines_of(body)
    assert (blocks_of(lines, "sdiv") != blocks_of(lines, "phi")) is leaves


def test_counters_are_divided_as_naturals() -> None:
    def body(k: Kernel, x: Buf, y: Buf, n: Val, m: Val) -> None:
        with k.loop(0, n) as i:
            y.store(i, (i + 1) // 8 + i % 3)
            y.store(i, n % 3)

    lines = lines_of(body)
    assert [len(blocks_of(lines, op)) for op in ("udiv", "urem", "sdiv", "srem")] == [1, 1, 0, 1]


def test_divisors_of_zero_are_not_met_in_front_of_loops() -> None:
    @kernel(y=(i64,), n=i64, m=i64)
    def guarded(k: Kernel, y: Buf, n: Val, m: Val) -> None:
        with k.loop(0, n) as i, k.when(m.ne(0)):
            y.store(i, n % m)

    y = np.full(3, 5)
    Launch(guarded(), {"y": y, "n": 3, "m": 0})()
    assert y.tolist() == [5, 5, 5]


_terms = st.lists(st.tuples(st.sampled_from("ijn1"), st.integers(-3, 3)), max_size=4).map(tuple)


def _sum_of(terms: tuple[tuple[str, int], ...], values: dict[str, Any], zero: Any) -> Any:
    return sum((values[name] * times for name, times in terms), zero)


@kernel(y=(i64,), n=i64)
def mark(k: Kernel, y: Buf, n: Val, *, first: int, step: int, places: tuple[Any, ...]) -> None:
    with k.loop(first, n, step) as i, k.loop(i, 4) as j:
        values = {"i": i, "j": j, "n": n, "1": k.const(1)}
        base, at, offset = (_sum_of(terms, values, k.const(0)) for terms in places)
        to = y.at(base + MIDDLE).at(at)
        to.store(offset, to.load(offset) * 3 + (i + 5) / 2 + j % 3)


MIDDLE = 200
"""Farther from either end than three places of four terms lead."""


@settings(max_examples=25)
@given(first=st.integers(-2, 2), step=st.integers(1, 2), n=st.integers(-2, 4), places=st.tuples(_terms, _terms, _terms))
def test_addresses_lead_where_they_say(first: int, step: int, n: int, places: tuple[Any, ...]) -> None:
    y, expected = np.zeros(2 * MIDDLE, np.int64), np.zeros(2 * MIDDLE, np.int64)
    Launch(mark(first=first, step=step, places=places), {"y": y, "n": n}, checked=True)()
    for i in range(first, n, step):
        for j in range(i, 4):
            values = {"i": i, "j": j, "n": n, "1": 1}
            at = MIDDLE + sum(_sum_of(terms, values, 0) for terms in places)
            expected[at] = expected[at] * 3 + (i + 5) // 2 + math.fmod(j, 3)
    np.testing.assert_array_equal(y, expected)


Program = tuple[Any, ...]
_numbers, _places = st.integers(-9, 9), st.integers(0, COUNT - 1)
_simple = st.one_of(
    st.tuples(st.sampled_from(sorted(OPERATIONS)), _places, _places, _places),
    st.tuples(st.just("set"), _places, _numbers),
    st.tuples(st.just("note"), _places),
)


def _nested(inner: Any) -> Any:
    body = st.lists(inner, min_size=1, max_size=4).map(tuple)
    return st.one_of(
        st.tuples(st.just("loop"), _places, _numbers, st.integers(1, 2), body),
        st.tuples(st.just("while"), _places, st.integers(0, 3), body),
        st.tuples(st.just("when"), _places, body),
        st.tuples(st.just("either"), _places, body, body),
    )


_programs = st.lists(st.recursive(_simple, _nested, max_leaves=24), min_size=2, max_size=8).map(tuple)


def _bounded(v: Any) -> Any:
    """Small numbers of both signs."""
    return v - v / 1000 * 1000 if isinstance(v, Val) else v - int(v / 1000) * 1000


def _expected(program: Program, held: list[int], sums: list[int]) -> None:
    for op, *rest in program:
        if op == "set":
            held[rest[0]] = rest[1]
        elif op == "note":
            sums[0] = _bounded(sums[0] * 3 + held[rest[0]])
        elif op == "loop":
            for i in range(rest[1], held[rest[0]] % 5 if held[rest[0]] >= 0 else 0, rest[2]):
                sums[0] = _bounded(sums[0] + i)
                _expected(rest[3], held, sums)
        elif op == "while":
            for i in range(rest[1]):
                held[rest[0]] = i
                _expected(rest[2], held, sums)
        elif op == "when":
            if held[rest[0]] > 0:
                _expected(rest[1], held, sums)
        elif op == "either":
            _expected(rest[1] if held[rest[0]] > 0 else rest[2], held, sums)
        else:
            to, a, b = rest[0], held[rest[1]], held[rest[2]]
            c = b or 1
            quotient = abs(a) // abs(c) * (1 if (a < 0) == (c < 0) else -1)
            made = {"add": a + b, "sub": a - b, "mul": a * b, "div": quotient, "rem": a - quotient * c}
            held[to] = _bounded(made[op])


def _written(k: Kernel, program: Program, held: list[Any], total: Any) -> None:
    for op, *rest in program:
        if op == "set":
            held[rest[0]].set(rest[1])
        elif op == "note":
            total.set(_bounded(total.get() * 3 + held[rest[0]].get()))
        elif op == "loop":
            v = held[rest[0]].get()
            with k.loop(rest[1], k.select(v >= 0, v % 5, 0), rest[2]) as i:
                total.set(_bounded(total.get() + i))
                _written(k, rest[3], held, total)
        elif op == "while":
            left = k.var(0)
            with k.loop_while(lambda left=left, most=rest[1]: left.get() < most):
                held[rest[0]].set(left.get())
                _written(k, rest[2], held, total)
                left += 1
        elif op == "when":
            with k.when(held[rest[0]].get() > 0):
                _written(k, rest[1], held, total)
        elif op == "either":
            with k.either(held[rest[0]].get() > 0) as (yes, no):
                with yes:
                    _written(k, rest[1], held, total)
                with no:
                    _written(k, rest[2], held, total)
        else:
            a, b = (held[i].get() for i in rest[1:])
            held[rest[0]].set(_bounded(OPERATIONS[op](a, k.select(b.eq(0), 1, b) if op in ("div", "rem") else b)))


@function(x=(i64,))
def interpret(k: Kernel, x: Buf, *, program: Program) -> None:
    held = [k.var(x.load(i)) for i in range(COUNT)]
    total = k.var(0)
    _written(k, program, held, total)
    for i, v in enumerate((*held, total)):
        x.store(i, v)


@settings(max_examples=40)
@given(program=_programs, start=st.tuples(*[_numbers] * COUNT))
def test_structured_programs_mean_what_they_say(program: Program, start: tuple[int, ...]) -> None:
    x = np.array([*start, 0], np.int64)
    call(interpret(program=program), address(x))
    held, sums = list(start), [0]
    _expected(program, held, sums)
    assert x.tolist() == [*held, sums[0]]
