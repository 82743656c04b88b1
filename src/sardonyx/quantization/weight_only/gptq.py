"""GPTQ: the error of a row is compensated by the rows after it, for the inputs that calibration data has.

Row i of W meets column i of the inputs X, and the products' error is (W - Q)' H (W - Q) with the Hessian H = X' X. Rows
are rounded in order; each one's error is spread over the rows that are still real, by the inverse of H.
Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2023.
"""

from __future__ import annotations

import numpy as np

from sardonyx.errors import RuntimeException
from sardonyx.quantization.weight_only.pack import Array, Blocked, Blocks, cut
from sardonyx.records import Record

SHRINKS = 1 - np.arange(80) / 100
"""Shares of a range that ``mse`` tries."""
NORM = 2.4
"""The exponent of errors in that search."""
RETRIES = 4
"""How often damping is raised tenfold for a Hessian without an inverse."""


class GptqOptions(Record):
    damping: float = 0.01
    """A share of the mean of the Hessian's diagonal that is added to it."""
    rows: int = 128
    """Rows whose errors are spread over the rest at once; a matter of speed."""
    by_activation: bool = False
    """Whether rows with large inputs are rounded first."""
    mse: bool = False
    """Whether ranges are shrunk where that lessens the error."""
    per_channel: bool = True
    """Whether every column has its own scales."""


def gptq(w: Array, hessian: Array, blocks: Blocks, options: GptqOptions) -> Blocked:
    """Codes of [k, n] weights for inputs with this [k, k] Hessian."""
    k, n = w.shape
    spread = inverse_root(hessian, options.damping, np.argsort(-np.diag(hessian)) if options.by_activation else None)
    order = spread.order
    reals = w.astype(np.float64)[order]
    count = -(-k // blocks.size)
    scales, zeros = np.ones((count, n), w.dtype), np.full((count, n), blocks.middle, np.uint8)
    codes = np.full((count * blocks.size, n), blocks.middle, np.uint8)
    if options.by_activation:  # a block's rows are rounded at different times: its range is that of the original
        for b, rows in enumerate(cut(w, blocks.size)):
            scales[b], zeros[b] = _grid(rows[: k - b * blocks.size], blocks, options, w.dtype)
    step = max(blocks.size, options.rows // blocks.size * blocks.size)
    for start in range(0, k, step):
        end = min(start + step, k)
        inside, errors = spread.root[start:end, start:end], np.zeros((end - start, n))
        for i in range(start, end):
            b = int(order[i]) // blocks.size
            if not options.by_activation and i % blocks.size == 0:
                scales[b], zeros[b] = _grid(reals[i : min(i + blocks.size, k)], blocks, options, w.dtype)
            scale = scales[b].astype(np.float64)
            code = np.clip(np.rint(reals[i] / scale) + zeros[b], 0, blocks.most)
            codes[order[i]] = code
            at = i - start
            errors[at] = (reals[i] - scale * (code - zeros[b])) / inside[at, at]
            reals[i + 1 : end] -= inside[at, at + 1 :, None] * errors[at]
        reals[end:] -= spread.root[start:end, end:].T @ errors
    codes[k:] = zeros[-1]
    return Blocked(codes.reshape(count, blocks.size, n), scales, zeros, k, blocks)


class Spread(Record, eq=False):
    """How an error spreads: the upper Cholesky factor of the inverse Hessian, with rows and columns in ``order``."""

    root: Array
    order: Array


def inverse_root(hessian: Array, damping: float, order: Array | None) -> Spread:
    """``Spread`` of a Hessian. Inputs that were always zero spread no error."""
    h = hessian.astype(np.float64)
    if not np.isfinite(h).all():
        raise RuntimeException("the inputs of a product are not finite on the calibration data")
    order = np.arange(len(h)) if order is None else order
    h = h[order][:, order]
    diagonal = np.arange(len(h))
    dead = h[diagonal, diagonal] == 0
    mean = float(np.mean(h[diagonal, diagonal])) or 1.0
    h[dead, dead] = mean
    for attempt in range(RETRIES):
        damped = h.copy()
        damped[diagonal, diagonal] += damping * 10.0**attempt * mean
        try:
            return Spread(np.linalg.cholesky(np.linalg.inv(damped)).T, order)
        except np.linalg.LinAlgError:
            continue
    raise RuntimeException("the Hessian has no inverse", hint="use more calibration data, or a larger percdamp")


def _grid(rows: Array, blocks: Blocks, options: GptqOptions, dtype: np.dtype[np.generic]) -> tuple[Array, Array]:
    """Scale and zero point of each column of a block."""
    x = rows.astype(np.float64)
    if not options.per_channel:
        x = x.reshape(-1, 1)
    low, high = x.min(axis=0, initial=0), x.max(axis=0, initial=0)
    if blocks.symmetric:
        high = np.maximum(-low, high)
        low = -high
    best, zeros = _scaled(low, high, blocks, dtype)
    if options.mse:
        least = np.full(low.shape, np.inf)
        for share in SHRINKS:
            scale, zero = _scaled(low * share, high * share, blocks, dtype)
            codes = np.clip(np.rint(x / scale) + zero, 0, blocks.most)
            error = (np.abs((codes - zero) * scale - x) ** NORM).sum(axis=0)
            better = error < least
            best, zeros = np.where(better, scale, best), np.where(better, zero, zeros)
            least = np.minimum(error, least)
    n = rows.shape[1]
    return np.broadcast_to(best, n).astype(dtype), np.broadcast_to(zeros, n).astype(np.uint8)


def _scaled(low: Array, high: Array, blocks: Blocks, dtype: np.dtype[np.generic]) -> tuple[Array, Array]:
    """The scale, rounded to its type, and the zero point of a range."""
    scale = ((high - low) / blocks.most).astype(dtype).astype(np.float64)
    scale = np.where(scale > 0, scale, 1.0)
    if blocks.symmetric:
        return scale, np.full(scale.shape, float(blocks.middle))
    return scale, np.clip(np.rint(-low / scale), 0, blocks.most)
