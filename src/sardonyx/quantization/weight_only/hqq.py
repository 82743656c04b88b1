"""Half-quadratic quantization: the zero point of a block, a real, is moved until few large errors are left.

The norm of errors is of an exponent below one, so outliers cost little. Each step alternates between the errors that
such a norm would keep, which a shrinkage gives in closed form, and the zero point that fits the rest: a mean.
Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023.
"""

from __future__ import annotations

import numpy as np

from sardonyx.quantization.weight_only.pack import Array, Blocked, Blocks, cut

EXPONENT, STEPS = 0.7, 20
BETA, GROWTH = 10.0, 1.01
STEEPEST = 2e4
"""Largest inverse of a scale."""


def hqq(w: Array, blocks: Blocks) -> Blocked:
    """Codes with real zero points; a block keeps the zero point with the least mean error of all steps."""
    x = cut(w, blocks.size).astype(np.float32)
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    span = np.where(high > low, high - low, np.maximum(np.abs(low), 1))
    inverse = np.minimum(blocks.most / span, STEEPEST).astype(np.float32)
    zeros = np.rint(-low * inverse)
    best, least, beta = zeros, np.full(zeros.shape, np.inf, np.float32), BETA
    for _ in range(STEPS):
        codes = np.clip(np.rint(x * inverse + zeros), 0, blocks.most)
        error = x - (codes - zeros) / inverse
        mean = np.abs(error).mean(axis=1, keepdims=True)
        best, least = np.where(mean < least, zeros, best), np.minimum(mean, least)
        zeros = np.mean(codes - (x - _shrunk(error, beta)) * inverse, axis=1, keepdims=True)
        beta *= GROWTH
    scales, best = (1 / inverse).astype(w.dtype), best.astype(w.dtype)
    codes = np.clip(np.rint(x / scales.astype(np.float32) + best.astype(np.float32)), 0, blocks.most)
    return Blocked(codes.astype(np.uint8), scales[:, 0], best[:, 0], len(w), blocks)


def _shrunk(x: Array, beta: float) -> Array:
    """The errors that the norm keeps."""
    size = np.abs(x)
    return np.asarray(
        np.sign(x) * np.maximum(size - (size + np.float32(1e-8)) ** np.float32(EXPONENT - 1) / np.float32(beta), 0)
    )
