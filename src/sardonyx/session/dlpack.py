"""Import and export of tensors through DLPack, without copies.

numpy's DLPack support lacks bfloat16 and float8, so capsules are read field by field, and the type of exported ones is
patched.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.session.misuse import Misuse

Array = np.ndarray[Any, Any]
CPU_DEVICES = (1, 3, 11)
"""kDLCPU, and the pinned memory of CUDA and ROCm, which the CPU can read."""

_KINDS = {"int": 0, "uint": 1, "float": 2, "complex": 5, "bool": 6}
_CODES: dict[tuple[int, int], str] = {
    (4, 16): "bf16", (7, 8): "f8e5m2", (10, 8): "f8e4m3fn", (11, 8): "f8e4m3fnuz", (12, 8): "f8e5m2",
    (13, 8): "f8e5m2fnuz", (14, 8): "f8e8m0",
}  # fmt: skip
_CODES_OUT = {"bf16": 4, "f8e4m3fn": 10, "f8e4m3fnuz": 11, "f8e5m2": 12, "f8e5m2fnuz": 13, "f8e8m0": 14}


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_api = ctypes.pythonapi
_api.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
_USED = ctypes.c_char_p(b"used_dltensor")
"""Capsules store the pointer to their name, so it must live as long as the process."""


def _managed(capsule: Any) -> _DLManagedTensor:
    if type(capsule).__name__ != "PyCapsule" or not _api.PyCapsule_IsValid(capsule, b"dltensor"):
        raise TypeError("from_dlpack expected a valid DLPack capsule named 'dltensor'")
    return _DLManagedTensor.from_address(_api.PyCapsule_GetPointer(capsule, b"dltensor"))


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Owner:
    """Another library's tensor; released when the last view of its memory is gone."""

    def __init__(self, managed: _DLManagedTensor) -> None:
        self._managed = managed

    def __del__(self) -> None:
        if self._managed.deleter:
            _Deleter(self._managed.deleter)(ctypes.addressof(self._managed))


def array_from_capsule(capsule: Any, *, is_bool: bool = False) -> Array:
    """A contiguous array over the capsule's memory; consumes the capsule."""
    managed = _managed(capsule)
    tensor = managed.tensor
    if tensor.device_type not in CPU_DEVICES:
        raise Misuse("the tensor is on a device that is not present", expected="CPU", got=tensor.device_type)
    dtype = _dtype_of(tensor.code, tensor.bits, tensor.lanes)
    if is_bool and dtype.name == "u8":
        dtype = dtypes.bool_
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if not _contiguous(tensor, shape):
        raise Misuse("only contiguous tensors can be taken over through DLPack", hint="make a contiguous copy first")
    if not all(shape):
        return np.empty(shape, dtype.numpy)
    memory: Any = (ctypes.c_ubyte * dtype.nbytes(int(np.prod(shape)))).from_address(tensor.data + tensor.byte_offset)
    memory._owner = _Owner(managed)
    _api.PyCapsule_SetName(capsule, _USED)
    array: Array = np.frombuffer(memory, dtype.numpy).reshape(shape)
    return array


def capsule_of(array: Array) -> Any:
    """A DLPack capsule over the array's memory."""
    dtype = dtypes.of_numpy(array.dtype)
    if dtype.name not in _CODES_OUT:
        if dtype.kind == "string" or dtype.bits < 8:
            raise Misuse(f"tensor({dtype.ort}) cannot be exported through DLPack")
        return _exported(array)
    capsule = _exported(array.view(f"u{dtype.bits // 8}"))
    _managed(capsule).tensor.code = _CODES_OUT[dtype.name]
    return capsule


def _exported(array: Array) -> Any:
    try:
        return array.__dlpack__()
    except BufferError as error:
        raise Misuse(f"the memory cannot be exported through DLPack: {error}") from None


def is_uint8(capsule: Any) -> bool:
    tensor = _managed(capsule).tensor
    return bool(tensor.code == _KINDS["uint"] and tensor.bits == 8)


def array_of(tensor: Any) -> Array:
    """A contiguous CPU array of an object with ``__dlpack__``, such as a torch tensor."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach()
    if hasattr(tensor, "contiguous"):
        tensor = tensor.contiguous()
    device = tensor.__dlpack_device__()
    if device[0] not in CPU_DEVICES:
        raise Misuse("the tensor is on a device that is not present", expected="CPU", got=tuple(device))
    return array_from_capsule(tensor.__dlpack__(), is_bool="bool" in str(getattr(tensor, "dtype", "")))


def _dtype_of(code: int, bits: int, lanes: int) -> DType:
    name = _CODES.get((code, bits))
    if lanes == 1 and name is not None:
        return dtypes.of_name(name)
    for dtype in dtypes.every():
        if lanes == 1 and dtype.bits == bits and _KINDS.get(dtype.kind) == code:
            return dtype
    raise Misuse("ONNX has no such element type", got=f"DLPack code {code}, {bits} bits, {lanes} lanes")


def _contiguous(tensor: _DLTensor, shape: tuple[int, ...]) -> bool:
    if not tensor.strides or not all(shape):
        return True
    step = 1
    for i in reversed(range(len(shape))):
        if shape[i] != 1 and tensor.strides[i] != step:
            return False
        step *= shape[i]
    return True
