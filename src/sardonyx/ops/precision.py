"""Computation types: narrow floats are widened to float32, and results are rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sardonyx import dtypes, errors

Array = npt.NDArray[Any]

_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)


def require(holds: bool, what: str, *, expected: object = None, got: object = None) -> None:
    """Raise InvalidArgument unless ``holds``."""
    if not holds:
        raise errors.InvalidArgument(what, expected=expected, got=got)


def require_below(count: int, values: Array, what: str) -> None:
    """Raise InvalidArgument unless all integers of an array are at least 0 and less than ``count``."""
    if values.size:
        worst = int(values.max() if values.min() >= 0 else values.min())
        require(0 <= worst < count, what, expected=f"0 to {count - 1}", got=worst)


def compute_type(*arrays: Array) -> np.dtype[Any]:
    """float64 if one of the arrays has it, else float32."""
    return _F64 if any(a.dtype == _F64 for a in arrays) else _F32


def widen(x: Array) -> Array:
    """``x`` in float32 or float64."""
    return x if x.dtype == _F32 or x.dtype == _F64 else x.astype(_F32)


def narrow(y: Any, dtype: np.dtype[Any]) -> Array:
    """``y`` as an array of ``dtype``."""
    return np.asarray(y).astype(dtype, copy=False)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


def per_channel(v: Array, rank: int) -> Array:
    """A vector over axis 1, broadcastable to a tensor of this rank."""
    return v.reshape((-1,) + (1,) * (rank - 2))


def integer_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Smallest and largest value of an integer type, sub-byte ones included."""
    t = dtypes.of_numpy(dtype)
    return (-(1 << (t.bits - 1)), (1 << (t.bits - 1)) - 1) if t.kind == "int" else (0, (1 << t.bits) - 1)


def largest_float(dtype: np.dtype[Any]) -> float:
    """The largest finite value of a float type."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]


def saturate(x: Array, dtype: np.dtype[Any]) -> Array:
    """Cast to a narrower type: values out of range are clamped, and integers round half to even; NaN is the least."""
    if dtypes.of_numpy(dtype).is_integer:
        low, high = integer_range(dtype)
        rounded = np.minimum(np.fmax(np.rint(x), low), high) if x.dtype.kind == "f" else np.clip(x, low, high)
        return rounded.astype(np.int64).astype(dtype) if dtype.itemsize == 1 else rounded.astype(dtype)
    top = largest_float(dtype)
    return np.clip(x, -top, top).astype(dtype)


def exact_type(depth: int) -> np.dtype[Any]:
    """A float type in which ``depth`` products of 9-bit integers sum exactly, so that BLAS can do them."""
    return _F32 if depth * 255 * 255 < 1 << 24 else _F64


def wrap_int32(x: Array) -> Array:
    """Whole float values as int32, wrapping like int32 arithmetic."""
    return x.astype(np.int64).astype(np.int32)


def requantize(acc: Array, scale: Array, zero_point: Array) -> Array:
    """Accumulators times ``scale``, rounded half to even, plus ``zero_point``, saturated to its type."""
    scaled = acc.astype(np.float32) * scale.astype(np.float32)
    if not dtypes.of_numpy(zero_point.dtype).is_integer:
        return saturate(scaled + zero_point.astype(np.float32), zero_point.dtype)
    return saturate(np.rint(scaled) + zero_point.astype(np.float32), zero_point.dtype)
