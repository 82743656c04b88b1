"""The types of values: tensor, sparse tensor, sequence, optional, map, opaque."""

from __future__ import annotations

from typing import TypeAlias

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir import shape as shapes
from sardonyx.ir.shape import Shape
from sardonyx.records import Record


class Quantization(Record):
    """How integers stand for reals: real = (q - zero_point) * scale, per tensor, per axis or per block of an axis."""

    scale: str
    zero_point: str | None = None
    axis: int | None = None
    block: int | None = None


class TensorType(Record):
    dtype: DType
    shape: Shape | None = None
    layout: str | None = None
    quantization: Quantization | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def nbytes(self) -> int | None:
        """Bytes when every dimension is known; sub-byte types are counted packed."""
        if self.shape is None or not shapes.is_static(self.shape):
            return None
        return self.dtype.nbytes(shapes.count([d for d in self.shape if isinstance(d, int)]))

    def __str__(self) -> str:
        return f"{self.dtype.name}{'' if self.shape is None else shapes.text(self.shape)}"


class SparseTensorType(Record):
    dtype: DType
    shape: Shape | None = None

    def __str__(self) -> str:
        return f"sparse({self.dtype.name}{'' if self.shape is None else shapes.text(self.shape)})"


class SequenceType(Record):
    elem: ValueType | None

    def __str__(self) -> str:
        return f"seq({self.elem})"


class OptionalType(Record):
    elem: ValueType | None

    def __str__(self) -> str:
        return f"optional({self.elem})"


class MapType(Record):
    key: DType
    value: ValueType | None

    def __str__(self) -> str:
        return f"map({self.key.name}, {self.value})"


class OpaqueType(Record):
    domain: str
    name: str

    def __str__(self) -> str:
        return f"opaque({self.domain}, {self.name})"


ValueType: TypeAlias = "TensorType | SparseTensorType | SequenceType | OptionalType | MapType | OpaqueType"


def ort_name(t: ValueType | None) -> str:
    """The type as onnxruntime's ``NodeArg.type`` writes it: ``seq(map(int64,tensor(float)))``."""
    if isinstance(t, TensorType):
        return f"tensor({t.dtype.ort})"
    if isinstance(t, SparseTensorType):
        return f"sparse_tensor({t.dtype.ort})"
    if isinstance(t, SequenceType):
        return f"seq({ort_name(t.elem)})"
    if isinstance(t, OptionalType):
        return f"optional({ort_name(t.elem)})"
    if isinstance(t, MapType):
        return f"map({t.key.ort},{ort_name(t.value)})"
    if isinstance(t, OpaqueType):
        return f"opaque({t.domain},{t.name})"
    return ""


def dtype_of(t: ValueType | None) -> DType | None:
    return t.dtype if isinstance(t, (TensorType, SparseTensorType)) else None


def is_float(t: ValueType | None) -> bool:
    d = dtype_of(t)
    return d is not None and d.is_float and d is not dtypes.string


def merge(a: ValueType | None, b: ValueType | None) -> ValueType | None:
    """The more precise of two statements about a value; if they contradict each other, the first."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype is b.dtype:
        return TensorType(a.dtype, shapes.merge(a.shape, b.shape), a.layout or b.layout, a.quantization)
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return SequenceType(merge(a.elem, b.elem))
    if isinstance(a, OptionalType) and isinstance(b, OptionalType):
        return OptionalType(merge(a.elem, b.elem))
    return a


def described(found: ValueType | None, stated: ValueType | None) -> ValueType | None:
    """A value's type for display: inferred numbers first, then what the model states, then inferred names."""
    if not isinstance(found, TensorType) or not isinstance(stated, TensorType):
        return stated if found is None else found
    if found.shape is None or stated.shape is None or len(found.shape) != len(stated.shape):
        return TensorType(found.dtype, stated.shape if found.shape is None else found.shape)
    pairs = zip(found.shape, stated.shape, strict=True)
    return TensorType(found.dtype, tuple(f if isinstance(f, int) or s is None else s for f, s in pairs))


def checked_by_feeds(t: ValueType | None) -> ValueType | None:
    """The part of an input's declared type that feeds are checked against: not the shapes of sequence elements."""
    if isinstance(t, SequenceType):
        return SequenceType(_without_shape(t.elem))
    if isinstance(t, OptionalType):
        return OptionalType(checked_by_feeds(t.elem))
    return t


def _without_shape(t: ValueType | None) -> ValueType | None:
    return TensorType(t.dtype) if isinstance(t, TensorType) else checked_by_feeds(t)
