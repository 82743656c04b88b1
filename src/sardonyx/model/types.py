"""TypeProto to our types and back."""

from __future__ import annotations

import onnx

from sardonyx import dtypes
from sardonyx.errors import InvalidGraph
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
        return OpaqueType(proto.opaque_type.domain, proto.opaque_type.name)
    return None


def dtype_of(code: int, where: str) -> dtypes.DType:
    try:
        return dtypes.of_onnx(code)
    except KeyError:
        raise InvalidGraph("unknown element type", where=where or None, got=code) from None


def shape_from(proto: onnx.TensorShapeProto, where: str = "") -> Shape:
    return tuple(_dim(d) for d in proto.dim)


def _dim(d: onnx.TensorShapeProto.Dimension) -> Dim:
    """A negative dimension is an old exporter's way to say that it is not known."""
    kind = d.WhichOneof("value")
    if kind == "dim_value":
        return d.dim_value if d.dim_value >= 0 else None
    return (d.dim_param or None) if kind == "dim_param" else None


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
                elif isinstance(dim, str):
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
