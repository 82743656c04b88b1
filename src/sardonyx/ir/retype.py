"""Element types of values changed: in a type, and by a Cast node."""

from __future__ import annotations

from dataclasses import replace

from sardonyx.dtypes import DType
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import OptionalType, SequenceType, TensorType, ValueType


def has_elements(t: ValueType | None, dtype: DType) -> bool:
    """Whether a tensor, or the tensors of a sequence or an optional value, have this element type."""
    if isinstance(t, SequenceType | OptionalType):
        return has_elements(t.elem, dtype)
    return isinstance(t, TensorType) and t.dtype is dtype


def with_elements(t: ValueType | None, dtype: DType) -> ValueType | None:
    """The type with another element type; types without tensors stay."""
    if isinstance(t, SequenceType | OptionalType):
        return type(t)(with_elements(t.elem, dtype))
    return replace(t, dtype=dtype) if isinstance(t, TensorType) else t


def insert_cast(graph: Graph, value: Value, dtype: DType, before: Node | None) -> Value:
    """The value in another element type, by a Cast ``before`` a node or at the graph's end."""
    out = Value(f"{value.name}_{dtype.name}", with_elements(value.type, dtype))
    node = Node("Cast", [value], [out], {"to": dtype.onnx}, name=f"{value.name}_to_{dtype.name}")
    if before is None:
        graph.append(node)
    else:
        graph.insert(node, before=before)
    return out
