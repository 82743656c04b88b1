"""Shape buckets: shapes whose rounded-up intermediate sizes are equal share one plan."""

from __future__ import annotations

STEPS_PER_DOUBLING = 4
"""Size steps per power of two: rounding adds at most a quarter."""
SMALLEST = 4096
"""Least size of a block in bytes: small blocks do not distinguish buckets."""


def bucket(nbytes: int) -> tuple[int, int]:
    """The range of sizes that round up like this one: more than the first, up to the second, which is the rounded size.

    Rounded sizes are 4096, 8192, 12288, 16384, 20480, 24576, 28672, 32768, 40960 ...: four per doubling.
    """
    pages = max(-(-nbytes // SMALLEST), 1)
    step = 1 << max((pages - 1).bit_length() - STEPS_PER_DOUBLING.bit_length(), 0)
    top = -(-pages // step) * step
    return ((top - step) * SMALLEST if top > step else -1), top * SMALLEST
