"""Sizes that come from data are checked before memory is taken."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np

from sardonyx.errors import OutOfBudget


@cache
def max_nbytes() -> int:
    """The most bytes that one value may take: half of the machine's memory."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 1 << 33


def check_elements(count: int, dtype: np.dtype[Any], what: str) -> None:
    """Refuse a tensor of ``count`` elements that cannot reasonably be held; ``what`` names it in the message."""
    nbytes = int(count) * dtype.itemsize
    if nbytes > max_nbytes():
        raise OutOfBudget(
            f"{what} would have {count} elements of {dtype}",
            expected=f"at most {max_nbytes()} bytes",
            got=f"{nbytes} bytes",
        )
