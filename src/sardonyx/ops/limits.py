"""Sizes that come from data are checked before memory is taken."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np

from sardonyx import knobs
from sardonyx.errors import OutOfBudget

DEFAULT_NBYTES = (4 << 30) - 1
"""One value of 4 GiB or more is taken for a mistake, on a machine however large, until the user says otherwise."""


@cache
def max_nbytes() -> int:
    """The most bytes that one value may take: the user's bound, or the default, or half of a small machine's memory."""
    chosen = knobs.MAX_VALUE_NBYTES.get()
    if chosen is not None:
        return chosen
    try:
        return min(DEFAULT_NBYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    except (AttributeError, ValueError, OSError):
        return DEFAULT_NBYTES


def check_elements(count: int, dtype: np.dtype[Any], what: str) -> None:
    """Refuse a tensor of ``count`` elements that cannot reasonably be held; ``what`` names it in the message."""
    check_nbytes(int(count) * dtype.itemsize, f"{what} would have {count} elements of {dtype}")


def check_nbytes(nbytes: int, what: str) -> None:
    """Refuse a value of ``nbytes`` that cannot reasonably be held; ``what`` is the message."""
    if nbytes > max_nbytes():
        raise OutOfBudget(
            what,
            expected=f"at most {max_nbytes()} bytes",
            got=f"{nbytes} bytes",
            hint=f"set {knobs.MAX_VALUE_NBYTES.name} if it is meant",
        )
