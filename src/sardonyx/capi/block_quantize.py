"""Block-wise weight quantization, number for number as onnxruntime's kernels do it.

The functions named ``quantize_...`` have the interface of those kernels: results are written into the caller's arrays.
A block consists of consecutive rows of one column. Symmetric: the value of largest magnitude becomes the lowest code,
so the scale may be negative, and the zero point is the middle code. Asymmetric: the codes span the block's values and
zero.
"""

from __future__ import annotations

import platform
from typing import Any, NoReturn

import numpy as np

from sardonyx.errors import InvalidArgument, NotImplemented

Array = np.ndarray[Any, Any]
F32 = np.float32
FUSES = platform.machine().lower() in ("aarch64", "arm64")
"""Whether onnxruntime's builds for this machine fuse a product and a sum into one rounding."""
FP4_BORDERS = (0.00260417, 0.0859375, 0.20833333, 0.29166667, 0.4166667, 0.583333, 0.8333333)
"""Midpoints between the magnitudes of FP4, with bitsandbytes' decimals: ties depend on them."""


def quantize_matmul_2bits(*args: Any) -> None:
    _quantize_columns(2, *args)


def quantize_matmul_4bits(*args: Any) -> None:
    _quantize_columns(4, *args)


def quantize_matmul_8bits(*args: Any) -> None:
    _quantize_columns(8, *args)


def quantize_qdq_matmul_2bits(*args: Any) -> bool:
    return _quantize_rows(2, *args)


def quantize_qdq_matmul_4bits(*args: Any) -> bool:
    return _quantize_rows(4, *args)


def column_codes(w: Array, block: int, bits: int, symmetric: bool, dtype: Any) -> tuple[Array, Array, Array]:
    """Codes [blocks, block, n], scales and zero points [blocks, n] of [k, n] weights, as MatMulNBits has them.

    The zero point is added before rounding: in a fused multiply-add with the product where compilers write one.
    """
    blocks = blocks_of(w, block)
    steps, points = _grid(blocks, dtype, bits, symmetric)
    if FUSES:
        shifted = (blocks.astype(np.float64) * _inverse(steps)[:, None] + points[:, None]).astype(F32)
    else:
        shifted = blocks * _inverse(steps)[:, None] + points[:, None].astype(F32)
    return _clipped(_rounded(shifted), 0, 2**bits - 1), steps, points


def row_codes(w: Array, block: int, bits: int, symmetric: bool, dtype: Any) -> tuple[Array, Array, Array]:
    """As ``column_codes``, as DequantizeLinear has them: symmetric codes are signed, and their zero points are 0."""
    blocks = blocks_of(w, block)
    steps, points = _grid(blocks, dtype, bits, symmetric)
    half = 2 ** (bits - 1)
    whole = _rounded(blocks * _inverse(steps)[:, None])
    if symmetric:
        return _clipped(whole, -half, half - 1), steps, np.zeros(steps.shape, np.int8)
    return _clipped(whole + points[:, None], 0, 2**bits - 1), steps, points


def _quantize_columns(
    bits: int, dst: Array, src: Array, scale: Array, zero_points: Array, block: int, n: int, k: int, symmetric: bool
) -> None:
    """MatMulNBits' layout: codes [n, blocks, bytes], scales [n, blocks], zero points [n, bytes], packed low bits
    first.
    """
    _require_contiguous(dst, scale, zero_points)
    codes, steps, points = column_codes(_weights(src, block, n, k), block, bits, symmetric, scale.dtype)
    scale.reshape(n, -1)[...] = steps.T
    _store(dst.reshape(n, -1), codes.reshape(-1, n).T, bits, count=k)
    if not symmetric:
        spare = np.full((n, -len(points) % (8 // bits)), 2 ** (bits - 1), np.uint8)
        _store(zero_points.reshape(n, -1), np.hstack([points.T, spare]), bits, count=len(points))


def _quantize_rows(
    bits: int, dst: Array, src: Array, scale: Array, zero_points: Array, block: int, n: int, k: int, symmetric: bool
) -> bool:
    """DequantizeLinear's layout: codes [k, n] and zero points [blocks, n], packed in that order, scales [blocks, n].

    Symmetric codes are signed around zero. Returns whether they are signed.
    """
    _require_contiguous(dst, scale, zero_points)
    codes, steps, points = row_codes(_weights(src, block, n, k), block, bits, symmetric, scale.dtype)
    scale.reshape(-1, n)[...] = steps
    if not symmetric:
        _store(zero_points.reshape(1, -1), points.reshape(1, -1), bits, count=points.size)
    _store(dst.reshape(1, -1), codes.reshape(-1, n)[:k].reshape(1, -1), bits, count=k * n)
    return bool(symmetric)


def quantize_matmul_bnb4(dst: Array, src: Array, absmax: Array, block: int, quant_type: int, n: int, k: int) -> None:
    """bitsandbytes' 4-bit codes: a table of sixteen reals, scaled by each block's largest magnitude; high bits
    first.
    """
    if quant_type not in (0, 1):
        raise InvalidArgument("quant_type is 0 for FP4, 1 for NF4", got=quant_type)
    _require_contiguous(dst, absmax)
    flat = np.asarray(src, F32).reshape(-1)[: n * k]
    rows = np.pad(flat, (0, -len(flat) % block)).reshape(-1, block)
    largest = np.abs(rows).max(axis=1)
    absmax.reshape(-1)[...] = largest
    with np.errstate(divide="ignore"):
        shares = rows * np.where(largest != 0, F32(1) / largest, F32(0))[:, None]
    codes = _nearest_nf4(shares) if quant_type else _nearest_fp4(shares)
    pairs = np.pad(codes.reshape(-1), (0, codes.size % 2)).reshape(-1, 2)[: -(-len(flat) // 2)]
    dst.reshape(-1)[...] = pairs[:, 0] << 4 | pairs[:, 1]


def _nearest_nf4(x: Array) -> Array:
    from sardonyx.normalize.microsoft.blockwise import NF4

    table = np.array(NF4, F32)
    return np.searchsorted((table[1:] + table[:-1]) / 2, x, side="left").astype(np.uint8)


def _nearest_fp4(x: Array) -> Array:
    from sardonyx.normalize.microsoft.blockwise import FP4

    found = np.argsort(FP4)[np.searchsorted(np.array(FP4_BORDERS, F32), np.abs(x), side="left")].astype(np.uint8)
    return found | np.where(x < 0, 8, 0).astype(np.uint8)


def pack_fp4_weights_for_cuda_moe_gemm(*args: Any) -> NoReturn:
    raise NotImplemented(
        "pack_fp4_weights_for_cuda_moe_gemm writes a layout for CUDA kernels that Sardonyx does not have"
    )


def _require_contiguous(*targets: Array) -> None:
    if not all(t.flags.c_contiguous and t.flags.writeable for t in targets):
        raise InvalidArgument("results are written into contiguous, writable arrays")


def _weights(src: Array, block: int, n: int, k: int) -> Array:
    """The first ``k`` rows of the caller's weights."""
    if block <= 0 or src.ndim != 2 or src.shape[1] != n or src.shape[0] < k:
        raise InvalidArgument(
            "the weights do not have the stated size", expected=f"[{k}, {n}] in blocks of {block}", got=list(src.shape)
        )
    return src[:k]


def blocks_of(w: Array, block: int) -> Array:
    """[k, n] weights as [blocks, block, n] floats; the last block is padded with zeros."""
    return np.pad(w.astype(F32), ((0, -len(w) % block), (0, 0))).reshape(-1, block, w.shape[1])


def _grid(blocks: Array, dtype: Any, bits: int, symmetric: bool) -> tuple[Array, Array]:
    """Each block's scale, rounded to its storage type, and zero point. Zero counts as one of the values."""
    low, high = blocks.min(axis=1, initial=0), blocks.max(axis=1, initial=0)
    if symmetric:
        middle = 2 ** (bits - 1)
        steps = (np.where(np.abs(high) > np.abs(low), high, low) / F32(-middle)).astype(dtype)
        return steps, np.full(steps.shape, middle, np.uint8)
    wide = (high - low) / F32(2**bits - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        points = np.where(wide != 0, -low / wide, low)
    return wide.astype(dtype), _clipped(_rounded(points), 0, 2**bits - 1)


def _inverse(steps: Array) -> Array:
    wide = steps.astype(F32)
    with np.errstate(divide="ignore"):
        inverse: Array = np.where(wide != 0, F32(1) / wide, F32(0))
    return inverse


def _rounded(x: Array) -> Array:
    """Rounds halves away from zero."""
    wide = x.astype(np.float64)
    whole: Array = np.copysign(np.floor(np.abs(wide) + 0.5), wide)
    return whole


def _clipped(x: Array, lowest: int, highest: int) -> Array:
    return np.clip(x, lowest, highest).astype(np.int8 if lowest else np.uint8)


def _store(dst: Array, codes: Array, bits: int, *, count: int) -> None:
    """Pack the first ``count`` codes of each row, low bits first; further codes pad the last byte."""
    per_byte = 8 // bits
    nbytes = -(-count // per_byte)
    fields = codes[:, : nbytes * per_byte].astype(np.uint8) & np.uint8(2**bits - 1)
    fields = np.pad(fields, ((0, 0), (0, nbytes * per_byte - fields.shape[1]))).reshape(len(codes), nbytes, per_byte)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    dst[:, :nbytes] = np.bitwise_or.reduce(fields << shifts, axis=2)
