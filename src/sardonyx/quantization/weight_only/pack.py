"""Weights in codes, block by block, and the bytes that MatMulNBits stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sardonyx.records import Record

Array = np.ndarray[Any, Any]

CHUNK = 1 << 22
"""Elements of a weight that are quantized at a time: what an algorithm computes takes several times their memory."""


class Blocks(Record):
    """How weights are cut and coded."""

    bits: int
    size: int
    """Rows of a block."""
    symmetric: bool

    @property
    def most(self) -> int:
        """The highest code; the lowest is 0."""
        return int(2**self.bits - 1)

    @property
    def middle(self) -> int:
        """The zero point of symmetric codes."""
        return int(2 ** (self.bits - 1))


class Blocked(Record, eq=False):
    """[k, n] weights as (codes - zeros) * scales."""

    codes: Array
    """Unsigned, [blocks, rows of a block, n]; the last block is padded."""
    scales: Array
    """[blocks, n], in the type of the weights."""
    zeros: Array
    """[blocks, n]: unsigned integers, or reals in the type of the scales."""
    k: int
    blocks: Blocks

    @property
    def n(self) -> int:
        return int(self.codes.shape[2])

    @property
    def has_real_zeros(self) -> bool:
        return bool(self.zeros.dtype.kind != "u")

    def dequantized(self) -> Array:
        """The weights that the codes stand for, in f32."""
        reals = (self.codes.astype(np.float32) - self.zeros[:, None].astype(np.float32)) * self.scales[:, None].astype(
            np.float32
        )
        return reals.reshape(-1, self.n)[: self.k]

    def packed(self) -> Array:
        """[n, blocks, bytes], low bits first."""
        codes = np.ascontiguousarray(self.codes.transpose(2, 0, 1))
        return pack(codes, self.blocks.bits)

    def packed_zeros(self) -> Array:
        """[n, bytes], low bits first; a last byte is filled with middle codes. Reals are [n, blocks] and not packed."""
        rows = np.ascontiguousarray(self.zeros.T)
        if self.has_real_zeros:
            return rows
        per_byte = 8 // self.blocks.bits
        spare = ((0, 0), (0, -rows.shape[1] % per_byte))
        return pack(np.pad(rows, spare, constant_values=self.blocks.middle), self.blocks.bits)


def pack(codes: Array, bits: int) -> Array:
    """Unsigned codes in bytes along the last axis, low bits first."""
    per_byte = 8 // bits
    if per_byte == 1:
        return codes
    packed = codes[..., 0::per_byte].astype(np.uint8)
    for i in range(1, per_byte):
        packed = packed | codes[..., i::per_byte] << np.uint8(i * bits)
    return packed


def cut(w: Array, size: int) -> Array:
    """[k, n] weights as [blocks, size, n], in their type; the last block is padded with zeros."""
    return np.pad(w, ((0, -len(w) % size), (0, 0))).reshape(-1, size, w.shape[1])


def by_columns(w: Array, quantize: Callable[[Array], Blocked]) -> Blocked:
    """Quantize a weight whose columns do not depend on each other, some columns at a time."""
    return joined([quantize(np.ascontiguousarray(part)) for part in _column_chunks(w)])


def _column_chunks(w: Array) -> Iterator[Array]:
    k, n = w.shape
    step = max(1, CHUNK // max(1, k))
    for i in range(0, n, step):
        yield w[:, i : i + step]


def joined(parts: Sequence[Blocked]) -> Blocked:
    """One weight from its columns."""
    if len(parts) == 1:
        return parts[0]
    codes, scales, zeros = (
        np.concatenate([getattr(p, name) for p in parts], axis=-1) for name in ("codes", "scales", "zeros")
    )
    return Blocked(codes, scales, zeros, parts[0].k, parts[0].blocks)
