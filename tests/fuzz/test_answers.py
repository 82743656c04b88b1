"""Conditions on answers hold for what they explain, and for nothing that is worse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fuzz import answers

NAN, INF = np.nan, np.inf
NOTHING = np.empty((2, 0), np.float32)
HOLDS: list[tuple[Callable[..., bool], Any, list[float], list[float]]] = [
    (answers.is_0_where_other, None, [1, 2], [0, 2]),
    (answers.is_nan_for_0, None, [NAN, 2], [0, 2]),
    (answers.is_0_for_nan, None, [0, 2], [NAN, 2]),
    (answers.is_nan_where_other, None, [NAN, 2], [7, 2]),
    (answers.ours_is_0_where_other, None, [0, 2], [1e-30, 2]),
    (answers.are_halves, None, [1.5, 2.1699219], [1.5, 2.1705675]),
    (answers.is_near, None, [542.5, 1], [547.5, 1]),
    (answers.reads_nothing, NOTHING, [NAN], [0]),
    (answers.is_sum_of_nothing, NOTHING, [4, 4], [4, 7]),
    (answers.differs_at_infinity, np.array([1, INF]), [1, -1], [1, 0]),
    (answers.cuts_fractions, None, [2, -2, 3], [1, -1, 3]),
    (answers.differs_by_a_tie, None, [2, *[1] * 9], [1] * 10),
    (answers.copies_an_operand, np.array([1, 2], np.float32), [1, 1], [1, 2]),
    (answers.differs_in_few, None, [2, *[5] * 19], [3, *[5] * 19]),
]
FAILS: list[tuple[Callable[..., bool], Any, list[float], list[float]]] = [
    (answers.is_0_where_other, None, [1, 2], [0, 3]),
    (answers.is_nan_for_0, None, [NAN, 2], [0, 3]),
    (answers.is_nan_for_0, None, [NAN, 2], [1, 2]),
    (answers.is_0_for_nan, None, [1, 2], [NAN, 2]),
    (answers.is_nan_where_other, None, [NAN, 3], [7, 2]),
    (answers.ours_is_0_where_other, None, [1e-30, 2], [0, 2]),
    (answers.ours_is_0_where_other, None, [542.5], [547.5]),
    (answers.are_halves, None, [2.1705675], [2.1699219]),
    (answers.are_halves, None, [2.5], [2.25]),
    (answers.is_near, None, [542.5, 1], [547.5, 1.5]),
    (answers.reads_nothing, np.ones(1), [NAN], [0]),
    (answers.is_sum_of_nothing, NOTHING, [4, 5], [4, 7]),
    (answers.differs_at_infinity, np.array([1, INF]), [2, -1], [1, 0]),
    (answers.cuts_fractions, None, [1, 3], [2, 3]),
    (answers.cuts_fractions, None, [3, 3], [1, 3]),
    (answers.differs_by_a_tie, None, [3, *[1] * 9], [1] * 10),
    (answers.differs_by_a_tie, None, [2] * 10, [1] * 10),
    (answers.copies_an_operand, np.array([1, 3], np.float32), [1, 1], [1, 2]),
    (answers.differs_in_few, None, [2, 2, 2, 5], [3, 3, 3, 5]),
    (answers.differs_in_few, None, [NAN, *[5] * 19], [3, *[5] * 19]),
]


def verdict(condition: Callable[..., bool], operand: Any, ours: list[float], theirs: list[float]) -> bool:
    a, b = (np.array(x, np.float32).reshape(1, 1, -1) for x in (ours, theirs))
    given = None if operand is None else operand.reshape(a.shape) if operand.size == a.size else operand
    return condition([given], a, b)


@pytest.mark.parametrize("case", HOLDS, ids=lambda c: c[0].__name__)
def test_holds(case: Any) -> None:
    assert verdict(*case)


@pytest.mark.parametrize("case", FAILS, ids=lambda c: c[0].__name__)
def test_does_not_hold(case: Any) -> None:
    assert not verdict(*case)


def test_the_largest_integer() -> None:
    ours, theirs = np.array([7, 2**32 - 1], np.uint32), np.array([7, 98], np.uint32)
    assert answers.is_the_largest([], ours, theirs)
    assert not answers.is_the_largest([], theirs, ours)
