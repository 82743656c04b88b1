"""Buckets: shapes whose intermediates, rounded up, take the same places share one plan."""

from __future__ import annotations

STEPS_PER_DOUBLING = 4
"""Rounding adds at most a quarter."""
SMALLEST = 4096
"""Bytes that every block is given at least: small ones never tell buckets apart."""


def bucket(nbytes: int) -> tuple[int, int]:
    """The sizes, more than the first and up to the second, that are rounded up as this one is: to the second of them,
    4096, 8192, 12288, 16384, 20480, 24576, 28672, 32768, 40960 ...: four to a doubling.
    """
    pages = max(-(-nbytes // SMALLEST), 1)
    step = 1 << max((pages - 1).bit_length() - STEPS_PER_DOUBLING.bit_length(), 0)
    top = -(-pages // step) * step
    return ((top - step) * SMALLEST if top > step else -1), top * SMALLEST
