"""How our answer stands to another one, given the operands of a node, where a difference is explained."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz.conditions import Operands
from fuzz.draws import is_float

TIES = 0.2
"""The largest share of elements that halves decide."""
FEW, FAR = 0.1, 0.1
"""The largest share of elements that lower precision moves by this part of the largest one."""


def _others(ours: Any, theirs: Any) -> Any:
    """Where two answers differ by more than rounding."""
    if not is_float(ours.dtype):
        return ours != theirs
    x, y = ours.astype(np.float64), theirs.astype(np.float64)
    return ~np.isclose(x, y, rtol=1e-2, atol=1e-2, equal_nan=True)


def is_0_where_other(_: Operands, ours: Any, theirs: Any) -> bool:
    return bool((theirs[_others(ours, theirs)] == 0).all())


def is_nan_for_0(_: Operands, ours: Any, theirs: Any) -> bool:
    """Whether ours is NaN and theirs 0 where they differ."""
    return bool((np.isnan(ours) & (theirs == 0))[_others(ours, theirs)].all())


def is_nan_where_other(_: Operands, ours: Any, theirs: Any) -> bool:
    return bool(np.isnan(ours[_others(ours, theirs)]).all())


def ours_is_0_where_other(_: Operands, ours: Any, theirs: Any) -> bool:
    """Whether ours is 0 where the two differ, even by little, and they do."""
    others = ~np.isclose(ours, theirs, rtol=1e-2, atol=0, equal_nan=True)
    return bool(others.any() and (ours[others] == 0).all())


def are_halves(_: Operands, ours: Any, theirs: Any) -> bool:
    """Whether ours has float16's digits, and theirs is the same but for rounding to float16."""
    with np.errstate(over="ignore"):
        halves = ours.astype(np.float16)
    return np.array_equal(halves, ours, equal_nan=True) and np.allclose(ours, theirs, 2**-9, 2**-24, equal_nan=True)


def is_near(_: Operands, ours: Any, theirs: Any) -> bool:
    return np.allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=2e-2, atol=1e-2, equal_nan=True)


def is_0_for_nan(given: Operands, ours: Any, theirs: Any) -> bool:
    return is_nan_for_0(given, theirs, ours)


def _is_empty(given: Operands) -> bool:
    return any(x is not None and x.size == 0 for x in given)


def reads_nothing(given: Operands, ours: Any, theirs: Any) -> bool:
    return _is_empty(given) and is_nan_for_0(given, ours, theirs)


def is_sum_of_nothing(given: Operands, ours: Any, theirs: Any) -> bool:
    """Whether an operand is empty, and each channel of our answer is one number."""
    flat = ours.reshape(*ours.shape[:2], -1)
    return _is_empty(given) and bool((flat == flat[..., :1]).all())


def differs_at_infinity(given: Operands, ours: Any, theirs: Any) -> bool:
    """Whether two casts differ only where the operand is not finite."""
    x = given[0] if given else None
    if x is None or not is_float(x.dtype) or x.shape != ours.shape:
        return False
    return not (np.isfinite(x.astype(np.float64)) & (ours != theirs)).any()


def cuts_fractions(_: Operands, ours: Any, theirs: Any) -> bool:
    """Whether theirs is at most 1 closer to 0."""
    x, y = ours.astype(np.int64), theirs.astype(np.int64)
    return bool(((x - y == np.sign(x)) | (x == y)).all())


def differs_by_a_tie(_: Operands, ours: Any, theirs: Any) -> bool:
    """Whether a few elements differ by 1."""
    far = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
    return bool(far.max() <= 1 and (far != 0).sum() <= max(TIES * far.size, 1))


def copies_an_operand(given: Operands, ours: Any, theirs: Any) -> bool:
    return any(x is not None and x.tobytes() == theirs.tobytes() for x in given)


def differs_in_few(_: Operands, ours: Any, theirs: Any) -> bool:
    """Whether few elements lie far from each other, and all are numbers."""
    x, y = ours.astype(np.float64), theirs.astype(np.float64)
    far = np.abs(x - y) > FAR * np.abs(y).max()
    return bool(np.isfinite(x).all() and np.isfinite(y).all() and far.mean() <= FEW)


def is_the_largest(_: Operands, ours: Any, theirs: Any) -> bool:
    """Whether ours is the largest number of its integer type where they differ."""
    return ours.dtype.kind in "iu" and bool((ours[ours != theirs] == np.iinfo(ours.dtype).max).all())
