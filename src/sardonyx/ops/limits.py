"""Sizes that come from data are checked before memory is taken.

A value may be so many times larger than all that the model and its caller brought: real models grow their inputs by far
less, and a small file that asks for gigabytes is refused at once. A run or build of an untrusted model has a budget
(``sardonyx.limits``) that is narrower.
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
"""Bytes that a value may have for each byte of the model's weights and the caller's feeds."""
FREE_NBYTES = 192 << 20
"""Bytes that a value may have in any case."""

TEMPORARIES = 3
"""Values of a result's size that numpy may make on the way to it."""
ELEMENT_S = 10e-9
"""What numpy takes for an element of a result, all passes over it together."""

_held: ContextVar[int] = ContextVar("held_nbytes", default=0)


def hold(nbytes: int) -> Token[int]:
    """Tell what model and caller brought to the run that begins; give the token to ``release`` when it ends."""
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
    """Refuse a tensor of ``count`` elements that cannot reasonably be held; ``what`` names it in the message."""
    nbytes = int(count) * dtype.itemsize
    budget = limits.current()
    if budget is not None:
        budget.check_nbytes((1 + TEMPORARIES) * nbytes, f"{what} would have {count} elements of {dtype}")
        budget.check_work(count * ELEMENT_S)
    if nbytes > FREE_NBYTES:
        check_nbytes(nbytes, f"{what} would have {count} elements of {dtype}")


def check_empty(shape: Sequence[int], dtype: np.dtype[Any], what: str) -> None:
    """Refuse an array without elements whose other sizes multiply to more bytes than there are addresses: numpy cannot
    hold it either.
    """
    nbytes = math.prod(d for d in shape if d) * dtype.itemsize
    if nbytes > sys.maxsize:
        raise OutOfBudget(what, expected=f"sizes other than 0 that take at most {sys.maxsize} bytes", got=list(shape))


def check_nbytes(nbytes: int, what: str) -> None:
    """Refuse a value of ``nbytes`` that cannot reasonably be held; ``what`` is the message."""
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
