"""LoRA adapters: files of named tensors that are fed to a run in addition to its inputs.

The file is a flatbuffer, read and written here by hand::

    Adapter    format_version, adapter_version, model_version, [Parameter]
    Parameter  name, [dims], data_type, [raw bytes]
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import InvalidArgument
from sardonyx.ir import shape as shapes
from sardonyx.session.misuse import Misuse
from sardonyx.session.native_values import NativeValue
from sardonyx.session.values import OrtValue
from sardonyx.writing import write_whole

Array = np.ndarray[Any, Any]
IDENTIFIER = b"TORT"
FORMAT_VERSION = 1
_VTABLE = struct.pack("<6H", 12, 20, 4, 8, 12, 16)
"""Both tables have four fields of four bytes after the table's own offset."""


class NativeAdapterFormat:
    """An adapter's contents (``capi``'s AdapterFormat)."""

    def __init__(self) -> None:
        self.format_version = FORMAT_VERSION
        self.adapter_version = 0
        self.model_version = 0
        self.parameters: dict[str, NativeValue] = {}

    @staticmethod
    def read_adapter(file_path: str | os.PathLike[str]) -> NativeAdapterFormat:
        try:
            with open(file_path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise Misuse(f"the adapter cannot be read ({error.strerror})", where=os.fspath(file_path)) from None
        try:
            return _parsed(data)
        except (struct.error, IndexError, ValueError, KeyError, UnicodeDecodeError) as error:
            raise InvalidArgument("the adapter file is damaged", where=os.fspath(file_path), got=str(error)) from None

    def export_adapter(self, file_path: str | os.PathLike[str]) -> None:
        content = _written(self)
        try:
            write_whole(os.fspath(file_path), [content])
        except OSError as error:
            raise Misuse(f"the adapter cannot be written ({error.strerror})", where=os.fspath(file_path)) from None


class AdapterFormat:
    """Creates and reads adapter files."""

    def __init__(self, adapter: NativeAdapterFormat | None = None) -> None:
        self._adapter = adapter or NativeAdapterFormat()

    @staticmethod
    def read_adapter(file_path: str | os.PathLike[str]) -> AdapterFormat:
        return AdapterFormat(NativeAdapterFormat.read_adapter(file_path))

    def export_adapter(self, file_path: str | os.PathLike[str]) -> None:
        self._adapter.export_adapter(file_path)

    def get_format_version(self) -> int:
        return self._adapter.format_version

    def set_adapter_version(self, adapter_version: int) -> None:
        self._adapter.adapter_version = adapter_version

    def get_adapter_version(self) -> int:
        return self._adapter.adapter_version

    def set_model_version(self, model_version: int) -> None:
        self._adapter.model_version = model_version

    def get_model_version(self) -> int:
        return self._adapter.model_version

    def set_parameters(self, params: Mapping[str, OrtValue]) -> None:
        self._adapter.parameters = {k: v._ortvalue for k, v in params.items()}

    def get_parameters(self) -> dict[str, OrtValue]:
        return {k: OrtValue(v) for k, v in self._adapter.parameters.items()}


class LoraAdapter:
    """An adapter for ``RunOptions.add_active_adapter``."""

    def __init__(self) -> None:
        self._parameters: dict[str, Array] = {}

    def Load(self, file_path: str | os.PathLike[str]) -> None:
        read = NativeAdapterFormat.read_adapter(file_path)
        self._parameters = {name: value.numpy() for name, value in read.parameters.items()}


def _parsed(data: bytes) -> NativeAdapterFormat:
    if data[4:8] != IDENTIFIER:
        raise ValueError(f"the identifier is {data[4:8]!r}, not {IDENTIFIER!r}")
    root = _offset(data, 0)
    adapter = NativeAdapterFormat()
    adapter.format_version = _number(data, root, 0)
    if adapter.format_version != FORMAT_VERSION:
        raise ValueError(f"format version {adapter.format_version}, where {FORMAT_VERSION} is known")
    adapter.adapter_version, adapter.model_version = _number(data, root, 1), _number(data, root, 2)
    at, count = _vector(data, root, 3)
    for i in range(count):
        name, value = _parameter(data, _offset(data, at + 4 * i))
        adapter.parameters[name] = NativeValue(value)
    return adapter


def _parameter(data: bytes, table: int) -> tuple[str, Array]:
    at, length = _vector(data, table, 0)
    name = data[at : at + length].decode()
    at, rank = _vector(data, table, 1)
    shape = struct.unpack_from(f"<{rank}q", data, at)
    dtype = dtypes.of_onnx(_number(data, table, 2))
    at, nbytes = _vector(data, table, 3)
    if min(shape, default=1) < 0 or dtype.bits < 8 or nbytes != dtype.nbytes(shapes.count(shape)):
        raise ValueError(f"parameter {name!r} of tensor({dtype.ort}){list(shape)} has {nbytes} bytes")
    return name, np.frombuffer(data, dtype.numpy, shapes.count(shape), at).reshape(shape)


def _field(data: bytes, table: int, index: int) -> int:
    """The position of a table's field; 0 if it has its default value."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    slot = 4 + 2 * index
    if vtable < 0 or slot >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset: int = struct.unpack_from("<H", data, vtable + slot)[0]
    return table + offset if offset else 0


def _number(data: bytes, table: int, index: int) -> int:
    at = _field(data, table, index)
    return int(struct.unpack_from("<i", data, at)[0]) if at else 0


def _offset(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _vector(data: bytes, table: int, index: int) -> tuple[int, int]:
    """The position of a vector's elements, and their number."""
    at = _field(data, table, index)
    if not at:
        return 0, 0
    start = _offset(data, at)
    return start + 4, int(struct.unpack_from("<I", data, start)[0])


def _written(adapter: NativeAdapterFormat) -> bytes:
    out = bytearray(struct.pack("<I4s", 20, IDENTIFIER) + _VTABLE)
    out += struct.pack("<4iI", 12, adapter.format_version, adapter.adapter_version, adapter.model_version, 4)
    names = sorted(adapter.parameters)
    vector = len(out)
    out += struct.pack("<I", len(names)) + bytes(4 * len(names))
    for i, name in enumerate(names):
        array = adapter.parameters[name].numpy()
        dtype = dtypes.of_numpy(array.dtype)
        if dtype.bits < 8:
            raise Misuse(f"an adapter cannot hold tensor({dtype.ort})", where=f"parameter {name!r}")
        vtable = len(out)
        out += _VTABLE
        table = len(out)
        struct.pack_into("<I", out, vector + 4 + 4 * i, table - (vector + 4 + 4 * i))
        out += struct.pack("<iIIiI", table - vtable, 0, 0, dtype.onnx, 0)
        text = name.encode()
        _append(out, table + 4, struct.pack("<I", len(text)) + text + b"\0", align=4)
        _append(out, table + 8, struct.pack(f"<I{array.ndim}q", array.ndim, *array.shape), align=8)
        _append(out, table + 16, struct.pack("<I", array.nbytes) + array.tobytes(), align=8)
        out += bytes(-len(out) % 4)
    return bytes(out)


def _append(out: bytearray, slot: int, vector: bytes, *, align: int) -> None:
    """Append a vector with aligned elements after its four-byte length, and store its offset in ``slot``."""
    out += bytes(-(len(out) + 4) % align)
    struct.pack_into("<I", out, slot, len(out) - slot)
    out += vector
