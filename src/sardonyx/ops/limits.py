"""Limits on sizes that come from data, checked before memory is allocated.

A value may be larger than the model and its feeds by a fixed factor only: real models stay far below it, and a small
file that asks for gigabytes is refused at once. A run or build of an untrusted model has a tighter budget
(``sardonyx.limits``).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from contextvars import ContextVar, Token
from functools import cache
from typing import Any

import numpy as np

from sardonyx import knobs, limits
from sardonyx.errors import OutOfBudget

GROWTH = 1024
"""Bytes that a value may have for each byte of weights and feeds."""
FREE_NBYTES = 192 << 20
"""Bytes that a value may have regardless of the model's size."""

TEMPORARIES = 3
"""Temporaries of a result's size that numpy may allocate to compute it."""
ELEMENT_S = 10e-9
"""Numpy's time per element of a result, over all its passes."""

_held: ContextVar[int] = ContextVar("held_nbytes", default=0)


def hold(nbytes: int) -> Token[int]:
    """Set the size of weights and feeds for a run; pass the returned token to ``release`` when it ends."""
    return _held.set(nbytes)


release = _held.reset


def max_nbytes() -> int:
    """The most bytes that one value may take."""
    chosen = knobs.MAX_VALUE_NBYTES.get()
    return chosen if chosen is not None else min(max(FREE_NBYTES, GROWTH * _held.get()), _half_of_memory())


@cache
def _half_of_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 1 << 33


def check_elements(count: int, dtype: np.dtype[Any], what: str) -> None:
    """Refuse a tensor of ``count`` elements if it is too large; ``what`` names it in the message."""
    nbytes = int(count) * dtype.itemsize
    budget = limits.current()
    if budget is not None:
        budget.check_nbytes((1 + TEMPORARIES) * nbytes, f"{what} would have {count} elements of {dtype}")
        budget.check_work(count * ELEMENT_S)
    if nbytes > FREE_NBYTES:
        check_nbytes(nbytes, f"{what} would have {count} elements of {dtype}")


def check_empty(shape: Sequence[int], dtype: np.dtype[Any], what: str) -> None:
    """Refuse an empty array whose other dimensions multiply to more bytes than there are addresses: numpy cannot
    represent it.
    """
    nbytes = math.prod(d for d in shape if d) * dtype.itemsize
    if nbytes > sys.maxsize:
        raise OutOfBudget(what, expected=f"sizes other than 0 that take at most {sys.maxsize} bytes", got=list(shape))


def check_nbytes(nbytes: int, what: str) -> None:
    """Refuse a value of ``nbytes`` if it is too large; ``what`` is the message."""
    budget = limits.current()
    if budget is not None:
        budget.check_nbytes(nbytes, what)
    if nbytes > FREE_NBYTES and nbytes > max_nbytes():
        raise OutOfBudget(
            what,
            expected=f"at most {max_nbytes()} bytes",
            got=f"{nbytes} bytes",
            hint=f"set {knobs.MAX_VALUE_NBYTES.name} if it is meant",
        )
