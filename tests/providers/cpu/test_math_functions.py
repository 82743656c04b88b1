"""Elementary functions: errors in ulp on a sample, and every special value."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.ulp import BINARY, UNARY, WHERE_NORMAL, Array, errors_in_ulp, evaluate, every_float, measured, sampled

STRIDE = 65_537
BOUNDS = {  # f32, f64
    "exp": (1.0, 1.0), "exp_nonpositive": (1.0, 1.0), "expm1": (2.0, 2.0), "log": (1.0, 1.0), "log1p": (1.0, 1.0),
    "erf": (1.5, 2.5), "tanh": (1.6, 1.5), "sin": (1.6, 1.0), "cos": (1.6, 1.0), "tan": (1.5, 2.5),
    "asin": (1.0, 2.5), "acos": (1.0, 1.5), "atan": (1.0, 2.5), "sinh": (2.5, 2.5), "cosh": (1.5, 1.5),
    "asinh": (2.0, 2.0), "acosh": (2.0, 2.0), "atanh": (2.0, 2.0), "pow": (1.0, 1.5), "fmod": (0.0, 0.0),
    "sigmoid": (3.0, 3.0),
}  # fmt: skip
SPECIAL = [0.0, 1.0, 0.5, 2.0, 3.0, 1e-45, 1e-40, 1.1754944e-38, 88.7, 89.0, 104.0, 3.4028235e38, 1e30, np.inf]
ARGUMENTS = np.array([*SPECIAL, *(-np.array(SPECIAL)), np.nan])


@pytest.mark.parametrize("name", UNARY)
def test_f32(name: str) -> None:
    found = measured(name, every_float(STRIDE, name))
    assert found.worst <= BOUNDS[name][0], f"{found.worst} ulp at {found.at}"


@pytest.mark.parametrize("name", [n for n in UNARY if n not in WHERE_NORMAL])
def test_f32_where_models_are(name: str) -> None:
    x: Array = np.linspace(-9, 9, 50_001, dtype=np.float32)
    found = measured(name, iter([x]))
    assert found.worst <= BOUNDS[name][0], f"{found.worst} ulp at {found.at}"


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_f64(name: str) -> None:
    found = sampled(name, np.float64, 6_000)
    assert found.worst <= BOUNDS[name][1], f"{found.worst} ulp at {found.at}"


@pytest.mark.parametrize("name", BINARY)
def test_two_arguments_of_f32(name: str) -> None:
    found = sampled(name, np.float32, 40_000)
    assert found.worst <= BOUNDS[name][0], f"{found.worst} ulp at {found.at}"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [n for n in UNARY if n not in WHERE_NORMAL])
def test_special_values(name: str, dtype: type) -> None:
    x: Array = ARGUMENTS.astype(dtype)
    with np.errstate(all="ignore"):
        want = UNARY[name](x.astype(np.float64))
    _agree(evaluate(name, x), want, BOUNDS[name][dtype is np.float64])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", BINARY)
def test_special_pairs(name: str, dtype: type) -> None:
    pairs: list[Array] = [v.reshape(-1).astype(dtype) for v in np.meshgrid(ARGUMENTS, ARGUMENTS)]
    with np.errstate(all="ignore"):
        want = BINARY[name](*(v.astype(np.float64) for v in pairs))
    _agree(evaluate(name, *pairs), want, BOUNDS[name][dtype is np.float64])


def _agree(got: Array, want: Array, bound: float) -> None:
    assert errors_in_ulp(got, want.astype(np.longdouble)).max() <= bound + 0.5
    zero = (got == 0) & (want == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("cpu", ["haswell", "sapphirerapids"])
@pytest.mark.parametrize("name", ["exp", "erf", "tanh", "log", "sin", "pow"])
def test_width_does_not_matter(name: str, cpu: str) -> None:
    x = np.random.default_rng(3).standard_normal(37).astype(np.float32) * 30
    x[:3] = 1e20, np.nan, -np.inf
    args = (x, x[::-1].copy()) if name in BINARY else (x,)
    np.testing.assert_array_equal(evaluate(name, *args), evaluate(name, *args, cpu=cpu))


def test_softmax_exponential_vanishes() -> None:
    x = np.array([-np.inf, -1e30, -200.0, -100.0, 0.0, np.nan], np.float32)
    np.testing.assert_array_equal(evaluate("exp_nonpositive", x), [0, 0, 0, 0, 1, np.nan])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax_exponential_is_never_denormal(dtype: type) -> None:
    """It is 0, or as near as elsewhere: from half a power of two above the smallest normal number on."""
    limit = float(np.log(np.finfo(dtype).tiny))
    x: Array = np.linspace(limit - 5, limit + 5, 10_001).astype(dtype)
    got, want = evaluate("exp_nonpositive", x), np.exp(x.astype(np.longdouble))
    is_zero = got == 0
    assert errors_in_ulp(got[~is_zero], want[~is_zero]).max() <= 1.0
    assert x[is_zero].max() < limit + 0.5 * np.log(2) < x[~is_zero].min() + 1e-3


@pytest.mark.parametrize("cpu", [None, "haswell", "skylake-avx512"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sigmoid_at_its_ends(dtype: type, cpu: str | None) -> None:
    """It is 0 or as near as elsewhere where it is below the normal numbers."""
    x: Array = np.array([np.inf, 1e30, 800, 90, 0, -0.0, -1e30, -800, -np.inf, np.nan]).astype(dtype)
    np.testing.assert_array_equal(evaluate("sigmoid", x, cpu=cpu), [1, 1, 1, 1, 0.5, 0.5, 0, 0, 0, np.nan])
    end: Array = np.linspace(86, 90, 1001) if dtype is np.float32 else np.linspace(707, 711, 1001)
    got, tiny = evaluate("sigmoid", -end.astype(dtype), cpu=cpu), np.finfo(dtype).tiny
    np.testing.assert_allclose(got, 1 / (1 + np.exp(end.astype(dtype).astype(np.longdouble))), rtol=1e-6, atol=tiny)
