"""Chips that neither multiply and add at once, nor round, nor know f16."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f16, f32, f64, i64
from sardonyx.providers.cpu.machine import isa
from tests.providers.cpu.compiled import Compiled

CHIP = "x86-64"
RNG = np.random.default_rng(7)


def run(spec: Any, **args: Any) -> None:
    Launch(spec, args, isa=isa.named(CHIP))()


@kernel(a=("dtype",), b=("dtype",), c=("dtype",), y=("dtype",), n=i64)
def multiply_add(k: Kernel, a: Buf, b: Buf, c: Buf, y: Buf, n: Val, *, dtype: DType) -> None:
    for t in k.tiles(n):
        y.store(t, k.fma(a.load(t), b.load(t), c.load(t)))


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_products_lose_nothing_before_they_are_added(dtype: DType) -> None:
    a, b, c = (RNG.standard_normal(1001).astype(dtype.numpy) for _ in range(3))
    c[:400] = -(a * b)[:400]
    terms = zip(*(map(Fraction, map(float, x)) for x in (a, b, c)), strict=True)
    exact = np.array([float(p * q + r) for p, q, r in terms])
    y = np.zeros_like(a)
    run(multiply_add(dtype=dtype), a=a, b=b, c=c, y=y, n=len(a))
    np.testing.assert_array_equal(y[:400], exact[:400].astype(dtype.numpy))
    assert np.abs(exact[:400]).max() > 0, "what a product loses"
    np.testing.assert_array_max_ulp(y, exact.astype(dtype.numpy), 1)


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_products_at_the_ends_of_the_range(dtype: DType) -> None:
    big = np.finfo(dtype.numpy).max
    a, b, c = np.array(
        [[big, 2, 1], [np.inf, 2, 1], [np.nan, 2, 1], [big, 1, 0], [-big, 2, 1], [0, np.inf, 1], [big, 0.5, big / 2]],
        dtype.numpy,
    ).T.copy()
    y = np.zeros_like(a)
    run(multiply_add(dtype=dtype), a=a, b=b, c=c, y=y, n=len(a))
    np.testing.assert_array_equal(y, np.array([np.inf, np.inf, np.nan, big, -np.inf, np.nan, big], dtype.numpy))


@kernel(x=("dtype",), y=("dtype",), n=i64)
def rounded(k: Kernel, x: Buf, y: Buf, n: Val, *, dtype: DType, how: str) -> None:
    for t in k.tiles(n):
        y.store(t, getattr(k, how)(x.load(t)))


@pytest.mark.parametrize("how", ["rint", "floor", "ceil", "trunc"])
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_rounding(dtype: DType, how: str) -> None:
    whole = 2.0 ** (23 if dtype is f32 else 52)
    edges = [0.0, 0.5, 1.5, 2.5, 0.49999997, whole - 1, whole - 0.5, whole, whole * 3, 1e30, np.inf]
    x = np.concatenate([edges, np.negative(edges), [np.nan], RNG.standard_normal(500) * 9]).astype(dtype.numpy)
    y = np.zeros_like(x)
    run(rounded(dtype=dtype, how=how), x=x, y=y, n=len(x))
    expected = getattr(np, how)(x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(np.signbit(y), np.signbit(expected))


@kernel(x=("source",), y=("target",), n=i64)
def converted(k: Kernel, x: Buf, y: Buf, n: Val, *, source: DType, target: DType) -> None:
    for t in k.tiles(n):
        y.store(t, x.load(t))


def test_every_f16() -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    y = np.zeros(x.size, np.float32)
    run(converted(source=f16, target=f32), x=x, y=y, n=x.size)
    np.testing.assert_array_equal(y, x.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


def test_rounding_to_f16() -> None:
    codes = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (codes[1:] + codes[:-1]) / 2
    beside = [np.nextafter(middle, np.float32(to)) for to in (0, np.inf)]
    ends = np.array([65519, 65520, 65536, 1e30, np.inf, np.nan, 1e-8, 2.0**-25, 3e-8, 1e-40], np.float32)
    x = np.concatenate([middle, *beside, ends])
    x = np.concatenate([x, -x])
    y = np.zeros(x.size, np.float16)
    run(converted(source=f32, target=f16), x=x, y=y, n=x.size)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y, x.astype(np.float16))
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("op", ["Exp", "Tanh", "Erf", "Sin", "Floor", "Softplus", "Round"])
def test_operators(op: str, dtype: str) -> None:
    x = (RNG.standard_normal((3, 37)) * 3).astype(np.float16 if dtype == "float16" else np.float32)
    body, given, found = f"y = {op}(x)", f"{dtype}[A,B] x", f"{dtype}[A,B] y"
    (got,), (want,) = (Compiled(body, given, found, cpu).run([x]) for cpu in (CHIP, None))
    np.testing.assert_array_max_ulp(got, want, 1)
