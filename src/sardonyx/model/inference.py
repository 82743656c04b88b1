"""Types and shapes of a whole skeleton, worked out by onnx.

What a file states about intermediate values and outputs is often out of date, and may be a lie; onnx would believe it.
So it is taken out before the inference, and comes back only to fill gaps.

A second inference computes with shapes (Shape, Gather, Concat, ... before a Reshape). onnx would do so with every
vector, at a hundred bytes an element; so arithmetic on vectors that are not known to be short is hidden from it.
"""

from __future__ import annotations

from typing import TypeAlias

import onnx
from onnx import defs, shape_inference

from sardonyx.errors import BrokenGraph
from sardonyx.model.check import rule_of
from sardonyx.model.protos import subgraphs
from sardonyx.model.types import MAX_RANK

Stated: TypeAlias = "dict[str, onnx.TypeProto]"

MAX_COPIES = 5_000_000
"""Names that onnx may copy in all: it copies those of the outer graph for every subgraph."""

_ARITHMETIC = frozenset({"Add", "Cast", "Concat", "Gather", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"})
_HIDDEN = "hidden"


def newest_opsets() -> dict[str, int]:
    """The newest versions that onnx knows."""
    return {"": defs.onnx_opset_version(), "ai.onnx.ml": defs.onnx_ml_opset_version()}


def inferred(proto: onnx.ModelProto, opsets: dict[str, int]) -> tuple[onnx.ModelProto, Stated]:
    """The model with the types and shapes that onnx finds, and those that the file stated."""
    stated = _take_stated(proto.graph, opsets)
    inner = sum(1 for node in proto.graph.node for _ in subgraphs(node))
    if inner * len(proto.graph.node) > MAX_COPIES:
        return proto, stated
    for domain, version in newest_opsets().items():
        if domain not in opsets:
            proto.opset_import.add(domain=domain, version=version)
    found = _infer(proto)
    if inner == 0 and any(node.op_type == "Shape" for node in found.graph.node):
        found = _infer_with_shapes(proto, found.graph)
    return found, stated


def _infer(proto: onnx.ModelProto, *, data_prop: bool = False) -> onnx.ModelProto:
    try:
        return shape_inference.infer_shapes(proto, check_type=True, data_prop=data_prop)
    except shape_inference.InferenceError as e:
        raise BrokenGraph(f"This is an invalid model. Type Error: {e}") from None
    except Exception as e:
        raise BrokenGraph(f"types cannot be inferred: {e}") from None


def _infer_with_shapes(proto: onnx.ModelProto, found: onnx.GraphProto) -> onnx.ModelProto:
    """Infer once more, with the arithmetic that a first inference has ``found`` harmless."""
    infos = {v.name: v for v in (*found.input, *found.value_info, *found.output)}
    constants = {t.name for t in found.initializer}
    hidden: list[tuple[int, str]] = []
    for i, node in enumerate(proto.graph.node):
        if node.op_type in _ARITHMETIC:
            names = {*node.input, *node.output} - constants - {""}
            if not all(name in infos and _is_harmless(infos[name].type.tensor_type) for name in names):
                hidden.append((i, node.domain))
                node.domain = _HIDDEN
                proto.graph.value_info.extend(infos[name] for name in node.output if name in infos)
    proto.opset_import.add(domain=_HIDDEN, version=1)
    proto = _infer(proto, data_prop=True)
    for i, domain in hidden:
        proto.graph.node[i].domain = domain
    return proto


def _is_harmless(t: onnx.TypeProto.Tensor) -> bool:
    """Whether onnx computes with no more than a few elements: it takes vectors only."""
    if not t.HasField("shape"):
        return False
    dims = t.shape.dim
    return len(dims) != 1 or (dims[0].HasField("dim_value") and dims[0].dim_value <= MAX_RANK)


def _take_stated(graph: onnx.GraphProto, opsets: dict[str, int]) -> Stated:
    """Remove what is said of values that onnx can infer."""
    infos = [*graph.value_info, *graph.output]
    stated = {v.name: onnx.TypeProto() for v in infos if v.type.WhichOneof("value")}
    if not stated:
        return stated
    for v in infos:
        if v.name in stated:
            stated[v.name].CopyFrom(v.type)
    kept: set[str] = set()
    for node in graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        rule = rule_of(domain, node.op_type, opsets.get(domain, 0))
        if rule is None or not rule.infers:
            kept.update(node.output)
    needed = [onnx.ValueInfoProto(name=v.name, type=v.type) for v in graph.value_info if v.name in kept]
    del graph.value_info[:]
    for out in graph.output:
        if out.name not in kept:
            out.ClearField("type")
    graph.value_info.extend(needed)
    return stated
