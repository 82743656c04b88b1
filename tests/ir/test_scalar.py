import math

import ml_dtypes
import numpy as np
import pytest

from sardonyx import dtypes
from sardonyx.ir import special
from sardonyx.ir.scalar import run_numpy, trace


def run(fn, *arrays, **attributes):
    arrays = tuple(map(np.asarray, arrays))
    return run_numpy(trace(fn, (True,) * len(arrays), **attributes), *arrays)


def gate(e, x, y, *, slope=2):
    return x * e.where(y > 0, y, y * slope) + y * slope


def test_a_program_is_straight_line_code_without_duplicates():
    program = trace(gate, (True, True))
    assert str(program).splitlines() == [
        "%0 = arg 0", "%1 = arg 1", "%2 = int 0", "%3 = gt %1 %2", "%4 = int 2", "%5 = mul %1 %4",
        "%6 = where %3 %1 %5", "%7 = mul %0 %6", "%8 = add %7 %5",
    ]  # fmt: skip


def test_programs_are_values():
    assert trace(gate, (True, True)) is trace(gate, (True, True))
    again = trace(lambda e, x, y: gate(e, x, y), (True, True))
    assert again == trace(gate, (True, True)) and hash(again) == hash(trace(gate, (True, True)))
    assert trace(gate, (True, True), slope=3) != again
    assert trace(gate, (True, True), slope=2.0) != again, "2 and 2.0 differ on integers"


def test_absent_arguments_are_none():
    program = trace(lambda e, x, low, high: e.minimum(x, high) if low is None else x, (True, False, True))
    assert program.arity == 2
    np.testing.assert_array_equal(run_numpy(program, np.array([1, 5]), np.array(3)), [1, 3])


@pytest.mark.parametrize("name", ["f16", "bf16", "f8e4m3fn", "f8e5m2"])
def test_narrow_floats_are_computed_in_f32_and_rounded_once(name):
    dtype = dtypes.of_name(name).numpy
    x = np.random.default_rng(0).uniform(-4, 4, 200).astype(dtype)
    got = run(lambda e, x: (x * x + 1) / 3 - x, x)
    wide = x.astype(np.float32)
    assert got.dtype == dtype
    np.testing.assert_array_equal(
        got.astype(np.float32), ((wide * wide + 1) / 3 - wide).astype(dtype).astype(np.float32)
    )


def test_selection_widens_nothing():
    bits = np.arange(256, dtype=np.uint8)
    x = bits.view(ml_dtypes.float8_e4m3fn)
    got = run(lambda e, c, x, y: e.where(c, x, y), bits % 2 == 0, x, x[::-1])
    np.testing.assert_array_equal(got.view(np.uint8), np.where(bits % 2 == 0, bits, bits[::-1]))


TYPES = [
    (lambda e, x, y: x < y, np.bool_),
    (lambda e, x, y: x + y, np.int32),
    (lambda e, x, y: 2 * x, np.int32),
    (lambda e, x, y: e.where(x < y, 1, y), np.float32),
    (lambda e, x, y: e.cast(x, y) * 0.5, np.float32),
    (lambda e, x, y: e.cast(y, dtypes.f64), np.float64),
    (lambda e, x, y: x * 0.5, np.int32),
]


@pytest.mark.parametrize(("fn", "dtype"), TYPES)
def test_types(fn, dtype):
    assert run(fn, np.array([1, 5], np.int32), np.array([2.5, 2.5], np.float32)).dtype == dtype


def test_casts_to_narrow_types_round_at_once():
    got = run(lambda e, x: e.cast(x, dtypes.bf16) * 3, np.array([1.001, 3.14159], np.float32))
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(
        got, (np.array([1.001, 3.14159], ml_dtypes.bfloat16).astype(np.float32) * 3).astype(ml_dtypes.bfloat16)
    )


def test_nan_goes_through_minimum_maximum_and_clamp():
    x = np.array([np.nan, 1, -5, 9], np.float32)
    np.testing.assert_array_equal(run(lambda e, x: e.clamp(x, -2, 3), x), [np.nan, 1, -2, 3])
    np.testing.assert_array_equal(run(lambda e, x, y: e.minimum(x, y), x, x[::-1]), [np.nan, -5, -5, np.nan])
    np.testing.assert_array_equal(run(lambda e, x: e.clamp(x, 3, -2), x), [np.nan, -2, -2, -2])


def test_integer_division_truncates_and_survives_zero():
    a = np.array([7, -7, 7, -7, 5, -128], np.int8)
    b = np.array([2, 2, -2, -2, 0, -1], np.int8)
    np.testing.assert_array_equal(run(lambda e, a, b: a / b, a, b), [3, -3, -3, 3, 0, -128])
    np.testing.assert_array_equal(run(lambda e, a, b: e.mod(a, b), a, b), [1, 1, -1, -1, 0, 0])
    np.testing.assert_array_equal(run(lambda e, a, b: e.fmod(a, b), a, b), [1, -1, 1, -1, 0, 0])


def test_integer_powers():
    x, y = np.array([2, 1, -1, 3, 7], np.int32), np.array([-1, -2, -3, 2, 40], np.int32)
    np.testing.assert_array_equal(run(lambda e, x, y: e.pow(x, y), x, y)[:4], [0, 1, -1, 9])
    assert run(lambda e, x, y: e.pow(x, y), x, y)[4] == np.int64(7**40 % 2**32).astype(np.int32)
    np.testing.assert_array_equal(run(lambda e, x, y: e.pow(x, y), np.array([2, 3]), np.array([0.5, 1.5])), [1, 5])


def test_shifts_past_the_width():
    x, by = np.array([1, -8, -8, 8], np.int8), np.array([8, 9, -1, -1], np.int8)
    np.testing.assert_array_equal(run(lambda e, x, y: e.shl(x, y), x, by), [0, 0, 0, 0])
    np.testing.assert_array_equal(run(lambda e, x, y: e.shr(x, y), x, by), [0, -1, -1, 0])


def test_round_takes_halves_to_even():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2.4999], np.float32)
    np.testing.assert_array_equal(run(lambda e, x: e.round(x), x), [0, 2, 2, -0.0, -2, 2])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
def test_blocks_change_nothing(dtype):
    rng = np.random.default_rng(1)
    x = rng.integers(-9, 9, (3, 177, 211)).astype(dtype)
    y = rng.integers(1, 9, (1, 1, 1)).astype(dtype)

    def fn(e, x, y):
        return e.maximum(x * y + 3, x / y)

    whole = run(fn, x, y)
    np.testing.assert_array_equal(whole, np.stack([run(fn, row, y[0]) for row in x]))
    np.testing.assert_array_equal(run(fn, x.transpose(2, 0, 1), y), whole.transpose(2, 0, 1))


def test_scalars_stay_arrays():
    got = run(lambda e, x: x + 1, np.array(1.5, np.float32))
    assert type(got) is np.ndarray and got.shape == () and got.dtype == np.float32


@pytest.mark.parametrize(("dtype", "ulps"), [(np.float32, 1.6), (np.float64, 1.1)])
def test_erf_is_accurate(dtype, ulps):
    x = np.concatenate([np.linspace(-7, 7, 20001), np.geomspace(1e-30, 9, 5000), np.linspace(0.99, 1.01, 501)])
    x = x.astype(dtype)
    with np.errstate(all="ignore"):
        got = special.erf(x)
    exact = np.array([math.erf(float(v)) for v in x])
    assert got.dtype == dtype
    assert (np.abs(got - exact) / np.spacing(np.abs(exact).astype(dtype))).max() <= ulps


def test_erf_at_the_ends():
    np.testing.assert_array_equal(
        run(lambda e, x: e.erf(x), np.array([np.nan, np.inf, -np.inf, 30, -0.0])), [np.nan, 1, -1, 1, -0.0]
    )
