"""Types and shapes of a whole skeleton, worked out by onnx.

What a file states about intermediate values and outputs is often out of date, and may be a lie; onnx would believe it.
So everything that an operator computes is taken out before the inference: ``value_info`` and declared outputs of every
graph, the shapes of body inputs and of the elements of sequences, and initializers that a caller may replace. What the
main graph stated is handed back, to be compared with what was found.

A second inference computes with shapes (Shape, Gather, Concat, ... before a Reshape). onnx would do so with every
vector, at a hundred bytes an element; so arithmetic on vectors that are not known to be short is hidden from it.
"""

from __future__ import annotations

import base64
from typing import TypeAlias

import onnx
from onnx import defs, shape_inference

from sardonyx.errors import BrokenGraph
from sardonyx.ir.types import ort_name
from sardonyx.model import unsafe
from sardonyx.model.operands import check_operands
from sardonyx.model.protos import every_node, label, subgraphs
from sardonyx.model.types import MAX_RANK, dtype_of, from_proto

Stated: TypeAlias = "dict[str, onnx.TypeProto]"

STATED = "sardonyx.stated"
"""The metadata of a body's input or output that holds the type which the file states, serialized, in base 64."""

MAX_COPIES = 5_000_000
"""Names that onnx may copy in all: it copies those of the outer graph for every subgraph."""

MAX_ROUNDS = 2
"""Inferences with more and more of the nodes that are hidden at first; our own rules know the types of the others."""

_ARITHMETIC = frozenset({"Add", "Cast", "Concat", "Gather", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"})
_HIDDEN = "hidden"


def newest_opsets() -> dict[str, int]:
    """The newest versions that onnx knows."""
    return {"": defs.onnx_opset_version(), "ai.onnx.ml": defs.onnx_ml_opset_version()}


def inferred(proto: onnx.ModelProto, opsets: dict[str, int]) -> tuple[onnx.ModelProto, Stated]:
    """The model with the types and shapes that onnx finds, and those that the file stated of the main graph."""
    stated = _take_stated(proto.graph)
    inner = 0
    for body in (g for node in every_node(proto.graph.node) for g in subgraphs(node)):
        _forget_stated(body)
        inner += 1
    if inner * len(proto.graph.node) > MAX_COPIES:
        return proto, stated
    for domain, version in newest_opsets().items():
        if domain not in opsets:
            proto.opset_import.add(domain=domain, version=version)
    initializers = list(proto.graph.initializer)
    declared = {v.name: onnx.TypeProto.FromString(v.type.SerializeToString()) for v in proto.graph.input}
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(t for t in initializers if proto.ir_version < 4 or t.name not in declared)
    for v in proto.graph.input:
        _forget_elements(v.type)
    found = _infer_safely(proto)
    if inner == 0 and any(node.op_type == "Shape" for node in found.graph.node):
        found = _infer_with_shapes(proto, found.graph)
    del found.graph.initializer[:]
    found.graph.initializer.extend(initializers)
    for v in found.graph.input:
        v.type.CopyFrom(declared[v.name])
    unsafe.show(found.graph)
    _forget_made_names(found.graph)
    return found, stated


def _infer_safely(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Infer without the nodes that onnx may crash on, then with those of them that are found to be safe."""
    unsafe.check_equations(proto.graph)
    for v in proto.graph.input:
        for d in v.type.tensor_type.shape.dim:
            if d.dim_value < 0:
                d.ClearField("dim_value")
    if not unsafe.hide(proto.graph):
        return _infer(proto)
    proto.opset_import.add(domain=unsafe.DOMAIN, version=1)
    found = _infer(proto)
    for _ in range(MAX_ROUNDS):
        if not unsafe.show(proto.graph, found.graph):
            break
        found = _infer(proto)
    return found


def _infer(proto: onnx.ModelProto, *, data_prop: bool = False) -> onnx.ModelProto:
    try:
        return shape_inference.infer_shapes(proto, check_type=True, data_prop=data_prop)
    except shape_inference.InferenceError as e:
        _name_culprit(proto)
        raise BrokenGraph(f"This is an invalid model. Type Error: {e}") from None
    except Exception as e:
        raise BrokenGraph(f"types cannot be inferred: {e}") from None


def _name_culprit(proto: onnx.ModelProto) -> None:
    """Raise for the node whose operands are of wrong types: onnx does not say which one it is."""
    try:
        graph = shape_inference.infer_shapes(proto).graph
    except Exception:
        return
    known = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    names = {name: ort_name(from_proto(t, name)) for name, t in known.items()}
    names |= {t.name: f"tensor({dtype_of(t.data_type, t.name).ort})" for t in graph.initializer}
    opsets = {"" if e.domain == "ai.onnx" else e.domain: e.version for e in proto.opset_import}
    for node in graph.node:
        operator = node.domain, node.op_type, opsets.get(node.domain, 0)
        operands = [(name, names.get(name, "")) for name in node.input]
        check_operands(operator, operands, node=node.name, where=label(node))


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


def stated_of(info: onnx.ValueInfoProto) -> onnx.TypeProto | None:
    """What the file stated of an input or output of a body."""
    for p in info.metadata_props:
        if p.key == STATED:
            try:
                found: onnx.TypeProto = onnx.TypeProto.FromString(base64.b64decode(p.value, validate=True))
                return found
            except Exception:  # protobuf's own error is no class of Python's; the file may hold anything here
                return None
    return None


def _take_stated(graph: onnx.GraphProto) -> Stated:
    """Remove what is said of values that nodes compute."""
    infos = [v for v in (*graph.value_info, *graph.output) if v.type.WhichOneof("value")]
    stated = {v.name: onnx.TypeProto.FromString(v.type.SerializeToString()) for v in infos}
    _forget_outputs(graph)
    return stated


def _forget_stated(body: onnx.GraphProto) -> None:
    """Of a body only the element types of its inputs remain: what they hold is decided around it.

    What was stated of inputs and outputs goes along as metadata, for files that are written from the graph.
    """
    for v in (*body.input, *body.output):
        if v.type.WhichOneof("value"):
            v.metadata_props.add(key=STATED, value=base64.b64encode(v.type.SerializeToString()).decode())
    _forget_outputs(body)
    for v in body.input:
        if v.type.HasField("tensor_type"):
            v.type.tensor_type.ClearField("shape")
        else:
            _forget_elements(v.type)


def _forget_outputs(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    for out in graph.output:
        out.ClearField("type")


def _forget_elements(t: onnx.TypeProto) -> None:
    """Feeds are checked against a tensor's shape, not against those of the tensors in a sequence or an optional."""
    while t.WhichOneof("value") in ("sequence_type", "optional_type"):
        t = (t.sequence_type if t.HasField("sequence_type") else t.optional_type).elem_type
        if t.HasField("tensor_type"):
            t.tensor_type.ClearField("shape")


def _forget_made_names(graph: onnx.GraphProto) -> None:
    """Names that onnx made up are no names of the model's."""
    given = {d.dim_param for v in graph.input for d in v.type.tensor_type.shape.dim}
    for v in (*graph.value_info, *graph.output):
        for d in v.type.tensor_type.shape.dim:
            if d.HasField("dim_param") and d.dim_param not in given:
                d.ClearField("dim_param")
