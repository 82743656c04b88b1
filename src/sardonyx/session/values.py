"""OrtValue: any ONNX value as an object that can be bound and shared."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.ir.sparse import SparseTensor as Coordinates
from sardonyx.session.devices import OrtDevice, OrtMemoryInfo
from sardonyx.session.misuse import Misuse
from sardonyx.session.native_values import NativeValue
from sardonyx.session.sparse import NativeSparseTensor, SparseTensor

Array = np.ndarray[Any, Any]


def public_value(value: Any) -> Any:
    """An engine's value as callers get it: an array is a view of its own buffer, like onnxruntime's."""
    if type(value) is np.ndarray:
        return value.view()
    if isinstance(value, Coordinates):
        return SparseTensor(NativeSparseTensor.of(value))
    return value


class OrtValue:
    """A value for programs to hold."""

    def __init__(self, ortvalue: NativeValue, numpy_obj: Array | None = None, session: Any = None) -> None:
        if not isinstance(ortvalue, NativeValue):
            raise ValueError("OrtValue wraps capi's OrtValue; use OrtValue.ortvalue_from_numpy(array)")
        self._ortvalue = ortvalue
        self._session = session

    def _get_c_value(self) -> NativeValue:
        return self._ortvalue

    @property
    def _is_webgpu_buffer(self) -> bool:
        return False

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Array, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """A tensor over the array's memory."""
        device = OrtDevice.make(device_type, device_id, vendor_id)._get_c_device()
        return cls(NativeValue.ortvalue_from_numpy(numpy_obj, device))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, /, onnx_element_type: int) -> OrtValue:
        """A tensor over the array's memory, read as another type of the same size."""
        return cls(NativeValue.ortvalue_from_numpy_with_onnx_type(data, onnx_element_type))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: OrtMemoryInfo | None = None,
    ) -> OrtValue:
        """A tensor of zeros; ``element_type`` is a numpy type or an ``onnx.TensorProto.DataType``."""
        if memory_info is not None:
            if (device_type, device_id, vendor_id) != ("cpu", 0, -1):
                warnings.warn(
                    "device_type, device_id, and vendor_id are ignored when memory_info is provided.", stacklevel=2
                )
            return cls(NativeValue.ortvalue_from_shape_and_type_for_memory_info(shape, element_type, memory_info))
        device = OrtDevice.make(device_type, device_id, vendor_id)._get_c_device()
        return cls(NativeValue.ortvalue_from_shape_and_type(shape, element_type, device))

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: SparseTensor) -> OrtValue:
        return cls(NativeValue.ort_value_from_sparse_tensor(sparse_tensor._get_c_tensor()))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """A tensor over the memory of an object with ``__dlpack__``, or of a DLPack capsule."""
        if isinstance(data, OrtValue):
            return cls(NativeValue(data.numpy().view()))
        is_bool = str(getattr(data, "dtype", "")).rpartition(".")[2] in ("bool", "bool_")
        return cls(NativeValue.from_dlpack(data.__dlpack__() if hasattr(data, "__dlpack__") else data, is_bool))

    def as_sparse_tensor(self) -> SparseTensor:
        return SparseTensor(self._ortvalue.as_sparse_tensor())

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self._ortvalue.data_ptr()

    def device_name(self) -> str:
        return self._ortvalue.device_name().lower()

    def shape(self) -> list[int]:
        return self._ortvalue.shape()

    def data_type(self) -> str:
        """The type in onnxruntime's notation: ``tensor(int64)``."""
        return self._ortvalue.data_type()

    def element_type(self) -> int:
        """The ``onnx.TensorProto.DataType``."""
        return self._ortvalue.element_type()

    def tensor_size_in_bytes(self) -> int:
        """The size in bytes; sub-byte types count packed."""
        return self._ortvalue.tensor_size_in_bytes()

    def has_value(self) -> bool:
        """False for an empty optional."""
        return self._ortvalue.has_value()

    def is_tensor(self) -> bool:
        return self._ortvalue.is_tensor()

    def is_sparse_tensor(self) -> bool:
        return self._ortvalue.is_sparse_tensor()

    def is_tensor_sequence(self) -> bool:
        return self._ortvalue.is_tensor_sequence()

    def numpy(self) -> Array:
        """The elements; the memory is shared."""
        return self._ortvalue.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if copy:
            return np.array(array, dtype=dtype)
        converted = array if dtype is None else np.asarray(array, dtype=dtype)
        if copy is False and converted is not array:
            raise ValueError("a copy is needed to convert the element type")
        return converted

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        return self._ortvalue.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._ortvalue.__dlpack_device__()

    def update_inplace(self, data: Any) -> None:
        """Overwrite the contents from an array or an OrtValue."""
        if isinstance(data, OrtValue):
            self._ortvalue.update_inplace(data._ortvalue)
        elif isinstance(data, np.ndarray):
            self._ortvalue.update_inplace(data)
        else:
            raise TypeError("data must be a numpy.ndarray or an OrtValue.")


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy each source tensor to the destination at the same index."""
    if len(src) != len(dst) or not src:
        raise Misuse("Invalid arguments provided to CopyTensors.", got=f"{len(src)} sources, {len(dst)} destinations")
    for source, target in zip(src, dst, strict=True):
        if source.shape() != target.shape() or source.element_type() != target.element_type():
            raise Misuse("tensors of different type or shape", expected=target.shape(), got=source.shape())
        target.update_inplace(source)
