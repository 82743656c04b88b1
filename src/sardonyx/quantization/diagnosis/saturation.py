"""Products of u8 and i8 on x86 chips without VNNI: two products are added in 16 bits, and sums beyond are cut off."""

from __future__ import annotations

import numpy as np

from sardonyx import dtypes
from sardonyx.quantization.diagnosis.grids import Array
from sardonyx.quantization.diagnosis.layers import Layer
from sardonyx.quantization.diagnosis.match import Pair
from sardonyx.quantization.diagnosis.measure import Seen
from sardonyx.quantization.diagnosis.report import WARNING, Finding

ROWS, COLUMNS = 64, 256
"""How many rows and columns of a product are tried."""
LEAST = 1e-4
"""The share of saturating pairs that is worth telling."""


def check_saturation(layer: Layer, pair: Pair, first: Pair, seen: Seen) -> list[Finding]:
    """Whether sums of two products overflow 16 bits, on the values of the first run."""
    weight = layer.weight
    grid = next((g for g in first.quantized.read_as if g.dtype is dtypes.u8), None)
    if grid is None or weight is None or weight.codes is None or weight.codes.dtype != np.int8 or seen.first is None:
        return []
    rows = _rows(grid.codes(seen.first).astype(np.int32), weight.codes.shape, layer.kind)
    matrix = _matrix(weight.codes.astype(np.int32), layer.kind)
    if rows is None or matrix is None or rows.shape[1] != len(matrix):
        return []
    even = len(matrix) - len(matrix) % 2
    pairs = rows[:, 0:even:2, None] * matrix[None, 0:even:2, :] + rows[:, 1:even:2, None] * matrix[None, 1:even:2, :]
    beyond = (pairs > 32767) | (pairs < -32768)
    share, touched = float(beyond.mean()), float(beyond.any(axis=1).mean())
    if share < LEAST:
        return []
    numbers = {"share_of_pairs": share, "share_of_results": touched, "largest_sum": int(np.abs(pairs).max())}
    what = (
        f"on x86 chips without VNNI, {share:.2%} of the sums of two products saturate, in {touched:.1%} of the results "
        f"(up to {int(np.abs(pairs).max())}, 32767 is the limit)"
    )
    change = "for such chips quantize with reduce_range=True, or with weights of type QUInt8"
    return [Finding(pair.label, weight.name, "saturation", what, change, WARNING, numbers, pair.index, layer.label)]


def _matrix(codes: Array, kind: str) -> Array | None:
    """A weight as [k, n]; rows of a convolution have its channels side by side."""
    if kind in ("MatMul", "Gemm") and codes.ndim == 2:
        return codes[:, :COLUMNS]
    if kind == "Conv" and codes.ndim == 4:
        return np.asarray(codes.transpose(2, 3, 1, 0).reshape(-1, len(codes))[:, :COLUMNS])
    return None


def _rows(x: Array, shape: tuple[int, ...], kind: str) -> Array | None:
    """Rows of the left side: of a matrix, or patches of images."""
    rng = np.random.default_rng(0)
    if kind != "Conv":
        rows = x.reshape(-1, x.shape[-1])
        return np.asarray(rows[rng.permutation(len(rows))[:ROWS]])
    if x.ndim != 4 or len(shape) != 4 or x.shape[1] != shape[1]:
        return None
    height, width = shape[2:]
    if x.shape[2] < height or x.shape[3] < width:
        return None
    windows: Array = np.lib.stride_tricks.sliding_window_view(x, (height, width), axis=(2, 3))
    patches = windows.transpose(0, 2, 3, 4, 5, 1).reshape(-1, height * width * shape[1])
    return np.asarray(patches[rng.permutation(len(patches))[:ROWS]])
