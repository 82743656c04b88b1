"""Round to nearest with a search of each block's scale: ggml's K-quants, with zero points that are codes.

Errors are weighted: large weights count more. Twenty scales around that of the block's range are tried, each is fitted
by least squares to the codes that it gives, and the best is kept; so no block is worse than by its range.
"""

from __future__ import annotations

import numpy as np

from sardonyx.quantization.weight_only.pack import Array, Blocked, Blocks, cut

TRIED = np.arange(-10, 10) / 10
"""What is added to the number of codes that the range of a block is divided by."""


def k_quant(w: Array, blocks: Blocks) -> Blocked:
    x = cut(w, blocks.size).astype(np.float32)
    weight = np.abs(x) + np.sqrt(np.mean(x * x, axis=1, keepdims=True))
    best = _Best(x, weight, blocks, w.dtype)
    low, high = x.min(axis=1, initial=0), x.max(axis=1, initial=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        if blocks.symmetric:
            edge = np.where(np.abs(high) > np.abs(low), high, low)
            starts = [edge / np.float32(-blocks.middle - d) for d in (0.0, *TRIED)]
            zeros = np.full(low.shape, blocks.middle, np.float32)
            for scale in starts:
                best.try_grid(scale, zeros)
        else:
            for d in (0.0, *TRIED):
                scale, least = _fitted(x, weight, blocks, low, (high - low) / np.float32(blocks.most + d))
                best.try_grid(scale, np.rint(-least / scale))
            scale = (high - low) / np.float32(blocks.most)
            best.try_grid(scale, np.rint(-low / scale))
    return Blocked(best.codes, best.scales.astype(w.dtype), best.zeros, len(w), blocks)


def _fitted(x: Array, weight: Array, blocks: Blocks, low: Array, scale: Array) -> tuple[Array, Array]:
    """The scale and the lowest value that fit best to the codes which ``scale`` gives."""
    codes = np.clip(np.rint((x - low[:, None]) / scale[:, None]), 0, blocks.most)
    w, wx, wc = weight.sum(axis=1), (weight * x).sum(axis=1), (weight * codes).sum(axis=1)
    wcc, wcx = (weight * codes * codes).sum(axis=1), (weight * codes * x).sum(axis=1)
    spread = w * wcc - wc * wc
    return (w * wcx - wx * wc) / spread, np.minimum((wcc * wx - wc * wcx) / spread, 0)


class _Best:
    """The best codes of every block so far."""

    def __init__(self, x: Array, weight: Array, blocks: Blocks, dtype: np.dtype[np.generic]) -> None:
        self._x, self._weight, self._blocks, self._dtype = x, weight, blocks, dtype
        shape = (len(x), x.shape[2])
        self.codes = np.full(x.shape, blocks.middle, np.uint8)
        self.scales, self.zeros = np.ones(shape, np.float32), np.full(shape, blocks.middle, np.uint8)
        self._error = (weight * x * x).sum(axis=1)

    def try_grid(self, scale: Array, zeros: Array) -> None:
        """Codes by this scale, then the scale that fits them best."""
        x, weight, most = self._x, self._weight, self._blocks.most
        usable = np.isfinite(scale) & (scale != 0) & np.isfinite(zeros)
        scale, zeros = np.where(usable, scale, 1), np.clip(np.where(usable, zeros, 0), 0, most)
        codes = np.clip(np.rint(x / scale[:, None] + zeros[:, None]), 0, most)
        centered = codes - zeros[:, None]
        power = (weight * centered * centered).sum(axis=1)
        scale = np.where(power > 0, (weight * centered * x).sum(axis=1) / power, scale)
        scale = scale.astype(self._dtype).astype(np.float32)
        error = (weight * (centered * scale[:, None] - x) ** 2).sum(axis=1)
        better = usable & (error < self._error)
        self._error = np.where(better, error, self._error)
        self.scales, self.zeros = (
            np.where(better, scale, self.scales),
            np.where(better, zeros, self.zeros).astype(np.uint8),
        )
        self.codes = np.where(better[:, None], codes, self.codes).astype(np.uint8)
