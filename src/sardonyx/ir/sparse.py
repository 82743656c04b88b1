"""Sparse tensors as values: the elements that are not zero, and their positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.errors import InvalidArgument
from sardonyx.ir import shape as shapes

Array = np.ndarray[Any, Any]


class SparseTensor:
    """Coordinate form: ``indices`` is [n] of linear positions or [n, rank] of coordinates. Immutable."""

    __slots__ = ("indices", "shape", "values")

    def __init__(self, values: Any, indices: Any, shape: tuple[int, ...]) -> None:
        self.values: Array = _frozen(np.asarray(values))
        self.indices: Array = _frozen(np.asarray(indices, np.int64))
        self.shape = tuple(int(d) for d in shape)
        n = len(self.values)
        if self.indices.shape not in ((n,), (n, len(self.shape))):
            raise InvalidArgument(
                "sparse indices do not fit the values",
                expected=f"[{n}] or [{n}, {len(self.shape)}]",
                got=list(self.indices.shape),
            )

    @property
    def dtype(self) -> DType:
        return dtypes.of_numpy(self.values.dtype)

    def linear(self) -> Array:
        """The position of each value in the flattened dense tensor, checked to be inside it."""
        at = self.indices
        limits = np.array([shapes.count(self.shape)] if at.ndim == 1 else self.shape, np.int64)
        if at.size and ((at < 0).any() or (at.reshape(len(at), -1) >= limits).any()):
            raise InvalidArgument("a sparse index is outside the tensor", expected=f"below {limits.tolist()}")
        return at if at.ndim == 1 else np.ravel_multi_index(tuple(at.T), self.shape).astype(np.int64)

    def to_dense(self) -> Array:
        """The dense tensor, with zeros (empty strings) where nothing is stored."""
        dense = np.full(self.shape, "" if self.values.dtype == object else 0, self.values.dtype)
        dense.reshape(-1)[self.linear()] = self.values
        return dense

    @classmethod
    def from_dense(cls, dense: Array) -> SparseTensor:
        flat = dense.reshape(-1)
        at = np.flatnonzero(flat != ("" if dense.dtype == object else 0))
        return cls(flat[at], at, dense.shape)

    def __repr__(self) -> str:
        return f"SparseTensor({self.dtype.name}{list(self.shape)}, {len(self.values)} values)"


def _frozen(array: Array) -> Array:
    view: Array = array.view()
    view.flags.writeable = False
    return view
