"""Buckets of sizes: shapes that share one plan."""

from __future__ import annotations

STEPS_PER_DOUBLING = 4
"""A bucket's ceiling is at most a quarter above a size in it."""


def ceiling(size: int) -> int:
    """The largest size of the bucket that a size falls into: 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ..."""
    if size <= 2 * STEPS_PER_DOUBLING:
        return size
    step = 1 << (size - 1).bit_length() - STEPS_PER_DOUBLING.bit_length()
    return -(-size // step) * step
