"""Whether what a test computed is what it expected: in kind, type, shape and, within a tolerance, in elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx import dtypes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tolerance:
    """How far a finite float may be from the expected one: both shares and ``absolute`` added up.

    NaN and infinities must be at the same places, text and bools equal, whatever the tolerance.
    """

    relative: float = 0.0
    """A share of the expected element."""
    of_largest: float = 0.0
    """A share of the largest finite magnitude of the expected array, or of ``least`` where that is more."""
    least: float = 0.0
    absolute: float = 0.0
    steps: int = 0
    """How far an integer may be from the expected one."""


EXACT = Tolerance()
Tolerances = Tolerance | Mapping[str, Tolerance]
"""One for all, or by the name of the numpy type; types without a name there are exact."""


def assert_same(got: Any, expected: Any, tolerance: Tolerances = EXACT, what: str = "") -> None:
    why = difference(got, expected, tolerance=tolerance)
    if why is not None:
        raise AssertionError(f"{what}: {why}" if what else why)


def difference(got: Any, expected: Any, *, tolerance: Tolerances = EXACT) -> str | None:
    """How two values differ, in words; None where they agree.

    A value is an array, a number, text, None for an empty optional, a list of values, or a map of them.
    """
    if isinstance(expected, np.ndarray | np.generic):
        return _array_difference(got, np.asarray(expected), tolerance)
    if type(got) is not type(expected):
        return f"{_kind(got)} in place of {_kind(expected)}"
    if isinstance(expected, list | tuple):
        if len(got) != len(expected):
            return f"{len(got)} values in place of {len(expected)}"
        return _first(enumerate(zip(got, expected, strict=True)), tolerance)
    if isinstance(expected, dict):
        if list(got) != list(expected):
            return f"keys {list(got)} in place of {list(expected)}"
        return _first(((key, (got[key], expected[key])) for key in expected), tolerance)
    if isinstance(expected, float):
        return _array_difference(np.asarray(got), np.asarray(expected), tolerance)
    return None if got == expected else f"{got!r} in place of {expected!r}"


def _first(pairs: Any, tolerance: Tolerances) -> str | None:
    for key, (got, expected) in pairs:
        why = difference(got, expected, tolerance=tolerance)
        if why is not None:
            return f"[{key!r}]: {why}"
    return None


def _kind(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__


def _array_difference(got: Any, expected: Array, tolerance: Tolerances) -> str | None:
    if not isinstance(got, np.ndarray) or got.dtype != expected.dtype or got.shape != expected.shape:
        return f"{_kind(got)} in place of {_kind(expected)}"
    allowed = tolerance if isinstance(tolerance, Tolerance) else tolerance.get(expected.dtype.name, EXACT)
    kind = "string" if expected.dtype.kind in "OUST" else dtypes.of_numpy(expected.dtype).kind
    if kind in ("float", "complex"):
        differs = _floats_differ(got, expected, allowed, np.complex128 if kind == "complex" else np.float64)
    elif kind in ("int", "uint") and allowed.steps:
        differs = _distance(got, expected, kind) > allowed.steps
    else:
        differs = np.asarray(got != expected)
    if not differs.any():
        return None
    at = tuple(int(n) for n in np.argwhere(differs)[0])
    counted = f"{int(differs.sum())} of {expected.size} {expected.dtype} elements differ"
    return f"{counted}, at {list(at)} {got[at]!r} in place of {expected[at]!r}, {allowed}"


def _floats_differ(got: Array, expected: Array, allowed: Tolerance, wide: type) -> Array:
    with np.errstate(all="ignore"):
        x, y = got.astype(wide), expected.astype(wide)
        finite = np.isfinite(x) & np.isfinite(y)
        magnitude = np.abs(y)
        largest = max(allowed.least, float(magnitude[np.isfinite(y)].max(initial=0)))
        slack = allowed.relative * magnitude + allowed.of_largest * largest + allowed.absolute
        is_far = np.abs(x - y) > slack
        special = _are_special_alike(x.real, y.real) & _are_special_alike(x.imag, y.imag)
    return np.asarray(np.where(finite, is_far, ~special))


def _are_special_alike(x: Array, y: Array) -> Array:
    return np.asarray((x == y) | (np.isnan(x) & np.isnan(y)))


def _distance(got: Array, expected: Array, kind: str) -> Array:
    """The distance of integers, which may be as wide as 64 bits: that of signed ones wraps into the unsigned one."""
    wide = np.int64 if kind == "int" else np.uint64
    x, y = got.astype(wide), expected.astype(wide)
    return np.asarray(np.maximum(x, y) - np.minimum(x, y)).view(np.uint64)
