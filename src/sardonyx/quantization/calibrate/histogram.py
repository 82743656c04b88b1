"""Histograms of tensors that grow with the data, in memory that does not.

The bins are finer than those of the methods and symmetric around 0. When a larger value comes, the range doubles and
neighbouring bins are added up, so every count stays exact; ``rebinned`` spreads counts over the bins that a method
asks for.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

FINE_BINS = 1 << 14
_SLAB = 1 << 18
"""Values that are counted at once, so that their indices stay in the cache."""
_TINY = 1e-30
"""Ranges below this are binned in float64: their reciprocals overflow float32."""


class Histogram:
    """Counts of values between ``-limit`` and ``limit``, with the extremes themselves."""

    def __init__(self) -> None:
        self.counts = np.zeros(FINE_BINS, np.int64)
        self.limit = 0.0
        self.lowest, self.highest = np.inf, -np.inf
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self.zeros = 0
        """Values that came while all values were 0."""

    def add(self, values: Array) -> bool:
        """Count values; False if one is NaN. Infinite ones are not counted, but they are part of the range."""
        self.dtype = values.dtype
        flat = values.reshape(-1)
        if not flat.size:
            return True
        low, high = float(flat.min()), float(flat.max())
        if low != low:
            return False
        self.lowest, self.highest = min(self.lowest, low), max(self.highest, high)
        if math.isinf(low) or math.isinf(high):
            flat = flat[np.isfinite(flat)]
            low, high = float(flat.min(initial=0.0)), float(flat.max(initial=0.0))
        self._widen(max(abs(low), abs(high)))
        if self.limit == 0.0:
            self.zeros += flat.size
            return True
        work = np.float32 if self.limit > _TINY else np.float64
        scale = work(FINE_BINS / (2 * self.limit))
        for start in range(0, flat.size, _SLAB):
            places = flat[start : start + _SLAB].astype(work) * scale
            places += work(FINE_BINS // 2)
            bins = np.clip(places, 0, FINE_BINS - 1, out=places).astype(np.intp)
            self.counts += np.bincount(bins, minlength=FINE_BINS)
        return True

    def _widen(self, magnitude: float) -> None:
        if self.limit == 0.0:
            self.limit = magnitude
            if magnitude:
                self.counts[FINE_BINS // 2] += self.zeros
                self.zeros = 0
            return
        while magnitude > self.limit:
            merged = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts[:] = 0
            self.counts[FINE_BINS // 4 : 3 * FINE_BINS // 4] = merged
            self.limit *= 2

    @property
    def is_empty(self) -> bool:
        return self.lowest > self.highest

    @property
    def threshold(self) -> float:
        """The largest finite magnitude."""
        return 0.0 if self.is_empty else min(max(abs(self.lowest), abs(self.highest)), self.limit)

    @property
    def range(self) -> tuple[Array, Array]:
        """The smallest and the largest value, in the type of the tensor; 0 where there was none."""
        low, high = (0.0, 0.0) if self.is_empty else (self.lowest, self.highest)
        return np.array(low, self.dtype), np.array(high, self.dtype)

    def rebinned(self, bins: int) -> tuple[Array, Array]:
        """Counts and edges of ``bins`` equal bins from ``-threshold`` to ``threshold``."""
        return self._spread(self.counts, -self.limit, np.linspace(-self.threshold, self.threshold, bins + 1))

    def rebinned_magnitudes(self, bins: int) -> tuple[Array, Array]:
        """Counts and edges of ``bins`` equal bins of magnitudes, from 0 to ``threshold``."""
        half = FINE_BINS // 2
        return self._spread(
            self.counts[half:] + self.counts[:half][::-1], 0.0, np.linspace(0.0, self.threshold, bins + 1)
        )

    def _spread(self, counts: Array, start: float, edges: Array) -> tuple[Array, Array]:
        if self.threshold == 0.0:
            made = np.zeros(len(edges) - 1, np.int64)
            made[len(made) // 2 if start or edges[0] else 0] = self.zeros
            return made, edges.astype(self.dtype)
        fine = np.linspace(start, self.limit, len(counts) + 1)
        below = np.concatenate(([0], np.cumsum(counts)))
        at = np.rint(np.interp(edges, fine, below))
        at[0], at[-1] = 0, below[-1]
        return np.diff(at).astype(np.int64), edges.astype(self.dtype)
