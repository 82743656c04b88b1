"""Buckets: shapes whose intermediates, rounded up, take the same places share one plan."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

STEPS_PER_DOUBLING = 4
"""Rounding adds at most a quarter."""
SMALLEST = 4096
"""Bytes that every block is given at least: small ones never tell buckets apart."""


def rounded(nbytes: Array) -> Array:
    """Sizes rounded up to 4096, 8192, 12288, 16384, 20480, 24576, 28672, 32768, 40960 ...: four to a doubling."""
    pages = -(-nbytes // SMALLEST)
    _, exponents = np.frexp(np.maximum(pages - 1, 1))
    steps = np.left_shift(1, np.maximum(exponents - STEPS_PER_DOUBLING.bit_length(), 0).astype(np.int64))
    found: Array = np.maximum(-(-pages // steps) * steps, 1) * SMALLEST
    return found
