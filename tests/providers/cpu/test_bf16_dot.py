"""Products of bf16 pairs on vectors: the instruction, and the tables of tile products on chips without tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.providers.cpu import select
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.language.bf16_dot import dot_pairs
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, bf16, f32, u32
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.analysis import Analysis, Target
from tests.providers.cpu import test_amx as tiles
from tests.providers.cpu.running import x86_assembly
from tests.providers.cpu.test_gemm import Arrays, random

Array = np.ndarray[Any, Any]

HOST = isa.named(None)
CHIP = replace(HOST, name="avx512", lanes=16, registers=32, amx=False, bf16_dot=True, is_emulated=not HOST.bf16_dot)
NATIVE = replace(CHIP, cpu="cooperlake", features=isa.WIDE, is_emulated=False)


@kernel(a=(bf16,), b=(bf16,), c=(f32,))
def one_dot(k: Kernel, a: Buf, b: Buf, c: Buf) -> None:
    c.store(0, dot_pairs(k, c.load(0, 16), a.as_type(u32).load(0, 16), b.as_type(u32).load(0, 16)))


def dot_meaning(c: Array, a: Array, b: Array) -> Array:
    """What the chip's manual says of vdpbf16ps: products of bf16 are exact in float64."""
    total, a, b = (tiles.flushed(x.astype(np.float32)).astype(np.float64) for x in (c, a, b))
    for i in (1, 0):
        total = tiles.flushed((total + a[i::2] * b[i::2]).astype(np.float32)).astype(np.float64)
    return np.asarray(total.astype(np.float32))


@pytest.mark.parametrize("scale", [1.0, 1e-19, 1e-38, 1e19])
def test_dot(scale: float) -> None:
    rng = np.random.default_rng(1)
    a, b = ((rng.standard_normal(32) * scale).astype(ml_dtypes.bfloat16) for _ in range(2))
    c = (rng.standard_normal(16) * scale**1.9).astype(np.float32)
    a[3], a[4], b[8], c[9] = np.inf, -0.0, np.nan, tiles.LEAST
    got = c.copy()
    Launch(one_dot(), dict(a=a, b=b, c=got), isa=CHIP)()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, dot_meaning(c, a, b))


def test_the_instruction_is_emitted() -> None:
    assert "vdpbf16ps" in x86_assembly(one_dot(), NATIVE)


TABLES: dict[str, Callable[..., None]] = {
    "sizes": partial(tiles.test_every_size, "medium", True),
    "sizes, both at run time": partial(tiles.test_every_size, "medium", False),
    "long sums": partial(tiles.test_error_of_long_sums, "medium", 768),
    "transposed": partial(tiles.test_transposed_operands, "medium", True),
    "special numbers on the left": partial(tiles.test_special_numbers_on_the_left, "medium"),
    "special numbers on the right": partial(tiles.test_special_numbers_on_the_right, "medium"),
    "masks": partial(tiles.test_masks_of_the_lowest_float, "medium"),
    "small times large": partial(tiles.test_small_numbers_times_large_ones, "medium"),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_tables_of_tile_products(table: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "CHIP", CHIP)
    table()


def test_results_depend_on_neither_rows_nor_threads_nor_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "CHIP", CHIP)
    tiles.test_results_depend_on_neither_rows_nor_threads_nor_blocking("medium", monkeypatch)


@pytest.mark.parametrize(("precision", "expected"), [("highest", "gemm"), ("high", "gemm"), ("medium", "gemm_amx")])
def test_pairs_are_taken_at_medium(precision: str, expected: str) -> None:
    group, _ = tiles.group_of(Arrays(), random((64, 96), np.float32), random((96, 70), np.float32, 1), True)
    steps = select.steps_of(group, Analysis(Target(isa.named("cooperlake") if CHIP.is_emulated else CHIP, precision)))
    assert steps[-1].spec.name == expected
