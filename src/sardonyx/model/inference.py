"""Types and shapes of a whole skeleton, worked out by onnx.

What a file states about intermediate values and outputs is often out of date, and may be a lie; onnx would believe it.
So it is taken out before the inference, and comes back only to fill gaps.
"""

from __future__ import annotations

from typing import TypeAlias

import onnx
from onnx import TensorProto, defs, shape_inference

from sardonyx.errors import BrokenGraph
from sardonyx.ir.shape import count
from sardonyx.model.check import rule_of
from sardonyx.model.protos import every_node, subgraphs
from sardonyx.model.types import MAX_RANK

Stated: TypeAlias = "dict[str, onnx.TypeProto]"

MAX_PROPAGATED = 1 << 20
"""Elements that inference may compute in all."""
MAX_COPIES = 5_000_000
"""Names that onnx may copy in all: it copies those of the outer graph for every subgraph."""

_CARRIERS = frozenset({"Add", "Cast", "Gather", "Identity", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"})
_INTEGERS = (TensorProto.INT32, TensorProto.INT64)


def newest_opsets() -> dict[str, int]:
    """The newest versions that onnx knows."""
    return {"": defs.onnx_opset_version(), "ai.onnx.ml": defs.onnx_ml_opset_version()}


def inferred(proto: onnx.ModelProto, opsets: dict[str, int]) -> tuple[onnx.ModelProto, Stated]:
    """The model with the types and shapes that onnx finds, and those that the file stated."""
    stated = _take_stated(proto.graph, opsets)
    if _copies(proto.graph) > MAX_COPIES:
        return proto, stated
    for domain, version in newest_opsets().items():
        if domain not in opsets:
            proto.opset_import.add(domain=domain, version=version)
    try:
        found = shape_inference.infer_shapes(proto, check_type=True, data_prop=propagates_little(proto.graph))
        return found, stated
    except shape_inference.InferenceError as e:
        raise BrokenGraph(f"This is an invalid model. Type Error: {e}") from None
    except Exception as e:
        raise BrokenGraph(f"types cannot be inferred: {e}") from None


def _take_stated(graph: onnx.GraphProto, opsets: dict[str, int]) -> Stated:
    """Remove what is said of values that onnx can infer."""
    infos = [*graph.value_info, *graph.output]
    stated = {v.name: v.type for v in infos if v.type.WhichOneof("value")}
    if not stated:
        return stated
    kept: set[str] = set()
    for node in graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        rule = rule_of(domain, node.op_type, opsets.get(domain, 0))
        if rule is None or not rule.infers:
            kept.update(node.output)
    copies = [onnx.ValueInfoProto(name=v.name, type=v.type) for v in graph.value_info if v.name in kept]
    stated = {name: onnx.TypeProto.FromString(t.SerializeToString()) for name, t in stated.items()}
    del graph.value_info[:]
    graph.value_info.extend(copies)
    for out in graph.output:
        if out.name not in kept:
            out.ClearField("type")
    return stated


def _copies(graph: onnx.GraphProto) -> int:
    names = sum(len(node.output) for node in graph.node) + len(graph.input) + len(graph.initializer)
    return names * sum(1 for node in graph.node for _ in subgraphs(node))


def propagates_little(graph: onnx.GraphProto) -> bool:
    """Whether the integer tensors that inference computes beside shapes stay small.

    A chain of Concat doubles them, and a Range is as long as a number in it says.
    """
    sizes = {t.name: count(t.dims) for t in graph.initializer if t.data_type in _INTEGERS and not t.data_location}
    total = 0
    for node in every_node(graph.node):
        if node.op_type == "Range":
            return False
        if node.op_type == "Shape":
            size = MAX_RANK
        elif node.op_type == "Constant":
            size = node.ByteSize()
        elif node.op_type == "Concat":
            size = sum(sizes.get(name, 0) for name in node.input)
        elif node.op_type in _CARRIERS:
            size = max((sizes.get(name, 0) for name in node.input), default=0)
        else:
            continue
        total += size
        if total > MAX_PROPAGATED:
            return False
        sizes.update(dict.fromkeys(node.output, size))
    return True
