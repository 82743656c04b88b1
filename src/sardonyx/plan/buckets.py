"""Buckets: shapes whose intermediates, rounded up, take the same places share one plan."""

from __future__ import annotations

STEPS_PER_DOUBLING = 4
"""Rounding adds at most a quarter."""
SMALLEST = 4096
"""Bytes that every block is given at least: small ones never tell buckets apart."""


def rounded(nbytes: int) -> int:
    """A size rounded up to 4096, 8192, 12288, 16384, 20480, 24576, 28672, 32768, 40960 ...: four to a doubling."""
    pages = max(-(-nbytes // SMALLEST), 1)
    step = 1 << max((pages - 1).bit_length() - STEPS_PER_DOUBLING.bit_length(), 0)
    return -(-pages // step) * step * SMALLEST
