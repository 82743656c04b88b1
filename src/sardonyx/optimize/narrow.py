"""Computing in f32 what a model states in f64.

Values of f64 become f32; a Cast stands after each input and before each output of the model, which keep their
types. Operators of other domains than ai.onnx may need f64: they read and write it, between Casts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.errors import InvalidArgument
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.retype import has_elements, insert_cast, with_elements
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import OptionalType, SequenceType, TensorType, ValueType

TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "output_dtype", "stash_type", "softmax_precision")
"""Attributes that state an element type."""


def narrow_doubles(graph: Graph) -> int:
    """Rewrite a graph and its bodies in place; returns how many nodes compute in f32 that computed in f64."""
    given = [v for v in (*graph.inputs, *graph.initializers.values()) if _is_wide(v.type) and not v.is_const]
    for value in (*given, *graph.outputs):
        if _is_wide(value.type) and not isinstance(value.type, TensorType):
            raise InvalidArgument("sequences of float64 that enter or leave a model are not narrowed", where=value.name)
    outputs = [i for i, value in enumerate(graph.outputs) if _is_wide(value.type)]
    graphs = list(_graphs(graph))
    wide = {v for each in graphs for v in _values(each) if _is_wide(v.type)}
    count = sum(any(v in wide for v in node.outputs) for each in graphs for node in each.nodes if not node.domain)
    for value in wide.difference(given):
        value.type, value.stated = _narrowed_type(value.type), _narrowed_type(value.stated)
        value.const = None if value.const is None else _narrowed(value.const)
    first = next(graph.nodes, None)
    for each in graphs:
        for node in list(each.nodes):
            if node.domain:
                _keep(each, node, wide)
            else:
                node.attrs.update({name: _attribute(name, attr) for name, attr in node.attrs.items()})
    for value in dict.fromkeys(given):
        _follow(graph, value, dtypes.f32, before=first)
    for i in outputs:
        graph.set_output(i, insert_cast(graph, graph.outputs[i], dtypes.f64, before=None))
    return count


def _graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for node in graph.nodes:
        for _, body in node.subgraphs():
            yield from _graphs(body)


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph.nodes:
        yield from node.outputs


def _keep(graph: Graph, node: Node, wide: set[Value]) -> None:
    """Let a node read and write f64."""
    for i, value in enumerate(node.inputs):
        if value in wide:
            assert value is not None
            node.set_input(i, insert_cast(graph, value, dtypes.f64, before=node))
    for out in node.outputs:
        if out in wide:
            out.type = with_elements(out.type, dtypes.f64)
            _follow(graph, out, dtypes.f32, before=node._next)


def _follow(graph: Graph, value: Value, dtype: DType, before: Node | None) -> None:
    """Have all readers of a value read a Cast of it."""
    made = insert_cast(graph, value, dtype, before)
    cast = made.producer
    assert cast is not None
    graph.replace_uses(value, made)
    cast.set_input(0, value)


def _attribute(name: str, attr: Any) -> Any:
    if isinstance(attr, Tensor):
        return _narrowed(attr) if attr.dtype is dtypes.f64 else attr
    if name in TYPE_ATTRIBUTES and attr == dtypes.f64.onnx:
        return dtypes.f32.onnx
    return _narrowed_type(attr) if isinstance(attr, (TensorType, SequenceType, OptionalType)) else attr


def _narrowed(tensor: Tensor) -> Tensor:
    """A constant in f32, computed on demand."""
    return Tensor(dtypes.f32, tensor.shape, lambda: tensor.numpy().astype(np.float32), name=tensor.name)


def _is_wide(t: ValueType | None) -> bool:
    return has_elements(t, dtypes.f64)


def _narrowed_type(t: ValueType | None) -> ValueType | None:
    return with_elements(t, dtypes.f32) if _is_wide(t) else t
