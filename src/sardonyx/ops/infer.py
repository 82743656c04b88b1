"""Types and shapes of a node's outputs, by the rules of onnx's schemas."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import onnx
from onnx import shape_inference

from sardonyx.ir import types
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.model import save
from sardonyx.model.types import from_proto, to_proto

MAX_DATA = 256
"""Elements up to which a constant input is shown to inference, for operators whose shape depends on it."""

OPSETS = {"": onnx.defs.onnx_opset_version(), "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1}
"""What ``normalize`` brings every node to."""


@lru_cache(maxsize=None)
def schema_of(domain: str, op_type: str) -> Any:
    """The newest schema of an operator, or None."""
    try:
        return onnx.defs.get_schema(op_type, domain=domain)
    except onnx.defs.SchemaError:
        return None


def infer_node(node: Node) -> None:
    """Refine the types of ``node``'s outputs as far as its inputs' types, and small constants, decide them."""
    schema = schema_of(node.domain, node.op_type)
    if schema is None or any(v is not None and v.type is None for v in node.inputs) or any(node.subgraphs()):
        return
    proto = save.node_to_proto(node)
    for i, v in enumerate(node.inputs):
        proto.input[i] = "" if v is None else f"i{i}"
    for i, v in enumerate(node.outputs):
        proto.output[i] = f"o{i}" if v.name or not v.is_dead else ""
    in_types = {f"i{i}": to_proto(v.type) for i, v in enumerate(node.inputs) if v is not None}
    data = {f"i{i}": _data(v) for i, v in enumerate(node.inputs) if v is not None and _is_small(v)}
    imports = [onnx.helper.make_opsetid(d, n) for d, n in OPSETS.items()]
    try:
        found = shape_inference.infer_node_outputs(schema, proto, in_types, data, None, imports)
    except Exception:  # inference that cannot decide raises many kinds of errors; the run decides then
        return
    for i, out in enumerate(node.outputs):
        if f"o{i}" in found:
            out.type = types.merge(from_proto(found[f"o{i}"]), out.type)


def infer_graph(graph: Graph) -> None:
    """Refine every output of a graph that is not fully known, in order."""
    for node in graph.nodes:
        if any(not _is_known(out) for out in node.outputs):
            infer_node(node)
        for _, sub in node.subgraphs():
            infer_graph(sub)


def _is_known(value: Value) -> bool:
    if isinstance(value.type, types.TensorType):
        return value.type.shape is not None and None not in value.type.shape
    return value.type is not None


def _is_small(value: Value) -> bool:
    return value.is_const and value.const is not None and value.const.size <= MAX_DATA


def _data(value: Value) -> onnx.TensorProto:
    assert value.const is not None
    return save.tensor_to_proto(value.const)
