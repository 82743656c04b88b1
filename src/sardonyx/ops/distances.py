"""Squared distances between rows, accurate for rows that lie close together and far from the origin."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MIN_PRECISE_SHARE = 2.0**-20
"""A distance below this share of the squared norms has lost too many bits of float64 to cancellation."""
BLOCK_NBYTES = 1 << 20


def squared_distances(a: Array, b: Array) -> Array:
    """sum((a_i - b_j)^2) of float64 rows.

    |a|^2 - 2ab + |b|^2 is one matrix product, but it cancels if the result is small compared with the norms, and is NaN
    for infinite elements. Such pairs are recomputed element by element.
    """
    norms = np.einsum("ik,ik->i", a, a)[:, None] + np.einsum("ik,ik->i", b, b)
    with np.errstate(invalid="ignore", over="ignore"):
        squares: Array = norms - 2 * (a @ b.T)
        rows, columns = np.nonzero(~(squares > MIN_PRECISE_SHARE * norms))
        step = max(BLOCK_NBYTES // max(a.shape[1] * a.itemsize, 1), 1)
        for start in range(0, len(rows), step):
            i, j = rows[start : start + step], columns[start : start + step]
            apart = a[i] - b[j]
            squares[i, j] = np.einsum("ik,ik->i", apart, apart)
    return squares
