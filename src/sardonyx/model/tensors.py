"""TensorProto and SparseTensorProto to constants: sizes checked at once, bytes fetched when needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.errors import BrokenGraph, OutOfBudget
from sardonyx.files import SourceFile
from sardonyx.ir.shape import count
from sardonyx.ir.tensor import Tensor
from sardonyx.model import wire
from sardonyx.model.external import Folder
from sardonyx.model.protos import subgraphs
from sardonyx.model.types import MAX_RANK, dtype_of, text

Array = np.ndarray[Any, Any]
Content: TypeAlias = "memoryview | SourceFile"

_FIXED = {wire.FLOATS: np.dtype("<f4"), wire.DOUBLES: np.dtype("<f8")}


class Payloads:
    """Finds the bytes of a tensor: in the skeleton, in a span of the source, or in an external file."""

    def __init__(self, source: Content, skeleton: wire.Skeleton, folder: Folder) -> None:
        self.source, self.skeleton, self.folder = source, skeleton, folder
        self.file: object = source.identity if isinstance(source, SourceFile) else object()
        """The identity of the source."""
        self.sparse_protos: list[onnx.SparseTensorProto] = []
        """The constants that dense placeholders stand for."""

    def set_sparse_aside(self, graph: onnx.GraphProto) -> None:
        """Replace sparse constants by dense placeholders, so that inference sees the types that their readers see."""
        for sparse in graph.sparse_initializer:
            self._stand_in(sparse, graph.initializer.add())
        del graph.sparse_initializer[:]
        for node in graph.node:
            for a in node.attribute:
                if a.HasField("sparse_tensor") and node.op_type == "Constant":
                    self._stand_in(a.sparse_tensor, a.t)
                    a.ClearField("sparse_tensor")
                    a.name, a.type = "value", onnx.AttributeProto.TENSOR
            for inner in subgraphs(node):
                self.set_sparse_aside(inner)

    def _stand_in(self, sparse: onnx.SparseTensorProto, dense: onnx.TensorProto) -> None:
        kept = onnx.SparseTensorProto()
        kept.CopyFrom(sparse)
        dense.name, dense.data_type = sparse.values.name, sparse.values.data_type
        dense.dims.extend(sparse.dims)
        dense.data_location = onnx.TensorProto.EXTERNAL
        dense.external_data.add(key=self._sparse_key, value=str(len(self.sparse_protos)))
        self.sparse_protos.append(kept)

    @property
    def _sparse_key(self) -> str:
        return f"{self.skeleton.key}-sparse"

    def tensor(self, proto: onnx.TensorProto, where: str) -> Tensor:
        dtype = dtype_of(proto.data_type, where)
        shape = _shape(proto.dims, dtype, where)
        if proto.HasField("segment"):
            raise BrokenGraph("segmented tensors are not part of ONNX's released format", where=where)
        keys = {text(e.key, where): text(e.value, where) for e in proto.external_data}
        if self._sparse_key in keys:
            return self.sparse(self.sparse_protos[int(keys[self._sparse_key])], where)
        span = keys.get(self.skeleton.key)
        origin: tuple[object, ...]
        place: tuple[int, ...]
        if span is not None:
            found = self.skeleton.spans[int(span)]
            fetch, origin = self._from_span(found, dtype, shape, where), (self.file, *found)
        elif proto.data_location == onnx.TensorProto.EXTERNAL:
            fetch, place = self._from_file(keys, dtype, shape, where)
            origin = (self.folder.identity(keys.get("location", "")), *place)
        else:
            return _inline(proto, dtype, shape, where)
        is_stored_as_used = fetch.func is from_raw and dtype.bits % 8 == 0 and sys.byteorder == "little"
        view = partial(_as_stored, *fetch.args) if is_stored_as_used else None
        packed = None
        if fetch.func is from_raw and dtype.bits < 8 and dtype.kind in ("int", "uint"):
            nbytes = (dtype.nbytes(count(shape)),)
            of_bytes = (*fetch.args[:2], dtypes.u8, nbytes)
            packed = Tensor(
                dtypes.u8, nbytes, partial(from_raw, *of_bytes), name=proto.name, origin=origin,
                view=partial(_as_stored, *of_bytes), is_cheap=True,
            )  # fmt: skip
        return Tensor(
            dtype, shape, fetch, name=proto.name, origin=origin, view=view, is_cheap=is_stored_as_used, packed=packed
        )

    def sparse(self, proto: onnx.SparseTensorProto, where: str) -> Tensor:
        """A sparse constant as a dense tensor, converted when it is first read."""
        values, indices = self.tensor(proto.values, where), self.tensor(proto.indices, where)
        shape = _shape(proto.dims, values.dtype, where)
        check_budget(values.dtype, shape, where)
        if len(values.shape) != 1 or indices.dtype is not dtypes.i64:
            raise BrokenGraph(
                "a sparse tensor has a vector of values and i64 indices",
                where=where,
                got=f"values {values.type}, indices {indices.type}",
            )
        if indices.shape not in ((values.size,), (values.size, len(shape))):
            raise BrokenGraph("a sparse tensor's indices do not fit its values", where=where, got=indices.shape)
        return Tensor(values.dtype, shape, partial(_densify, values, indices, shape, where), name=proto.values.name)

    def _from_span(self, span: wire.Span, dtype: DType, shape: tuple[int, ...], where: str) -> partial[Array]:
        if span.field == wire.RAW:
            _check_nbytes(span.nbytes, dtype, shape, where)
            return partial(from_raw, self.source, span.offset, dtype, shape)
        fixed = _FIXED.get(span.field)
        if fixed is not None and fixed == dtype.numpy:
            _check_nbytes(span.nbytes, dtype, shape, where)
            return partial(from_raw, self.source, span.offset, dtype, shape)
        check_budget(dtype, shape, where)
        if count(shape) > 8 * span.nbytes:
            raise BrokenGraph("a tensor holds fewer elements than its shape", where=where, got=list(shape))
        return partial(_from_field, self.source, span, dtype, shape, where)

    def _from_file(
        self, keys: dict[str, str], dtype: DType, shape: tuple[int, ...], where: str
    ) -> tuple[partial[Array], tuple[int, int]]:
        data = self.folder.open(keys.get("location", ""), where)
        offset = _natural(keys.get("offset") or "0", where)
        nbytes = _natural(keys.get("length") or str(dtype.nbytes(count(shape))), where)
        if offset + nbytes > len(data):
            raise BrokenGraph(
                "external data ends beyond its file",
                where=where,
                expected=f"at most {len(data)} bytes",
                got=f"offset {offset} + length {nbytes}",
            )
        _check_nbytes(nbytes, dtype, shape, where)
        return partial(from_raw, data, offset, dtype, shape), (offset, nbytes)


def _shape(dims: Sequence[int], dtype: DType, where: str) -> tuple[int, ...]:
    """Dimensions that numpy allows: an array's size in bytes must fit in 63 bits, zero-sized dimensions not counted."""
    shape = tuple(dims)
    if any(d < 0 for d in shape):
        raise BrokenGraph("a tensor has a negative dimension", where=where, got=list(shape[:MAX_RANK]))
    if len(shape) > MAX_RANK:
        raise BrokenGraph("a tensor has too many dimensions", where=where, expected=MAX_RANK, got=len(shape))
    if count([d for d in shape if d]) * dtype.numpy.itemsize >= 1 << 63:
        raise BrokenGraph("a tensor's size overflows 63 bits", where=where, got=f"{dtype}{list(shape)}")
    return shape


def _natural(digits: str, where: str) -> int:
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 20:
        raise BrokenGraph("external data offset or length is not a natural number", where=where, got=repr(digits[:40]))
    return int(digits)


def from_raw(data: Content, offset: int, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Elements stored as raw little-endian bytes; a view where they are in memory, whole bytes and aligned."""
    n = count(shape)
    raw = _part(data, offset, dtype.nbytes(n))
    if dtype.bits % 8:
        return _unpack(raw, dtype, n).reshape(shape)
    array = raw.view(dtype.numpy.newbyteorder("<")).reshape(shape)
    if sys.byteorder == "big" or not array.flags.aligned:
        array = array.astype(dtype.numpy)
    elements: Array = array.view(dtype.numpy)
    return elements


def _part(data: Content, offset: int, nbytes: int) -> Array:
    """Bytes of the content: a view if it is in memory, else read from the file."""
    if not isinstance(data, SourceFile):
        return np.frombuffer(data, np.uint8, nbytes, offset)
    raw: Array = np.empty(nbytes, np.uint8)
    data.read_into(raw, offset)
    return raw


def _as_stored(data: Content, offset: int, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Raw elements for a single use, perhaps unaligned."""
    return _part(data, offset, dtype.nbytes(count(shape))).view(dtype.numpy).reshape(shape)


def _unpack(packed: Array, dtype: DType, n: int) -> Array:
    """Sub-byte elements, least significant bits first, one numpy element each."""
    if 8 % dtype.bits:
        bits = np.unpackbits(packed, bitorder="little")[: n * dtype.bits].reshape(n, dtype.bits)
        codes = np.packbits(bits, axis=1, bitorder="little").reshape(n)
    else:
        shifts = np.arange(0, 8, dtype.bits, dtype=np.uint8)
        codes = ((packed[:, None] >> shifts) & np.uint8(2**dtype.bits - 1)).reshape(-1)[:n]
    if dtype.kind == "int":
        spare = 8 - dtype.bits
        return (codes << spare).view(np.int8).__rshift__(spare).astype(dtype.numpy)
    return codes.astype(dtype.numpy) if dtype.kind == "uint" else codes.view(dtype.numpy)


def _inline(proto: onnx.TensorProto, dtype: DType, shape: tuple[int, ...], where: str) -> Tensor:
    check_budget(dtype, shape, where)
    try:
        if dtype is dtypes.string:
            array = np.array([s.decode("utf-8", "surrogateescape") for s in proto.string_data], object)
        else:
            array = np.asarray(numpy_helper.to_array(proto))
        tensor = Tensor.of(array.reshape(shape), proto.name)
    except (ValueError, TypeError, OverflowError, KeyError) as e:
        raise BrokenGraph(
            "a tensor's data does not fit its shape and type", where=where, expected=f"{dtype}{list(shape)}", got=str(e)
        ) from None
    if tensor.dtype is not dtype:
        raise BrokenGraph("a tensor's data does not fit its type", where=where, expected=dtype, got=tensor.dtype)
    return tensor


def _from_field(source: Content, span: wire.Span, dtype: DType, shape: tuple[int, ...], where: str) -> Array:
    number, data = span.field, _part(source, span.offset, span.nbytes)
    proto = onnx.TensorProto(dims=shape, data_type=dtype.onnx)
    try:
        proto.MergeFromString(wire.varint(number << 3 | 2) + wire.varint(len(data)) + data.tobytes())
    except Exception as e:
        raise BrokenGraph("a tensor's data cannot be decoded", where=where, got=str(e)) from None
    return _inline(proto, dtype, shape, where).numpy()


def _densify(values: Tensor, indices: Tensor, shape: tuple[int, ...], where: str) -> Array:
    at = indices.numpy()
    bounds = np.array(shape, np.int64) if at.ndim == 2 else np.int64(count(shape))
    if at.size and (at.min() < 0 or (at >= bounds).any()):
        raise BrokenGraph("a sparse tensor's index is out of bounds", where=where, expected=list(shape))
    dense = np.zeros(shape, values.dtype.numpy)
    if at.ndim == 2:
        dense[tuple(at.T)] = values.numpy()
    else:
        dense.reshape(-1)[at] = values.numpy()
    return dense


def _check_nbytes(nbytes: int, dtype: DType, shape: tuple[int, ...], where: str) -> None:
    if dtype is dtypes.string:
        raise BrokenGraph("strings cannot be stored as raw bytes", where=where)
    if nbytes != dtype.nbytes(count(shape)):
        raise BrokenGraph(
            "a tensor's bytes do not fill its shape",
            where=where,
            expected=f"{dtype.nbytes(count(shape))} bytes for {dtype}{list(shape)}",
            got=f"{nbytes} bytes",
        )


def check_budget(dtype: DType, shape: tuple[int, ...], where: str) -> None:
    """Refuse a tensor larger than this machine's memory, before it is allocated."""
    if count(shape) * max(1, dtype.numpy.itemsize) > _memory_nbytes():
        raise OutOfBudget("a tensor is larger than this machine's memory", where=where, got=f"{dtype}{list(shape)}")


def _memory_nbytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 1 << 40
