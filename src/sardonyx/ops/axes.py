"""Helpers of operator implementations: checked axes and sizes, the accumulation type, string tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sardonyx.errors import InvalidArgument

Array = npt.NDArray[Any]


def normal_axis(axis: int, rank: int, what: str) -> int:
    """``axis`` as a non-negative number."""
    if not -rank <= axis < rank:
        raise InvalidArgument(f"{what}: axis out of range", expected=f"[{-rank}, {rank - 1}]", got=int(axis))
    return int(axis) + rank if axis < 0 else int(axis)


def normal_axes(axes: Iterable[int], rank: int, what: str) -> tuple[int, ...]:
    """``axes`` as non-negative numbers, without repeats."""
    result = tuple([normal_axis(a, rank, what) for a in axes])
    if len(set(result)) != len(result):
        raise InvalidArgument(f"{what}: an axis is given twice", got=list(result))
    return result


def ints(x: Array) -> list[int]:
    """The elements of a small integer tensor."""
    values: list[int] = x.reshape(-1).tolist()
    return values


def scalar(x: Array, what: str) -> Any:
    """The only element of a tensor."""
    if x.size != 1:
        raise InvalidArgument(f"{what} must be a scalar", got=f"shape {list(x.shape)}")
    return x.reshape(-1)[0].item()


def widen_floats(x: Array) -> Array:
    """Floats narrower than 32 bits as float32, in which sums and softmaxes accumulate; other types unchanged."""
    return x if x.dtype.kind in "biufcO" and x.dtype != np.float16 else x.astype(np.float32)


def strings(words: Iterable[str], shape: Sequence[int]) -> Array:
    """A string tensor."""
    flat = list(words)
    out = np.empty(len(flat), object)
    out[:] = flat
    return out.reshape(shape)
