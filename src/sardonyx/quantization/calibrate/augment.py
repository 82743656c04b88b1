"""Models with the tensors to calibrate as their outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import onnx

from sardonyx.ir.builder import Builder
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Graph, Model, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType
from sardonyx.model.save import Names, model_to_proto, tensor_to_proto
from sardonyx.quantization.source import is_real, place_after

_SMALL_NBYTES = 1 << 10
"""Constants up to this size are part of the model: shapes are inferred from them."""


def tensors_to_calibrate(graph: Graph, op_types: Collection[str] | None) -> list[Value]:
    """The computed reals and the inputs that nodes of these types read or write, in order; all if None or empty."""
    found: dict[Value, None] = {}
    for node in graph.nodes:
        if not op_types or node.op_type in op_types:
            for value in (*node.inputs, *node.outputs):
                if value is not None and value.name and value.const is None and is_real(value):
                    found[value] = None
    return list(found)


def with_tensors(model: Model, names: Collection[str]) -> Model:
    """A copy whose outputs are the tensors of these names."""
    made = clone(model)
    values = values_by_name(made.graph)
    made.graph.drop_outputs()
    for name in names:
        made.graph.add_output(values[name], name)
    made.declared_outputs = {}
    return made


def with_extremes(model: Model, names: Sequence[str], *, per_channel: bool = False) -> Model:
    """A copy whose outputs are the smallest and the largest values of these tensors, ``name_ReduceMin`` and
    ``name_ReduceMax``; of each channel of axis 1 with ``per_channel``.
    """
    made = clone(model)
    graph = made.graph
    values = values_by_name(graph)
    graph.drop_outputs()
    made.declared_outputs = {}
    for name in names:
        value = values[name]
        op = Builder(graph, place_after(graph, value), prefix=f"{name}/calibrate")
        for reduction in ("ReduceMin", "ReduceMax"):
            graph.add_output(_reduced(op, reduction, value, made, per_channel), f"{name}_{reduction}")
    return made


def _reduced(op: Builder, reduction: str, value: Value, model: Model, per_channel: bool) -> Value:
    rank = value.rank
    others = [i for i in range(rank) if i != 1] if per_channel and rank is not None and rank > 1 else None
    inputs: list[Any] = [value]
    attrs: dict[str, Any] = {"keepdims": 0}
    if others is not None and model.opsets.get("", 1) >= 18:
        inputs.append(others)
    elif others is not None:
        attrs["axes"] = others
    result: Value = op.call("", reduction, *inputs, **attrs)
    if value.dtype is not None:
        result.type = TensorType(value.dtype)
    return result


def values_by_name(graph: Graph) -> dict[str, Value]:
    """The inputs of a graph and the results of its nodes."""
    values = {value.name: value for value in graph.inputs}
    for node in graph.nodes:
        values.update((out.name, out) for out in node.outputs if out.name)
    return values


def as_bytes(model: Model) -> tuple[bytes, dict[str, Tensor]]:
    """The model without its large constants, and those by name, which stay in their files."""
    proto, names = model_to_proto(model, weights=False), Names(model.graph)
    apart: dict[str, Tensor] = {}
    for value in model.graph.initializers.values():
        tensor, name = value.const, names(value)
        if tensor is None:
            continue
        if tensor.nbytes <= _SMALL_NBYTES:
            proto.graph.initializer.append(tensor_to_proto(tensor, name))
        else:
            apart[name] = tensor
            proto.graph.initializer.append(onnx.TensorProto(name=name, dims=tensor.shape, data_type=tensor.dtype.onnx))
    return proto.SerializeToString(), apart
