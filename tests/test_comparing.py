"""The comparison of all tests finds what differs, and nothing else."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.comparing import EXACT, Tolerance, Tolerances, assert_same, difference

NAN, INF = np.nan, np.inf
MOST = np.iinfo(np.int64).max


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def text(*words: str) -> Any:
    return np.array(words, object)


RELATIVE = Tolerance(relative=1e-3)
LARGEST = Tolerance(of_largest=1e-3)
LEAST = Tolerance(of_largest=1e-3, least=1.0)
STEP = Tolerance(steps=1)
WIDE = Tolerance(relative=INF, absolute=INF)

SAME: dict[str, tuple[Any, Any, Tolerances]] = {
    "the same floats": (f32(1, NAN, INF, -INF), f32(1, NAN, INF, -INF), EXACT),
    "zeros of both signs": (f32(-0.0), f32(0.0), EXACT),
    "a share of the element": (f32(1000.9), f32(1000), RELATIVE),
    "a share of the largest": (f32(0.9, -1000), f32(0, -1000), LARGEST),
    "a share of the least": (f32(0.0009), f32(0), LEAST),
    "an absolute distance": (f32(0.01), f32(0), Tolerance(absolute=0.02)),
    "by type": (f32(1000.9), f32(1000), {"float32": RELATIVE}),
    "complex": (np.array([1 + 1e-4j]), np.array([1 + 0j]), RELATIVE),
    "a complex infinity": (np.array([complex(INF, NAN)]), np.array([complex(INF, NAN)]), EXACT),
    "bfloat16": (np.array([1, 2], ml_dtypes.bfloat16), np.array([1, 2], ml_dtypes.bfloat16), EXACT),
    "four bits": (np.array([-8, 7], ml_dtypes.int4), np.array([-8, 7], ml_dtypes.int4), EXACT),
    "a step of four bits": (np.array([-8, 7], ml_dtypes.int4), np.array([-7, 6], ml_dtypes.int4), STEP),
    "a step of large integers": (np.array([MOST, -MOST]), np.array([MOST - 1, 1 - MOST]), STEP),
    "text": (text("a", "b"), text("a", "b"), EXACT),
    "no dimensions": (np.array(1.5), np.float64(1.5), EXACT),
    "nothing": (f32(), f32(), EXACT),
    "an empty optional": (None, None, EXACT),
    "a sequence": ([f32(1), text("a")], [f32(1), text("a")], EXACT),
    "an empty sequence": ([], [], EXACT),
    "maps": ([{"a": 1.0, "b": 2.0}], [{"a": 1.0005, "b": 2.0}], RELATIVE),
}
DIFFERENT: dict[str, tuple[Any, Any, Tolerances]] = {
    "types": (f32(1), np.array([1.0]), WIDE),
    "kinds of text": (np.array(["a"]), text("a"), WIDE),
    "shapes": (f32(1), f32(1, 1), WIDE),
    "shapes that broadcast": (np.array(1, np.float32), f32(1), WIDE),
    "no array": (1.0, np.array(1.0), WIDE),
    "an array of objects": ([f32(1)], np.array([1], np.float32), WIDE),
    "NaN for a number": (f32(NAN), f32(1), WIDE),
    "a number for NaN": (f32(1), f32(NAN), WIDE),
    "infinities of other signs": (f32(-INF), f32(INF), WIDE),
    "the largest number for infinity": (f32(3.4e38), f32(INF), WIDE),
    "complex infinities": (np.array([complex(INF, 1)]), np.array([complex(INF, 2)]), WIDE),
    "the last bit": (f32(1 + 2**-23), f32(1), EXACT),
    "more than a share of the element": (f32(0.0011, 1000), f32(0, 1000), RELATIVE),
    "more than a share of the largest": (f32(1.1, -1000), f32(0, -1000), LARGEST),
    "an infinity is not the largest": (f32(1.1, INF), f32(1, INF), LARGEST),
    "another type's tolerance": (f32(1000.9), f32(1000), {"float64": RELATIVE}),
    "more than a step": (np.array([5, 7], np.uint8), np.array([7, 7], np.uint8), STEP),
    "the ends of integers": (np.array([MOST]), np.array([-MOST]), STEP),
    "neighbours beyond 2**53": (np.array([MOST]), np.array([MOST - 1]), Tolerance(relative=1e-3)),
    "bools": (np.array([True]), np.array([False]), WIDE),
    "other text": (text("a", "b"), text("a", "c"), WIDE),
    "a value for an empty optional": (f32(1), None, WIDE),
    "an empty optional for a value": (None, f32(1), WIDE),
    "a tuple for a list": ((f32(1),), [f32(1)], WIDE),
    "lengths": ([f32(1)], [f32(1), f32(1)], WIDE),
    "an element of a sequence": ([f32(1), f32(2)], [f32(1), f32(3)], EXACT),
    "the order of keys": ({"a": 1.0, "b": 1.0}, {"b": 1.0, "a": 1.0}, WIDE),
    "a value of a map": ({1: 1.0}, {1: 1.1}, RELATIVE),
    "a number of a map": ({1: 1}, {1: 1.0}, WIDE),
}


@pytest.mark.parametrize("name", SAME)
def test_same(name: str) -> None:
    got, expected, tolerance = SAME[name]
    assert difference(got, expected, tolerance=tolerance) is None


@pytest.mark.parametrize("name", DIFFERENT)
def test_different(name: str) -> None:
    got, expected, tolerance = DIFFERENT[name]
    assert difference(got, expected, tolerance=tolerance)


def test_a_difference_is_told() -> None:
    with pytest.raises(AssertionError, match=r"^y: \[1\]: 1 of 2 float32 elements differ, at \[1\] .*2.0.* of .*3.0"):
        assert_same([f32(1), f32(1, 2)], [f32(1), f32(1, 3)], what="y")
