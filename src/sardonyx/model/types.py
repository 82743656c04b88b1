"""TypeProto to our types and back."""

from __future__ import annotations

import onnx

from sardonyx import dtypes
from sardonyx.errors import BrokenGraph, InvalidProtobuf
from sardonyx.ir.dims import is_fresh
from sardonyx.ir.shape import Dim, Shape
from sardonyx.ir.types import (
    MapType,
    OpaqueType,
    OptionalType,
    SequenceType,
    SparseTensorType,
    TensorType,
    ValueType,
)

MAX_RANK = 64
"""numpy's bound on dimensions."""


def from_proto(proto: onnx.TypeProto, where: str = "") -> ValueType | None:
    """The type a model states, or None when it states none."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        t = getattr(proto, kind)
        if t.elem_type == 0:
            return None
        make = TensorType if kind == "tensor_type" else SparseTensorType
        return make(dtype_of(t.elem_type, where), shape_from(t.shape, where) if t.HasField("shape") else None)
    if kind == "sequence_type":
        return SequenceType(from_proto(proto.sequence_type.elem_type, where))
    if kind == "optional_type":
        return OptionalType(from_proto(proto.optional_type.elem_type, where))
    if kind == "map_type":
        return MapType(dtype_of(proto.map_type.key_type, where), from_proto(proto.map_type.value_type, where))
    if kind == "opaque_type":
        return OpaqueType(text(proto.opaque_type.domain, where), text(proto.opaque_type.name, where))
    return None


def dtype_of(code: int, where: str) -> dtypes.DType:
    try:
        return dtypes.of_onnx(code)
    except KeyError:
        raise BrokenGraph("unknown element type", where=where or None, got=code) from None


def text(value: str | bytes, where: str) -> str:
    """A string of the file; protobuf returns bytes if it is not UTF-8."""
    if isinstance(value, bytes):
        raise InvalidProtobuf("a name or text is not UTF-8", where=where, got=repr(value[:80]))
    return value


def shape_from(proto: onnx.TensorShapeProto, where: str = "") -> Shape:
    if len(proto.dim) > MAX_RANK:
        raise BrokenGraph(
            "a tensor has too many dimensions", where=where or None, expected=MAX_RANK, got=len(proto.dim)
        )
    return tuple(_dim(d, where) for d in proto.dim)


def _dim(d: onnx.TensorShapeProto.Dimension, where: str) -> Dim:
    """A dimension; old exporters write a negative number for an unknown one."""
    kind = d.WhichOneof("value")
    if kind == "dim_value":
        return d.dim_value if d.dim_value >= 0 else None
    return (text(d.dim_param, where) or None) if kind == "dim_param" else None


def to_proto(t: ValueType | None) -> onnx.TypeProto:
    proto = onnx.TypeProto()
    if isinstance(t, (TensorType, SparseTensorType)):
        body = proto.tensor_type if isinstance(t, TensorType) else proto.sparse_tensor_type
        body.elem_type = t.dtype.onnx
        if t.shape is not None:
            shape = body.shape
            shape.SetInParent()
            for dim in t.shape:
                d = shape.dim.add()
                if isinstance(dim, int):
                    d.dim_value = dim
                elif isinstance(dim, str) and not is_fresh(dim):
                    d.dim_param = dim
    elif isinstance(t, (SequenceType, OptionalType)):
        holder = proto.sequence_type if isinstance(t, SequenceType) else proto.optional_type
        holder.elem_type.CopyFrom(to_proto(t.elem))
    elif isinstance(t, MapType):
        proto.map_type.key_type = t.key.onnx
        proto.map_type.value_type.CopyFrom(to_proto(t.value))
    elif isinstance(t, OpaqueType):
        proto.opaque_type.domain, proto.opaque_type.name = t.domain, t.name
    return proto
