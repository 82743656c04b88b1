"""Constant weights in panels of f32, which become bf16 terms while they are multiplied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sardonyx.ir import dims
from sardonyx.lower.groups import Contraction
from sardonyx.providers.cpu import select
from sardonyx.providers.cpu.kernels.common.matrices import problem
from sardonyx.providers.cpu.kernels.gemm import amx, contraction
from sardonyx.providers.cpu.program.analysis import Analysis, Target
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step, Unrepresentable
from tests.providers.cpu.running import holds
from tests.providers.cpu.test_amx import CHIP, LEAST, MOST, check, group_of, product, steps_of
from tests.providers.cpu.test_gemm import Arrays, identity, random

Array = np.ndarray[Any, Any]


@pytest.fixture
def _wherever_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants lie in panels and meet tiles, however many rows there are."""
    monkeypatch.setattr(amx, "is_in_panels", lambda p, analysis: amx.terms(p, analysis) == 3 and p.weight is not None)
    monkeypatch.setitem(amx.LEAST_ROWS, 3, 16)


def ties(shape: tuple[int, ...]) -> Array:
    """Numbers that lie halfway between two bf16, or whose second terms do."""
    kinds = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-9 + 2.0**-17, 2 - 2.0**-23, 0.0], np.float32)
    rng = np.random.default_rng(3)
    return rng.choice(kinds, shape) * np.exp2(rng.integers(-3, 3, shape), dtype=np.float32)


@pytest.mark.usefixtures("_wherever_they_can")
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 70, 33), (16, 64, 31), (17, 97, 128), (40, 33, 129), (130, 65, 290), (300, 100, 64), (33, 260, 415)],
)
@pytest.mark.parametrize("make", [lambda shape: random(shape, np.float32, 1), ties], ids=["random", "ties"])
def test_the_same_bits_as_weights_that_are_split_by_a_step(m: int, n: int, k: int, make: Any) -> None:
    a, b = random((m, k), np.float32), make((k, n))
    want = product(a, b, "highest", is_constant=False)
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(product(a, b, "highest", threads=threads, checked=threads == 2), want)
    np.testing.assert_array_equal(product(a, np.ascontiguousarray(b.T).T, "highest"), want)


@pytest.mark.usefixtures("_wherever_they_can")
@pytest.mark.parametrize(("left", "right"), [((3, 40, 70), (3, 70, 35)), ((2, 1, 40, 70), (3, 70, 70))])
def test_batches(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = random(left, np.float32), random(right, np.float32, 1)
    for threads in (1, 3):
        got = product(a, b, "highest", threads=threads, checked=True)
        np.testing.assert_array_equal(got, product(a, b, "highest", is_constant=False))


@pytest.mark.usefixtures("_wherever_they_can")
def test_memory_that_holds_anything_is_not_read() -> None:
    """k ends inside a step: what a thread's memory held before must not meet the zeros of A."""
    a, b = random((40, 45), np.float32), random((45, 70), np.float32, 1)
    memory = Arrays()
    group, out = group_of(memory, a, b, True)
    for launch in memory.launches(steps_of(group, "highest"), isa=CHIP, threads=2):
        launch.scratch.fill(0xFF)
        launch()
    np.testing.assert_array_equal(memory.array(out), product(a, b, "highest"))


@pytest.mark.usefixtures("_wherever_they_can")
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weights_take_no_more_bytes_than_in_the_model(dtype: Any) -> None:
    a, b = random((64, 96), np.float32), random((96, 70), dtype, 1)
    memory = Arrays()
    group, out = group_of(memory, a, b, True)
    steps = steps_of(group, "highest")
    (packed,) = constants(steps)
    assert (packed.dtype.numpy, packed.elements) == (np.dtype(dtype), 96 * 96)
    assert steps[-1].nbytes == 96 * 96 * np.dtype(dtype).itemsize
    memory.run(steps, isa=CHIP, checked=True)
    check(memory.array(out), a, b, "highest")


def constants(steps: list[Step]) -> set[Packed]:
    found = (arg.storage for step in steps for arg in step.args.values() if isinstance(arg, Ref))
    return {storage for storage in found if isinstance(storage, Packed)}


def symbolic(memory: Arrays, a: Array, b: Array) -> tuple[Contraction, Any]:
    rows, (k, n) = dims.symbol("rows"), b.shape
    x = replace(memory.input(a), shape=(rows, k), strides=(k, 1))
    out = memory.output((rows, n), np.float32)
    return Contraction((), identity(np.float32), (), (out,), (), rows, n, k, x, memory.constant(b)), out


@pytest.mark.parametrize("rows", [0, 1, 5, 16, 39, 40, 70])
def test_few_rows_read_the_same_weights(rows: int) -> None:
    a, b = random((rows, 100), np.float32), random((100, 1400), np.float32, 1)
    assert b.size > contraction.SMALL
    memory = Arrays({"rows": rows})
    group, out = symbolic(memory, a, b)
    steps = select.steps_of(group, Analysis(Target(CHIP)))
    assert len(constants(steps)) == 1
    done = [step.spec.name for step in steps if step.only is not None and holds(step.only, rows)]
    assert done == (["gemm"] if rows < amx.LEAST_ROWS[3] else ["split_bf16", "gemm_amx"])
    memory.run(steps, isa=CHIP, threads=2, checked=True)
    check(memory.array(out), a, b, "highest")


@pytest.mark.parametrize("number", [np.inf, np.nan, MOST, LEAST])
@pytest.mark.parametrize("place", [(0, 0), (99, 69), (50, 33)])
def test_weights_that_bf16_terms_cannot_represent(number: float, place: tuple[int, int]) -> None:
    a, b = random((40, 100), np.float32), random((100, 70), np.float32, 1)
    b[place] = number
    memory = Arrays({"rows": 40})
    group, out = symbolic(memory, a, b)
    with pytest.raises(Unrepresentable) as found:
        memory.run(select.steps_of(group, Analysis(Target(CHIP))), isa=CHIP)
    steps = select.steps_of(group, Analysis(Target(CHIP), unrepresentable=frozenset({found.value.identity})))
    assert [step.spec.name for step in steps] == ["gemm"]
    memory.run(steps, isa=CHIP)
    with np.errstate(all="ignore"):
        want = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(memory.array(out), want, rtol=1e-5, atol=1e-5)


BATCH, TOKENS = dims.symbol("batch"), dims.symbol("tokens")


@pytest.mark.parametrize(
    ("rows", "is_stepwise", "expected"),
    [
        (BATCH, False, True),
        (dims.mul(BATCH, TOKENS), False, False),
        (dims.mul(BATCH, TOKENS), True, True),
        (dims.mul(BATCH, 197), False, False),
        (dims.mul(dims.mul(BATCH, TOKENS), 64), True, False),
        (128, True, False),
    ],
)
def test_panels_are_for_rows_that_may_be_few(rows: dims.Known, is_stepwise: bool, expected: bool) -> None:
    group, _ = symbolic(Arrays({"rows": 1}), random((1, 100), np.float32), random((100, 70), np.float32))
    p = problem(replace(group, m=rows))
    assert amx.is_in_panels(p, Analysis(Target(CHIP), is_stepwise=is_stepwise)) is expected
    assert not amx.is_in_panels(p, Analysis(Target(CHIP, "high")))
