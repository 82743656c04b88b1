"""Random sizes, types and values, all from one seed."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from onnx import helper

T = TypeVar("T")

SIZES = (0, 1, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 9)
LARGE = (12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 100, 128, 130)
HUGE_INTS = (1 << 31, (1 << 31) - 1, -(1 << 31), (1 << 62), (1 << 63) - 1, -(1 << 63), 1 << 40, -(1 << 40))
WORDS = ("", "a", "b", "abc", "Ünicode", "a b", "  ", "1", "-2.5", "nan", "日本", "a.b@c", "\n")
WEIRD_FLOATS = (
    float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, 1.2e-38, -1e-40, 3.4e38, -3.4e38, 1e30, 1e-30,
    65504.0, 65520.0, 88.8, -104.0, 1e9, 2147483648.0, 0.5, 1.5, 2.5, -0.5,
)  # fmt: skip


class Draw:
    """A source of random choices; two of one seed choose alike."""

    def __init__(self, *seed: Any) -> None:
        self.rng = random.Random("/".join(map(str, seed)))
        self.np = np.random.default_rng(zlib.crc32("/".join(map(str, seed)).encode()))

    def maybe(self, probability: float) -> bool:
        return self.rng.random() < probability

    def one(self, options: Sequence[T]) -> T:
        return options[self.rng.randrange(len(options))]

    def int(self, low: int, high: int) -> int:
        """Low and high included."""
        return self.rng.randint(low, high)

    def size(self, *, large: float = 0.15, empty: bool = True) -> int:
        """A size of an axis, small most of the time."""
        n = self.one(LARGE) if self.maybe(large) else self.one(SIZES)
        return n if n or (empty and self.maybe(0.5)) else 1

    def shape(self, low: int = 0, high: int = 4, *, large: float = 0.15, empty: bool = True) -> list[int]:
        """Sizes of a tensor of no more than some ten thousand elements."""
        rank = min(self.int(low, high) if self.maybe(0.97) else self.int(low, 7), 7)
        dims = [self.size(large=large / max(rank, 1) * 2, empty=empty and self.maybe(0.3)) for _ in range(rank)]
        while np.prod(dims, dtype=float) > 20_000:
            dims[dims.index(max(dims))] = self.int(1, 4)
        return dims

    def broadcast(self, shape: Sequence[int]) -> list[int]:
        """A shape that broadcasts to this one, most of the time."""
        dims = [n if self.maybe(0.75) else 1 for n in shape]
        dims = dims[self.int(0, len(dims)) :] if dims and self.maybe(0.3) else dims
        if dims and self.maybe(0.03):
            dims[self.int(0, len(dims) - 1)] = self.size()
        return dims

    def axis(self, rank: int) -> int:
        """An axis in either spelling; beyond the rank once in a while."""
        if self.maybe(0.04):
            return self.one((rank, -rank - 1, rank + 5, -(1 << 31), (1 << 63) - 1))
        return self.int(-rank, rank - 1) if rank else self.one((0, -1))

    def axes(self, rank: int) -> list[int]:
        picked = self.rng.sample(range(rank), self.int(0, rank)) if rank else []
        if self.maybe(0.04):
            picked.append(self.axis(rank))
        return [a - rank if self.maybe(0.3) else a for a in picked]

    def values(self, shape: Sequence[int], dtype: Any, kind: str = "plain") -> Any:
        """Values of a type: ordinary ones, or extreme ones among them."""
        dtype, count = np.dtype(dtype), int(np.prod(shape, dtype=np.int64))
        if dtype.kind in "OUST":
            return np.array([self.one(WORDS) for _ in range(count)], object).reshape(shape)
        if dtype.kind == "b":
            return self.np.random(shape) < 0.5
        if dtype.kind == "c":
            made = np.empty(tuple(shape), dtype)
            with np.errstate(all="ignore"):
                made.real, made.imag = self.values(shape, np.float64, kind), self.values(shape, np.float64, kind)
            return made
        if is_float(dtype):
            return self._floats(tuple(shape), dtype, kind)
        return self._integers(tuple(shape), dtype, kind)

    def _floats(self, shape: tuple[int, ...], dtype: Any, kind: str) -> Any:
        values = self.np.standard_normal(shape) * self.one((1.0, 1.0, 1.0, 0.1, 5.0))
        if kind == "extreme":
            weird = np.array(WEIRD_FLOATS)[self.np.integers(0, len(WEIRD_FLOATS), shape)]
            values = np.where(self.np.random(shape) < self.one((0.05, 0.3, 1.0)), weird, values)
        with np.errstate(all="ignore"):
            return np.asarray(values).astype(dtype)

    def _integers(self, shape: tuple[int, ...], dtype: Any, kind: str) -> Any:
        info = ml_dtypes.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        if kind == "extreme":
            edges = [low, low + 1, high, high - 1, 0, 1, max(low, -1)]
            picked = [self.one(edges) for _ in range(int(np.prod(shape, dtype=np.int64)))]
            return np.array(picked, object).reshape(shape).astype(dtype)
        return self.np.integers(max(low, -9), min(high, 9), shape, endpoint=True).astype(dtype)

    def indices(self, shape: Sequence[int], size: int, dtype: Any = np.int64, kind: str = "plain") -> Any:
        """Positions along an axis of this size, from either end; outside of it for ``out`` and ``extreme``."""
        picked = self.np.integers(-size, size, tuple(shape)) if size else np.zeros(tuple(shape), np.int64)
        return self.spoil(picked.astype(dtype), size) if kind in ("out", "extreme") else picked.astype(dtype)

    def spoil(self, array: Any, size: int = 4) -> Any:
        """The array with some integers that are no place in an axis of this size."""
        array = np.array(array)
        info = np.iinfo(array.dtype)
        known = (size, size + 1, -size - 1, -1, 1 << 16, *HUGE_INTS, info.min, info.max)
        bad = [n for n in known if info.min <= n <= info.max]
        flat = array.reshape(-1)
        for _ in range(self.int(1, 3) if flat.size else 0):
            flat[self.int(0, flat.size - 1)] = self.one(bad)
        return array


def is_float(dtype: Any) -> bool:
    """Whether a type is a float of numpy's or of ml_dtypes'."""
    return np.dtype(dtype).kind == "f" or (np.dtype(dtype).kind == "V" and "float" in np.dtype(dtype).name)


def numpy_type(text: str) -> Any:
    """The numpy type of a schema's ``tensor(float)``; None for what is no tensor."""
    inner = text.removeprefix("tensor(").removesuffix(")")
    return _TYPES.get(inner) if text.startswith("tensor(") else None


_TYPES: dict[str, Any] = {
    "float": np.float32, "double": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "uint8": np.uint8, "uint16": np.uint16,
    "uint32": np.uint32, "uint64": np.uint64, "bool": np.bool_, "string": np.object_,
    "complex64": np.complex64, "complex128": np.complex128, "int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4,
    "int2": ml_dtypes.int2, "uint2": ml_dtypes.uint2, "float4e2m1": ml_dtypes.float4_e2m1fn,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn, "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8e5m2": ml_dtypes.float8_e5m2, "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8e8m0": ml_dtypes.float8_e8m0fnu,
}  # fmt: skip


def onnx_type(dtype: Any) -> int:
    dtype = np.dtype(dtype)
    return 8 if dtype.kind in "OUST" else helper.np_dtype_to_tensor_dtype(dtype)
