"""Round to nearest: the range of a block decides its scale and zero point."""

from __future__ import annotations

import numpy as np

from sardonyx.capi import block_quantize
from sardonyx.quantization.weight_only.pack import Array, Blocked, Blocks, cut


def nearest(w: Array, blocks: Blocks) -> Blocked:
    """The codes of onnxruntime's kernels: in symmetric blocks the value of largest magnitude is the lowest code."""
    codes, scales, zeros = block_quantize.column_codes(w, blocks.size, blocks.bits, blocks.symmetric, w.dtype)
    codes.reshape(-1, w.shape[1])[len(w) :] = 0
    return Blocked(codes, scales, zeros, len(w), blocks)


def nearest_rows(w: Array, blocks: Blocks) -> Blocked:
    """As ``nearest``, with the rounding of the kernels that write DequantizeLinear's layout."""
    codes, scales, zeros = block_quantize.row_codes(w, blocks.size, blocks.bits, blocks.symmetric, w.dtype)
    if blocks.symmetric:
        codes = (codes.astype(np.int16) + blocks.middle).astype(np.uint8)
        zeros = np.full(zeros.shape, blocks.middle, np.uint8)
    return Blocked(codes, scales, zeros, len(w), blocks)


def rtn(w: Array, blocks: Blocks, ratio: float = 1.0) -> Blocked:
    """Symmetric ranges reach as far in both directions; ``ratio`` shrinks the range and clips what lies outside.

    onnxruntime's numbers wherever a block's range contains zero. Others are extended to zero, which it does not do: its
    zero points leave the range of the codes there.
    """
    x = cut(w, blocks.size)
    low, high = (np.asarray(edge * w.dtype.type(ratio)) for edge in (x.min(axis=1), x.max(axis=1)))
    if blocks.symmetric:
        reach = np.maximum(np.abs(low), np.abs(high))
        wide = (reach * w.dtype.type(2)).astype(np.float64) / blocks.most
        steps = np.where(wide > 0, wide, 1.0)
        zeros = np.full(steps.shape, blocks.middle, np.uint8)
    else:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        wide = (high - low).astype(np.float64) / blocks.most
        steps = np.where(wide > 0, wide, 1.0)
        zeros = np.clip(np.rint(-low.astype(np.float64) / steps), 0, blocks.most).astype(np.uint8)
    codes = np.rint(x.astype(np.float64) / steps[:, None] + zeros[:, None])
    return Blocked(np.clip(codes, 0, blocks.most).astype(np.uint8), steps.astype(w.dtype), zeros, len(w), blocks)
