"""Constant tensors that fetch their bytes on first use.

A weight in a file takes no memory until ``numpy()`` is called. A large array is then cached only as long as somebody
refers to it: kernels pack most weights once, and they can be read from the file again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir import shape as shapes
from sardonyx.ir.types import TensorType

if TYPE_CHECKING:
    from sardonyx.ir.quantized import Quantized

CACHED_NBYTES = 1 << 16
"""Largest constant of a file that stays in memory after it was read."""


class Tensor:
    """A constant: its type is known, its elements are fetched on demand."""

    __slots__ = (
        "_array", "_fetch", "_is_cheap", "_seen", "_view", "dtype", "name", "origin", "packed", "quantized", "shape",
    )  # fmt: skip

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        fetch: Callable[[], np.ndarray[Any, Any]] | None,
        *,
        name: str = "",
        origin: object = None,
        view: Callable[[], np.ndarray[Any, Any]] | None = None,
        is_cheap: bool = False,
        packed: Tensor | None = None,
        quantized: Quantized | None = None,
    ) -> None:
        """``view`` returns the elements without caching them. If ``is_cheap``, ``fetch`` may be called again."""
        self.dtype, self.shape, self.name = dtype, shape, name
        self.origin = origin
        """File and position of the bytes; None for a constant that was computed or is small."""
        self.packed = packed
        """The bytes of elements of fewer than 8 bits, as ONNX packs them, where they exist as a tensor of u8."""
        self.quantized = quantized
        """What a constant of reals is computed from, where kernels may read that in its place."""
        self._fetch, self._view, self._is_cheap = fetch, view, is_cheap
        self._array: np.ndarray[Any, Any] | None = None
        self._seen: ref[np.ndarray[Any, Any]] | None = None

    @classmethod
    def of(cls, array: Any, name: str = "") -> Tensor:
        """A constant from an array; it is made read-only."""
        array = np.asarray(array)
        dtype = dtypes.of_numpy(array.dtype)
        if dtype is dtypes.string and array.dtype != object:
            array = array.astype(object)
        self = cls(dtype, array.shape, None, name=name)
        self._array = _frozen(array.astype(dtype.numpy, copy=False))
        return self

    @property
    def size(self) -> int:
        return shapes.count(self.shape)

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.size)

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    @property
    def is_loaded(self) -> bool:
        return self._array is not None or (self._seen is not None and self._seen() is not None)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements, read-only; the same array as long as somebody refers to it."""
        fetch, array = self._fetch, self._array
        if array is None and self._seen is not None:
            array = self._seen()
        if array is None:
            assert fetch is not None
            array = fetch()
            assert array.shape == self.shape and array.dtype == self.dtype.numpy, self.name
            array = _frozen(array)
            if self._is_cheap and array.nbytes > CACHED_NBYTES:
                self._seen = ref(array)
            else:
                self._array, self._fetch = array, None
        return array

    def peek(self) -> np.ndarray[Any, Any]:
        """The elements for a single use, perhaps unaligned; nothing is cached."""
        return self._view() if self._view is not None and not self.is_loaded else self.numpy()

    def seen_as(self, dtype: DType, shape: tuple[int, ...]) -> Tensor:
        """The same bytes under another shape, and bytes as the unsigned numbers of 2 or 4 bits that are packed in them.

        A constant of a file is still known by its place there.
        """
        if (self.dtype, self.shape) == (dtype, shape):
            return self
        if dtype is self.dtype:
            view = None if self._view is None else lambda: self.peek().reshape(shape)
            return Tensor(
                dtype, shape, lambda: self.peek().astype(dtype.numpy, order="C", copy=False).reshape(shape),
                name=self.name, origin=self.origin, view=view, is_cheap=self._is_cheap, packed=self.packed,
            )  # fmt: skip
        assert self.dtype is dtypes.u8 and dtype.kind == "uint" and dtype.nbytes(shapes.count(shape)) == self.nbytes

        def fetch() -> np.ndarray[Any, Any]:
            shifts, mask = np.arange(0, 8, dtype.bits, dtype=np.uint8), np.uint8(2**dtype.bits - 1)
            codes: np.ndarray[Any, Any] = (self.peek().reshape(-1)[:, None] >> shifts) & mask
            return codes.reshape(-1)[: shapes.count(shape)].astype(dtype.numpy).reshape(shape)

        packed = self.seen_as(self.dtype, (self.nbytes,))
        return Tensor(dtype, shape, fetch, name=self.name, origin=self.origin, is_cheap=True, packed=packed)

    def span_in(self, files: Mapping[object, int]) -> tuple[int, ...] | None:
        """Which of a model's files has the elements in the form in which they are used, and where, offset first; None
        if none has. ``files`` numbers the files by their identities.
        """
        if self._view is None or not isinstance(self.origin, tuple) or self.origin[0] not in files:
            return None
        return files[self.origin[0]], *self.origin[1:]

    def item(self) -> Any:
        return self.numpy().item()

    def __repr__(self) -> str:
        return f"Tensor({self.name or '_'}: {self.type})"


def _frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array
