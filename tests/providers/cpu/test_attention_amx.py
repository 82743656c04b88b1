"""Attention on tiles against the numpy meaning in float64: shapes, masks, threads, numbers that tiles do not carry."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sardonyx.ir import dims
from sardonyx.lower.groups import Attention
from sardonyx.ops.attention import attention as meaning
from sardonyx.providers.cpu import select
from sardonyx.providers.cpu.kernels.attention.amx_head import KEYS
from sardonyx.providers.cpu.kernels.gemm.amx import TERMS
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.analysis import Analysis, Target
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import KernelPolicy
from tests.providers.cpu.running import Memory
from tests.providers.cpu.test_amx import BF16, CHIP, LEAST, MOST
from tests.providers.cpu.test_attention import CASES, Case, mask_of

Array = np.ndarray[Any, Any]

ON_TILES = KernelPolicy(forced=frozenset(("attention.amx",)))
"""For few rows too."""

ALL_ONES = np.array(0x7FFF_FFFF, np.uint32).view(np.float32)[()]
"""The NaN that rounding to bf16 would carry over into a zero."""

ELEMENT = {"highest": 2e-6, "high": 6e-5, "medium": 2e-2}
"""How far an element may be from exact, as a share of the largest value."""
WHOLE = {"highest": 3e-7, "high": 3e-5, "medium": 6e-3}
"""The norm of the error, as a share of the result's."""

MORE = [
    Case("whole tiles", rows=64, keys=64, width=32, value_width=64),
    Case("half a step", rows=33, keys=KEYS + 16, width=33, value_width=31, mask="rows"),
    Case("just over", rows=32, keys=KEYS + 17, width=80, value_width=16, causal=True),
    Case("column bool mask", rows=21, keys=19, mask="any bool"),
]


class Problem:
    """Random operands of a case, heads side by side in a row, as projections leave them."""

    def __init__(self, case: Case, dtype: Any = np.float32) -> None:
        rng = np.random.default_rng(7)
        self.case, self.scale = case, 1 / math.sqrt(case.width)

        def operand(length: int, heads: int, width: int) -> Array:
            made = rng.standard_normal((case.batch, length, heads, width)).astype(dtype)
            return made.transpose(0, 2, 1, 3)

        self.q = operand(case.rows, case.heads, case.width)
        self.k = operand(case.keys, case.key_heads, case.width)
        self.v = operand(case.keys, case.key_heads, case.value_width)
        self.mask = mask_of(case, rng)

    def exact(self) -> Array:
        past, doubles = self.case.past, [x.astype(np.float64) for x in (self.q, self.k, self.v)]
        q, k, v = doubles
        old = dict(past_key=k[:, :, :past], past_value=v[:, :, :past]) if past else {}
        mask = self.mask if self.mask is None or self.mask.dtype == bool else self.mask.astype(np.float64)
        with np.errstate(all="ignore"):
            return meaning(
                q, k[:, :, past:], v[:, :, past:], mask, **old, is_causal=int(self.case.causal),
                softcap=self.case.softcap, scale=self.scale,
            )[0]  # fmt: skip

    def steps(self, memory: Memory, analysis: Analysis) -> tuple[list[Step], Any]:
        case = self.case
        q, k, v = (memory.input(x) for x in (self.q, self.k, self.v))
        shape = (case.batch, case.heads, case.rows, case.value_width)
        out = memory.output(shape, self.q.dtype, order=(0, 2, 1, 3))
        full = (case.batch, case.heads, case.rows, case.keys)
        mask = None if self.mask is None else memory.input(np.broadcast_to(self.mask, full))
        group = Attention((), q, k, v, mask, out, self.scale, case.causal, case.softcap, case.past)
        return select.steps_of(group, analysis), out

    def run(self, precision: str, *, threads: int = 1, checked: bool = False, chip: isa.Isa = CHIP) -> Array:
        memory = Memory()
        steps, out = self.steps(memory, Analysis(Target(chip, precision, ON_TILES)))
        assert steps[-1].spec.name == "attention_amx"
        memory.run(steps, threads=threads, isa=chip, checked=checked)
        return memory.array(out).copy()

    def check(self, got: Array, precision: str) -> None:
        exact = self.exact()
        most = abs(self.v.astype(np.float64)).max(initial=0)
        np.testing.assert_allclose(got, exact, rtol=0, atol=ELEMENT[precision] * most)


CHECKED = ("half a step", "just over", "causal with past", "column bool mask")


@pytest.mark.parametrize("case", CASES + MORE, ids=lambda c: c.name)
def test_kernel(case: Case) -> None:
    problem = Problem(case)
    got = problem.run("high")
    problem.check(got, "high")
    np.testing.assert_array_equal(problem.run("high", threads=3), got)


@pytest.mark.parametrize("case", [c for c in CASES + MORE if c.name in CHECKED], ids=lambda c: c.name)
@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_kernel_at_other_precisions(case: Case, precision: str) -> None:
    problem = Problem(case)
    problem.check(problem.run(precision, checked=precision == "highest"), precision)


@pytest.mark.parametrize("precision", TERMS)
@pytest.mark.parametrize("mask", ["none", "rows"])
def test_error_of_a_whole_head(precision: str, mask: str) -> None:
    problem = Problem(Case("", heads=2, rows=130, keys=200, width=64, value_width=64, mask=mask, batch=1))
    exact = problem.exact()
    assert np.linalg.norm(problem.run(precision) - exact) <= WHOLE[precision] * np.linalg.norm(exact)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BF16], ids=str)
def test_narrow_operands(dtype: Any) -> None:
    problem = Problem(Case("", rows=40, keys=50, width=16, value_width=24), dtype)
    got, exact = problem.run("high").astype(np.float64), problem.exact()
    np.testing.assert_allclose(got, exact, rtol=2.0**-8 if dtype == BF16 else 2.0**-11, atol=1e-4)


def test_sizes_that_are_known_at_run_time_only() -> None:
    problem = Problem(Case("", rows=37, keys=45, width=8, value_width=12, batch=1))
    memory = Memory({"rows": 37, "keys": 45})
    rows, keys = dims.symbol("rows"), dims.symbol("keys")
    q, k, v = (
        replace(view, shape=(*view.shape[:2], size, view.shape[3]))
        for view, size in zip(
            (memory.input(x) for x in (problem.q, problem.k, problem.v)), (rows, keys, keys), strict=True
        )
    )
    out = memory.output((1, 2, rows, 12), np.float32)
    steps = select.steps_of(Attention((), q, k, v, None, out, problem.scale), Analysis(Target(CHIP, "high")))
    memory.run(steps, isa=CHIP, checked=True)
    problem.check(memory.array(out), "high")


# -- numbers that tiles do not carry

SPECIALS = [np.inf, -np.inf, np.nan, ALL_ONES, MOST, -MOST, 1e30, LEAST, -1e-35]


@pytest.mark.parametrize("precision", TERMS)
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_special_numbers(where: str, precision: str) -> None:
    """One of two heads holds a special number; where the exact result is finite, so is ours, and near it."""
    for number in SPECIALS:
        problem = Problem(Case("", rows=40, keys=45, width=40, value_width=40, batch=1))
        plain = problem.run(precision)
        getattr(problem, where)[0, 1, 35, 3] = number
        got, exact = problem.run(precision), problem.exact()
        np.testing.assert_array_equal(got[0, 0], plain[0, 0])
        if where == "q":
            np.testing.assert_array_equal(got[0, 1, :32], plain[0, 1, :32])
        with np.errstate(over="ignore"):
            expected = exact.astype(np.float32)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(expected))
        there = np.isfinite(expected)
        size = abs(problem.v[np.isfinite(problem.v)]).max()
        assert (abs(got[there] - exact[there]) <= ELEMENT[precision] * min(size, 4) + 2e-6 * abs(exact[there])).all()


@pytest.mark.parametrize("precision", TERMS)
@pytest.mark.parametrize("faded", [1e-20, 1e-32, 1e-37, 1e-40])
@pytest.mark.parametrize("where", ["q", "k", "v", "qkv"])
def test_operands_that_have_faded(where: str, faded: float, precision: str) -> None:
    """One head's, or rather the second one's: tiles carry what they are multiplied by a power of two."""
    problem = Problem(Case("", rows=40, keys=KEYS + 9, width=40, value_width=40, batch=1, mask="rows"))
    for name in where:
        getattr(problem, name)[0, 1] *= np.float32(faded)
    got, exact = problem.run(precision, checked=precision == "high"), problem.exact()
    for head in range(2):
        error = np.linalg.norm(got[0, head].astype(np.float64) - exact[0, head])
        few_bits = 2 * float(LEAST) * math.sqrt(exact[0, head].size)
        assert error <= WHOLE[precision] * np.linalg.norm(exact[0, head]) + few_bits
        if precision == "medium" and faded > 1e-38:  # a single term, so not in f32
            assert error >= 1e-4 * np.linalg.norm(exact[0, head])


def test_rows_that_fade_within_a_block() -> None:
    problem = Problem(Case("", rows=40, keys=45, width=40, value_width=40, batch=1))
    fading = np.geomspace(1, 1e-37, 45, dtype=np.float32)[:, None]
    problem.q *= fading[:40]
    problem.k *= fading
    problem.v *= fading[::-1]
    problem.check(problem.run("highest"), "highest")


def test_masks_of_the_lowest_float() -> None:
    """A row whose keys all have the lowest mask weighs them as if there were none."""
    problem = Problem(Case("", rows=40, keys=KEYS + 40, mask="rows", batch=1))
    assert problem.mask is not None
    problem.mask = np.where(np.isinf(problem.mask), -MOST, problem.mask)
    problem.mask[0, 1, 5] = -MOST
    for precision in ("medium", "highest"):
        problem.check(problem.run(precision), precision)


@pytest.mark.parametrize("hidden", [-MOST, -np.inf, -1e4])
@pytest.mark.parametrize("rest", ["", "a row sees nothing", "a value is infinite", "large scores"])
def test_keys_that_a_mask_hides(hidden: float, rest: str) -> None:
    """Causality as a mask: what is hidden does not count, and need not be looked at, but where it must."""
    problem = Problem(Case("", rows=100, keys=KEYS + 70, mask="rows", batch=1))
    assert problem.mask is not None
    there = np.arange(KEYS + 70) <= np.arange(100)[:, None] + 30
    problem.mask = np.where(there, 0, np.float32(hidden)) * np.ones((1, problem.case.heads, 1, 1), np.float32)
    if rest == "a row sees nothing":
        problem.mask[0, :, 40] = -MOST
    elif rest == "a value is infinite":
        problem.v[0, 0, -1, 0] = np.inf
    elif rest == "large scores":
        problem.q[0, :, 5] *= np.float32(1e15)
        problem.k[0, :, -1] *= np.float32(1e15)
    got = problem.run("highest", threads=2, checked=True)
    if rest == "a value is infinite":
        np.testing.assert_array_equal(np.isnan(got), np.isnan(problem.exact()))
        return
    problem.check(got, "highest")
    if not rest:
        problem.v[:, :, -30:] = 1 - problem.v[:, :, -30:]
        np.testing.assert_array_equal(problem.run("highest"), got)


def test_a_mask_of_nan_stays_in_its_row() -> None:
    problem = Problem(Case("", rows=40, keys=KEYS + 40, mask="rows", batch=1))
    assert problem.mask is not None
    problem.mask[0, 1, 5, 7] = np.nan
    got = problem.run("medium")
    assert np.isnan(got[0, 1, 5]).all() and np.isnan(got).sum() == got.shape[-1]


# -- the choice


@pytest.mark.parametrize(
    ("cpu", "precision", "expected", "why"),
    [
        ("sapphirerapids", "medium", "attention_amx", "medium: 1 product of 1 bf16 term on tiles, 32 rows"),
        ("sapphirerapids", "highest", "attention_amx", "highest: 6 products of 3 bf16 terms on tiles, 32 rows"),
        ("skylake-avx512", "medium", "attention", "32 rows"),
    ],
)  # fmt: skip
def test_when_tiles_are_chosen(cpu: str, precision: str, expected: str, why: str) -> None:
    steps, _ = Problem(Case("", rows=33)).steps(Memory(), Analysis(Target(isa.CPUS[cpu], precision)))
    assert (steps[-1].spec.name, steps[-1].variant) == (expected, f"{why} by 128 keys")
