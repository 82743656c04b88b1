"""Sparse tensors in onnxruntime's three formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.sparse import SparseTensor as Coordinates
from sardonyx.session.devices import NativeDevice, OrtDevice, require_cpu
from sardonyx.session.enums import OrtSparseFormat
from sardonyx.session.misuse import Misuse, Unsupported

Array = np.ndarray[Any, Any]


class SparseCooView:
    def __init__(self, indices: Array) -> None:
        self._indices = indices

    def indices(self) -> Array:
        return self._indices


class SparseBlockSparseView(SparseCooView): ...


class SparseCsrView:
    def __init__(self, inner: Array, outer: Array) -> None:
        self._inner, self._outer = inner, outer

    def inner(self) -> Array:
        return self._inner

    def outer(self) -> Array:
        return self._outer


class NativeSparseTensor:
    """Values and indices in one of the formats (``capi``'s SparseTensor)."""

    def __init__(self, form: OrtSparseFormat, shape: Sequence[int], values: Any, *indices: Any) -> None:
        array = np.asarray(values)
        if array.dtype.kind in "US":
            array = array.astype(str).astype(object)
        self.format = form
        self.shape = tuple(int(d) for d in shape)
        self._values = _frozen(array)
        self._indices = tuple(_frozen(np.asarray(i)) for i in indices)

    @classmethod
    def of(cls, value: Coordinates) -> NativeSparseTensor:
        return cls(OrtSparseFormat.ORT_SPARSE_COO, value.shape, value.values, value.indices)

    @staticmethod
    def sparse_coo_from_numpy(
        shape: Sequence[int], values: Array, indices: Array, device: NativeDevice
    ) -> NativeSparseTensor:
        """Linear positions [n], or coordinates [n, 2]."""
        require_cpu(device)
        indices = np.asarray(indices, np.int64)
        if indices.size not in (len(values), 2 * len(values)):
            raise Misuse("Index size must be equal to or twice the values size", expected=len(values), got=indices.size)
        indices = indices.reshape(-1) if indices.size == len(values) else indices.reshape(-1, 2)
        return NativeSparseTensor(OrtSparseFormat.ORT_SPARSE_COO, shape, values, indices)

    @staticmethod
    def sparse_csr_from_numpy(
        shape: Sequence[int], values: Array, inner: Array, outer: Array, device: NativeDevice
    ) -> NativeSparseTensor:
        """``inner`` are the columns of the values, ``outer`` the start of each row."""
        require_cpu(device)
        if len(shape) != 2 or len(inner) != len(values) or len(outer) not in (0, shape[0] + 1):
            raise Misuse(
                "Outer index count must be rows + 1 or zero, and inner indices as many as values",
                expected=f"{len(values)} inner, {shape[0] + 1} outer",
                got=f"{len(inner)} inner, {len(outer)} outer",
            )
        as_int = (np.asarray(inner, np.int64), np.asarray(outer, np.int64))
        return NativeSparseTensor(OrtSparseFormat.ORT_SPARSE_CSRC, shape, values, *as_int)

    @staticmethod
    def blocksparse_from_numpy(
        shape: Sequence[int], values: Array, indices: Array, device: NativeDevice
    ) -> NativeSparseTensor:
        """Blocks [n, height, width] and their block coordinates [2, n]."""
        require_cpu(device)
        if values.ndim < 3 or indices.ndim != 2 or indices.shape[1] != values.shape[0]:
            raise Misuse("index blocks and value blocks must be equally many", expected=values.shape, got=indices.shape)
        form = OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE
        return NativeSparseTensor(form, shape, values, np.asarray(indices, np.int32))

    @property
    def dtype(self) -> DType:
        return dtypes.of_numpy(self._values.dtype)

    def values(self) -> Array:
        return self._values

    def dense_shape(self) -> list[int]:
        return list(self.shape)

    def data_type(self) -> str:
        return f"sparse_tensor({self.dtype.ort})"

    def device_name(self) -> str:
        return "Cpu"

    def get_coo_data(self) -> SparseCooView:
        self._require(OrtSparseFormat.ORT_SPARSE_COO, "COO")
        return SparseCooView(*self._indices)

    def get_csrc_data(self) -> SparseCsrView:
        self._require(OrtSparseFormat.ORT_SPARSE_CSRC, "CSR(C)")
        return SparseCsrView(*self._indices)

    def get_blocksparse_data(self) -> SparseBlockSparseView:
        self._require(OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE, "BlockSparse")
        return SparseBlockSparseView(*self._indices)

    def to_cuda(self, device: NativeDevice) -> NativeSparseTensor:
        raise Unsupported("Cuda is not available here: a sparse tensor stays on the CPU")

    def coordinates(self) -> Coordinates:
        """The same tensor in coordinate form, which the engine takes."""
        if self.format == OrtSparseFormat.ORT_SPARSE_COO:
            return Coordinates(self._values, self._indices[0], self.shape)
        if self.format == OrtSparseFormat.ORT_SPARSE_CSRC:
            inner, outer = self._indices
            counts = np.diff(outer) if len(outer) else np.zeros(self.shape[0], np.int64)
            if (counts < 0).any() or counts.sum() != len(inner):
                raise Misuse("outer indices do not partition the values", got=outer.tolist())
            rows = np.repeat(np.arange(self.shape[0]), counts)
            return Coordinates(self._values, np.stack([rows, inner], 1), self.shape)
        _, height, width = self._values.shape
        block_rows, block_columns = self._indices[0].astype(np.int64)
        rows = block_rows[:, None, None] * height + np.arange(height)[:, None]
        columns = block_columns[:, None, None] * width + np.arange(width)
        at = np.stack(np.broadcast_arrays(rows, columns), -1).reshape(-1, 2)
        return Coordinates(self._values.reshape(-1), at, self.shape)

    def _require(self, form: OrtSparseFormat, name: str) -> None:
        if self.format != form:
            raise Misuse(f"This sparse tensor does not contain {name} format", got=self.format)


class SparseTensor:
    """A sparse tensor for programs to create and read."""

    def __init__(self, sparse_tensor: NativeSparseTensor) -> None:
        if not isinstance(sparse_tensor, NativeSparseTensor):
            raise ValueError("SparseTensor wraps capi's SparseTensor; use SparseTensor.sparse_coo_from_numpy(...)")
        self._tensor = sparse_tensor

    def _get_c_tensor(self) -> NativeSparseTensor:
        return self._tensor

    @classmethod
    def sparse_coo_from_numpy(
        cls, dense_shape: Sequence[int], values: Array, coo_indices: Array, ort_device: OrtDevice
    ) -> SparseTensor:
        """Linear positions [n], or coordinates [n, 2]."""
        device = ort_device._get_c_device()
        return cls(NativeSparseTensor.sparse_coo_from_numpy(dense_shape, values, coo_indices, device))

    @classmethod
    def sparse_csr_from_numpy(
        cls,
        dense_shape: Sequence[int],
        values: Array,
        inner_indices: Array,
        outer_indices: Array,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """``inner_indices`` are the columns of the values, ``outer_indices`` the start of each row."""
        device = ort_device._get_c_device()
        return cls(NativeSparseTensor.sparse_csr_from_numpy(dense_shape, values, inner_indices, outer_indices, device))

    def values(self) -> Array:
        return self._tensor.values()

    def as_coo_view(self) -> SparseCooView:
        return self._tensor.get_coo_data()

    def as_csrc_view(self) -> SparseCsrView:
        return self._tensor.get_csrc_data()

    def as_blocksparse_view(self) -> SparseBlockSparseView:
        return self._tensor.get_blocksparse_data()

    def to_cuda(self, ort_device: OrtDevice) -> SparseTensor:
        return SparseTensor(self._tensor.to_cuda(ort_device._get_c_device()))

    def format(self) -> OrtSparseFormat:
        return self._tensor.format

    def dense_shape(self) -> list[int]:
        return self._tensor.dense_shape()

    def data_type(self) -> str:
        return self._tensor.data_type()

    def device_name(self) -> str:
        return self._tensor.device_name().lower()


def _frozen(array: Array) -> Array:
    view: Array = array.view()
    view.flags.writeable = False
    return view
