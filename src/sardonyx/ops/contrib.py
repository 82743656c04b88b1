"""com.microsoft operators that have no body over ai.onnx."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ops.registry import op

Array = np.ndarray[Any, Any]

MICROSOFT = "com.microsoft"


@op("Inverse", domain=MICROSOFT)
def inverse(x: Array) -> Array:
    """The inverse of each matrix in the last two axes."""
    wide = x.astype(np.float32) if x.dtype.itemsize < 4 else x
    try:
        return np.linalg.inv(wide).astype(x.dtype)
    except np.linalg.LinAlgError as error:
        raise InvalidArgument(f"Inverse: {error}") from error


def _rotl(x: Array, bits: int) -> Array:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def _mixed(k: Array) -> Array:
    return _rotl(k * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _murmur3(rows: Array, seed: int) -> Array:
    """MurmurHash3_x86_32 of each row of bytes; all rows have the same length."""
    count, length = rows.shape
    h = np.full(count, seed, np.uint32)
    whole = length // 4
    words = np.ascontiguousarray(rows[:, : 4 * whole]).view("<u4")
    with np.errstate(over="ignore"):
        for i in range(whole):
            h = _rotl(h ^ _mixed(words[:, i]), 13) * np.uint32(5) + np.uint32(0xE6546B64)
        if length % 4:
            tail = np.zeros((count, 4), np.uint8)
            tail[:, : length % 4] = rows[:, 4 * whole :]
            h = h ^ _mixed(tail.view("<u4")[:, 0])
        h = h ^ np.uint32(length)
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return h ^ (h >> np.uint32(16))


@op("MurmurHash3", domain=MICROSOFT)
def murmur_hash3(x: Array, *, positive: int = 1, seed: int = 0) -> Array:
    """A 32-bit hash of each element's bytes, of a string's UTF-8 bytes."""
    if x.dtype == object:
        hashes = [_murmur3(np.frombuffer(str(s).encode(), np.uint8)[None], seed)[0] for s in x.ravel()]
        flat = np.array(hashes, np.uint32)
    else:
        rows = np.ascontiguousarray(x).reshape(-1, 1).view(np.uint8)
        flat = _murmur3(rows.reshape(x.size, x.dtype.itemsize), seed)
    return flat.reshape(x.shape).view(np.uint32 if positive else np.int32)
