"""The values behind OrtValue: a value with its element type, and vectors of them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.sparse import SparseTensor as Coordinates
from sardonyx.session import dlpack
from sardonyx.session.devices import CPU, NativeDevice, OrtMemoryInfo, require_cpu
from sardonyx.session.misuse import Misuse
from sardonyx.session.sparse import NativeSparseTensor

Array = np.ndarray[Any, Any]

_NO_STRINGS = "Creation of OrtValues is currently only supported from non-string numpy arrays"


def element_type(spec: Any) -> DType:
    """A numpy type or an ``onnx.TensorProto.DataType`` as a ``DType``."""
    try:
        return dtypes.of_onnx(spec) if isinstance(spec, int) else dtypes.of_numpy(np.dtype(spec))
    except (KeyError, TypeError):
        raise Misuse(f"tensor type {spec} is not supported") from None


class NativeValue:
    """A value and its element type (``capi``'s OrtValue).

    ``value`` is an array, a list, a dictionary, a sparse tensor, or None for an empty optional.
    """

    __slots__ = ("dtype", "filled", "value")

    def __init__(self, value: Any, *, filled: bool = True) -> None:
        self.value = value
        self.filled = filled
        self.dtype: DType | None = None
        if isinstance(value, np.ndarray):
            self.dtype = dtypes.of_numpy(value.dtype)
        elif isinstance(value, (Coordinates, NativeSparseTensor)):
            self.dtype = value.dtype

    # -- creation

    @staticmethod
    def ortvalue_from_numpy(array: Any, device: NativeDevice) -> NativeValue:
        """Over the array's own memory if that is contiguous and of native byte order."""
        require_cpu(device)
        if not isinstance(array, np.ndarray) or _dtype_kind(array) == "string":
            raise Misuse(_NO_STRINGS, got=type(array).__name__)
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        return NativeValue(native if native.flags.c_contiguous else native.copy(order="C"))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(array: Array, onnx_element_type: int) -> NativeValue:
        """The array's bytes read as another type of the same size; sub-byte types are read packed."""
        dtype = element_type(int(onnx_element_type))
        array = array if array.flags.c_contiguous else array.copy(order="C")
        if dtype.kind == "string":
            raise Misuse(_NO_STRINGS)
        if dtype.bits < 8:
            packed = array.reshape(-1).view(np.uint8)[: dtype.nbytes(array.size)]
            return NativeValue(_unpacked(packed, dtype, array.size).reshape(array.shape))
        if array.dtype.itemsize * 8 != dtype.bits:
            raise Misuse(
                "Items size in the incoming array differs from that of the ONNX type",
                expected=dtype.bits // 8,
                got=array.dtype.itemsize,
            )
        return NativeValue(array.view(dtype.numpy))

    @staticmethod
    def ortvalue_from_shape_and_type(shape: Sequence[int], numpy_type: Any, device: NativeDevice) -> NativeValue:
        require_cpu(device)
        dtype = element_type(numpy_type)
        if dtype.kind == "string":
            raise Misuse(_NO_STRINGS)
        if any(d < 0 for d in shape):
            raise Misuse("Tensor shape.Size() must be >= 0", got=list(shape))
        return NativeValue(np.zeros(tuple(shape), dtype.numpy))

    ortvalue_from_shape_and_onnx_type = ortvalue_from_shape_and_type

    @staticmethod
    def ortvalue_from_shape_and_type_for_memory_info(
        shape: Sequence[int], numpy_type: Any, memory_info: OrtMemoryInfo
    ) -> NativeValue:
        if memory_info.name != "Cpu":
            raise Misuse("no allocator is registered for this memory", expected="Cpu", got=memory_info.name)
        return NativeValue.ortvalue_from_shape_and_type(shape, numpy_type, NativeDevice(CPU, 0, 0))

    ortvalue_from_shape_and_onnx_type_for_memory_info = ortvalue_from_shape_and_type_for_memory_info

    @staticmethod
    def ort_value_from_sparse_tensor(tensor: NativeSparseTensor) -> NativeValue:
        return NativeValue(tensor)

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> NativeValue:
        return NativeValue(dlpack.array_from_capsule(data, is_bool=is_bool_tensor))

    # -- inspection

    def is_tensor(self) -> bool:
        return isinstance(self.value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        return isinstance(self.value, (Coordinates, NativeSparseTensor))

    def is_tensor_sequence(self) -> bool:
        return isinstance(self.value, list) and all(isinstance(v, np.ndarray) for v in self.value)

    def has_value(self) -> bool:
        return self.filled and self.value is not None

    def shape(self) -> list[int]:
        if not self.is_tensor() and not self.is_sparse_tensor():
            raise Misuse("Only OrtValues that are Tensors/SparseTensors have a shape", got=self.data_type())
        return list(self.value.shape)

    def element_type(self) -> int:
        if self.dtype is None:
            raise Misuse("only tensors have an element type", got=self.data_type())
        return self.dtype.onnx

    def data_type(self) -> str:
        return type_name(self.value)

    def tensor_size_in_bytes(self) -> int:
        array = self._array("have a size in bytes")
        assert self.dtype is not None
        return self.dtype.nbytes(array.size)

    def data_ptr(self) -> int:
        return int(self._array("have a data pointer").ctypes.data)

    def device_name(self) -> str:
        return "Cpu"

    def numpy(self) -> Array:
        """The elements; the memory is shared."""
        return self._array("are convertible to Numpy objects")

    def as_sparse_tensor(self) -> NativeSparseTensor:
        if isinstance(self.value, Coordinates):
            return NativeSparseTensor.of(self.value)
        if not isinstance(self.value, NativeSparseTensor):
            raise Misuse("This OrtValue does not contain SparseTensor. Check data_type() value.", got=self.data_type())
        return self.value

    def to_dlpack(self) -> Any:
        return dlpack.capsule_of(self._array("can be exported through DLPack"))

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        self._array("can be exported through DLPack")
        return (1, 0)

    def _is_webgpu_buffer(self) -> bool:
        return False

    # -- modification

    def update_inplace(self, data: Any) -> None:
        """Overwrite the contents with data of the same size, converted to this element type."""
        target = self._array("can be updated in place")
        source = data.value if isinstance(data, NativeValue) else data
        if source.size != target.size:
            raise Misuse(
                "The input size of numpy arrays does not match the size of the OrtValue.",
                expected=target.shape,
                got=source.shape,
            )
        np.copyto(target, source.reshape(target.shape), casting="unsafe")

    def _array(self, what: str) -> Array:
        if not isinstance(self.value, np.ndarray):
            raise Misuse(f"Only OrtValues that are Tensors {what}", got=self.data_type())
        return self.value

    def __reduce__(self) -> tuple[Any, ...]:
        return (NativeValue, (self.value,))


class NativeValueVector:
    """A list of values (``capi``'s OrtValueVector)."""

    def __init__(self, values: Sequence[NativeValue] = ()) -> None:
        self._values = list(values)

    def push_back(self, value: Any, is_bool_tensor: bool = False) -> None:
        """A value, or a DLPack capsule."""
        native = value if isinstance(value, NativeValue) else NativeValue.from_dlpack(value, is_bool_tensor)
        self._values.append(native)

    def push_back_batch(
        self,
        tensors: Sequence[Any],
        pointers: Sequence[int],
        types: Sequence[Any],
        shapes: Sequence[Sequence[int]],
        devices: Sequence[NativeDevice],
    ) -> None:
        """Values over the memory at these addresses; ``tensors`` keep it alive."""
        for keep, pointer, spec, shape, device in zip(tensors, pointers, types, shapes, devices, strict=True):
            require_cpu(device)
            self._values.append(NativeValue(memory_at(pointer, element_type(spec), shape, keep)))

    def reserve(self, count: int) -> None:
        """No-op."""

    def shrink_to_fit(self) -> None:
        """No-op."""

    def element_type_at(self, idx: int) -> int:
        return self[idx].element_type()

    def bool_tensor_indices(self) -> list[int]:
        return [i for i, v in enumerate(self._values) if v.dtype is dtypes.bool_]

    def dlpack_at(self, index: int) -> Any:
        return self[index].to_dlpack()

    def to_dlpacks(self, to_tensor: Any) -> list[Any]:
        capsules = [v.to_dlpack() for v in self._values]
        return capsules if to_tensor is None else [to_tensor(c) for c in capsules]

    def replace(self, values: Sequence[NativeValue]) -> None:
        self._values = list(values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> NativeValue:
        return self._values[index]

    def __iter__(self) -> Iterator[NativeValue]:
        return iter(self._values)


def type_name(value: Any) -> str:
    """A run-time value's type, as onnxruntime writes it."""
    if isinstance(value, np.ndarray):
        return f"tensor({dtypes.of_numpy(value.dtype).ort})"
    if isinstance(value, (Coordinates, NativeSparseTensor)):
        return f"sparse_tensor({value.dtype.ort})"
    if isinstance(value, dict):
        key = "string" if any(isinstance(k, str) for k in value) else "int64"
        return f"map({key},tensor(float))"
    if isinstance(value, list):
        return f"seq({type_name(value[0])})" if value else "seq()"
    return "optional()" if value is None else type(value).__name__


def memory_at(pointer: int, dtype: DType, shape: Sequence[int], keep: Any = None) -> Array:
    """An array over memory that the caller guarantees to be valid; ``keep`` lives as long as the array."""

    if dtype.bits < 8:
        raise Misuse(f"memory of tensor({dtype.ort}) cannot be bound by address", hint="bind an OrtValue instead")
    count = int(np.prod(shape, dtype=object)) if len(shape) else 1
    if count < 0 or any(d < 0 for d in shape):
        raise Misuse("a negative dimension", got=list(shape))
    if not count:
        return np.empty(tuple(shape), dtype.numpy)
    if not pointer:
        raise Misuse("the address of the memory is 0", expected=f"{dtype.nbytes(count)} bytes")
    memory: Any = (ctypes.c_ubyte * dtype.nbytes(count)).from_address(int(pointer))
    memory._keep = keep
    array: Array = np.frombuffer(memory, dtype.numpy).reshape(tuple(shape))
    return array


def _dtype_kind(array: Array) -> str:
    try:
        return dtypes.of_numpy(array.dtype).kind
    except KeyError:
        raise Misuse(f"Numpy_type {array.dtype.num} can't be converted to MLDataType.", got=array.dtype) from None


def _unpacked(packed: Array, dtype: DType, count: int) -> Array:
    shifts = np.arange(0, 8, dtype.bits, dtype=np.uint8)
    fields = ((packed[:, None] >> shifts) & ((1 << dtype.bits) - 1)).reshape(-1)[:count]
    if dtype.kind == "float":
        return fields.astype(np.uint8).view(dtype.numpy)
    if dtype.kind == "int":
        sign = 1 << (dtype.bits - 1)
        return ((fields.astype(np.int8) ^ sign) - sign).astype(dtype.numpy)
    return fields.astype(dtype.numpy)
