"""Constant tensors whose bytes are fetched when somebody needs them.

A weight in a file costs nothing until ``numpy()`` is called. A large one is then kept only as long as somebody has the
array: kernels pack most weights once, and the file has the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir import shape as shapes
from sardonyx.ir.types import TensorType

KEPT_NBYTES = 1 << 16
"""Bytes up to which a constant of a file is kept once it was read."""


class Tensor:
    """A constant: its type at once, its elements on demand."""

    __slots__ = ("_array", "_fetch", "_is_stored", "_lies", "_seen", "dtype", "name", "origin", "shape")

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        fetch: Callable[[], np.ndarray[Any, Any]] | None,
        *,
        name: str = "",
        origin: object = None,
        lies: Callable[[], np.ndarray[Any, Any]] | None = None,
        is_stored: bool = False,
    ) -> None:
        """``lies`` gives the elements for one look. Where it ``is_stored``, ``fetch`` is cheap and may be repeated."""
        self.dtype, self.shape, self.name = dtype, shape, name
        self.origin = origin
        """Where in which file the bytes lie; None for a constant that was computed, or is small."""
        self._fetch, self._lies, self._is_stored = fetch, lies, is_stored
        self._array: np.ndarray[Any, Any] | None = None
        self._seen: ref[np.ndarray[Any, Any]] | None = None

    @classmethod
    def of(cls, array: Any, name: str = "") -> Tensor:
        """A constant that is in memory already; it is kept read-only."""
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
        """The elements, read-only; the same array as long as anybody has it."""
        fetch, array = self._fetch, self._array
        if array is None and self._seen is not None:
            array = self._seen()
        if array is None:
            assert fetch is not None
            array = fetch()
            assert array.shape == self.shape and array.dtype == self.dtype.numpy, self.name
            array = _frozen(array)
            if self._is_stored and array.nbytes > KEPT_NBYTES:
                self._seen = ref(array)
            else:
                self._array, self._fetch = array, None
        return array

    def peek(self) -> np.ndarray[Any, Any]:
        """The elements for one look: computed, or as they are stored, perhaps not aligned; nothing is kept."""
        return self._lies() if self._lies is not None and not self.is_loaded else self.numpy()

    def span_in(self, file: object) -> tuple[int, ...] | None:
        """Where in a model's file, as ``origin`` knows it, the elements lie as they are used; None if they do not."""
        if self._lies is None or not isinstance(self.origin, tuple) or self.origin[0] != file:
            return None
        return self.origin[1:]

    def item(self) -> Any:
        return self.numpy().item()

    def __repr__(self) -> str:
        return f"Tensor({self.name or '_'}: {self.type})"


def _frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array
