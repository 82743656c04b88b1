"""Tables that a Gather reads, such as word embeddings, in codes with a scale for each block along an axis."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from sardonyx.quantization.weight_only.pack import Array, Blocks
from sardonyx.records import Record


class BlockedTable(Record, eq=False):
    codes: Array
    """Of the shape of the table: int4, uint4, or uint8 for codes of 8 bits."""
    scales: Array
    zeros: Array | None
    """None for symmetric codes, which are around 0, or around 128 in 8 bits."""
    axis: int
    size: int
    bits: int


def quantize_table(table: Array, axis: int, blocks: Blocks) -> BlockedTable:
    """Round to nearest, with onnxruntime's numbers: a symmetric block's largest magnitude is the lowest code."""
    length = table.shape[axis]
    rows = table.reshape(int(np.prod(table.shape[:axis])), length, -1)
    count = -(-length // blocks.size)
    scales = np.zeros((len(rows), count, rows.shape[2]), table.dtype)
    points = np.full(scales.shape, blocks.middle, np.uint8)
    codes = np.zeros(rows.shape, np.int8 if blocks.symmetric and blocks.bits < 8 else np.uint8)
    for b in range(count):
        part = slice(b * blocks.size, (b + 1) * blocks.size)
        code = _symmetric if blocks.symmetric else _asymmetric
        codes[:, part], scales[:, b : b + 1], points[:, b : b + 1] = code(rows[:, part], blocks)
    kinds = {(4, True): ml_dtypes.int4, (4, False): ml_dtypes.uint4}
    kind = np.dtype(kinds.get((blocks.bits, blocks.symmetric), np.uint8))
    shape = (*table.shape[:axis], count, *table.shape[axis + 1 :])
    zeros = None if blocks.symmetric else points.reshape(shape).astype(kind)
    codes = codes.reshape(table.shape).astype(kind)
    return BlockedTable(codes, scales.reshape(shape), zeros, axis, blocks.size, blocks.bits)


def _symmetric(x: Array, blocks: Blocks) -> tuple[Array, Array, int]:
    high, low = x.max(axis=1, keepdims=True), x.min(axis=1, keepdims=True)
    scale = np.where(np.abs(high) > np.abs(low), high, low) / -float(blocks.middle)
    codes = np.rint(_quotient(x, scale, 0)).clip(-blocks.middle, blocks.middle - 1)
    return codes + (blocks.middle if blocks.bits == 8 else 0), scale, blocks.middle


def _asymmetric(x: Array, blocks: Blocks) -> tuple[Array, Array, Array]:
    low, high = np.minimum(x.min(axis=1, keepdims=True), 0), np.maximum(x.max(axis=1, keepdims=True), 0)
    scale = (high - low) / float(blocks.most)
    zeros = np.rint(_quotient(-low, scale, blocks.middle)).clip(0, blocks.most).astype(np.uint8)
    codes = np.where(scale == 0, blocks.middle, _quotient(x, scale, 0) + zeros)
    return np.rint(codes).clip(0, blocks.most), scale, zeros


def _quotient(x: Array, scale: Array, where_zero: float) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(scale == 0, np.asarray(where_zero, x.dtype), x / scale)
