"""Element types of a whole skeleton, inferred by onnx.

Shapes are inferred by our own rules. Shapes stated in a file are often out of date or wrong, and for some of them
onnx's inference reads and writes outside its memory. So onnx sees no shapes: ``value_info`` and declared outputs are
removed from every graph, inputs keep their element types, and constants become values with an element type only. What
the main graph stated is returned, to be compared with inferred types.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import onnx
from onnx import AttributeProto, TensorProto, defs, shape_inference

from sardonyx.errors import BrokenGraph
from sardonyx.ir.types import ort_name
from sardonyx.model import unsafe
from sardonyx.model.operands import check_operands
from sardonyx.model.protos import every_node, label, subgraphs
from sardonyx.model.types import from_proto, text

Stated: TypeAlias = "dict[str, onnx.TypeProto]"

STATED = "sardonyx.stated"
"""Metadata key of a body's input or output for the type that the file states, serialized in base64."""

MAX_COPIES = 5_000_000
"""Names that onnx may copy in total: it copies those of the outer graph for every subgraph."""

_FORESTS = frozenset({"TreeEnsembleClassifier", "TreeEnsembleRegressor"})
_TABLES = "nodes_", "class_", "target_"
"""How the names of attributes begin that hold trees and weights."""

_HIDDEN = "sardonyx.hidden"
"""The domain of nodes that onnx must not analyse."""


def newest_opsets() -> dict[str, int]:
    """The newest opset versions that onnx knows."""
    return {"": defs.onnx_opset_version(), "ai.onnx.ml": defs.onnx_ml_opset_version()}


def require_known_opset(who: str, domain: str, version: int, where: str) -> None:
    """Refuse a version of a domain that this build of onnx does not know; ``who`` imports it."""
    newest = newest_opsets().get(domain)
    if version < 1 or (newest is not None and version > newest):
        raise BrokenGraph(
            f"{who} imports an opset that this build of onnx does not know",
            where=where,
            expected="at least 1" if newest is None else f"1 to {newest}",
            got=version,
        )


def inferred(proto: onnx.ModelProto, opsets: dict[str, int]) -> tuple[onnx.ModelProto, Stated, Tables]:
    """The model with the element types that onnx infers, the types that the file stated for the main graph, and the
    tables of forests, which the model lacks then.
    """
    unsafe.check_equations(proto.graph)
    stated = _take_stated(proto.graph)
    bodies = [g for node in every_node(proto.graph.node) for g in subgraphs(node)]
    for body in bodies:
        _take_stated_of_body(body)
    if len(bodies) * len(proto.graph.node) > MAX_COPIES:
        return proto, stated, Tables()
    for domain, version in (*newest_opsets().items(), (_HIDDEN, 1)):
        if domain not in opsets:
            proto.opset_import.add(domain=domain, version=version)
    declared = [onnx.TypeProto.FromString(v.type.SerializeToString()) for v in proto.graph.input]
    constants = [_take_constants(graph) for graph in (proto.graph, *bodies)]
    for v in proto.graph.input:
        _forget_shapes(v.type)
    taken = list(_take_tables(proto.graph))
    found = _infer(proto)
    tables = Tables(zip(_forests(found.graph), taken, strict=True))
    graphs = [found.graph, *(g for node in every_node(found.graph.node) for g in subgraphs(node))]
    for graph, initializers in zip(graphs, constants, strict=True):
        graph.initializer.extend(initializers)
        for v in (*graph.value_info, *graph.output):
            _forget_shapes(v.type)
    for node in every_node(found.graph.node):
        node.domain = "" if node.domain == _HIDDEN else node.domain
    for v, t in zip(found.graph.input, declared, strict=True):
        v.type.CopyFrom(t)
    return found, stated, tables


class Tables:
    """The attributes of nodes that were taken from them. To put them back would copy them."""

    def __init__(self, taken: Iterable[tuple[onnx.NodeProto, Sequence[AttributeProto]]] = ()) -> None:
        self._taken = {id(node): (node, attributes) for node, attributes in taken}

    def of(self, node: onnx.NodeProto) -> Sequence[AttributeProto]:
        """All attributes of a node."""
        _, attributes = self._taken.get(id(node), (node, ()))
        return [*node.attribute, *attributes]


def _forests(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    return (n for n in every_node(graph.node) if n.domain == "ai.onnx.ml" and n.op_type in _FORESTS)


def _take_tables(graph: onnx.GraphProto) -> Iterator[list[AttributeProto]]:
    """Remove the trees of forests, which onnx would copy several times, and of which no type depends."""
    for node in _forests(graph):
        tables = [a for a in node.attribute if a.name.startswith(_TABLES)]
        others = [a for a in node.attribute if not a.name.startswith(_TABLES)]
        del node.attribute[:]
        node.attribute.extend(others)
        yield tables


def _infer(proto: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return shape_inference.infer_shapes(proto, check_type=True)
    except shape_inference.InferenceError as e:
        _name_culprit(proto)
        raise BrokenGraph(f"This is an invalid model. Type Error: {e}") from None
    except Exception as e:
        raise BrokenGraph(f"types cannot be inferred: {e}") from None


def _name_culprit(proto: onnx.ModelProto) -> None:
    """Raise an error that names the node whose operands have wrong types: onnx does not name it."""
    try:
        graph = shape_inference.infer_shapes(proto).graph
    except Exception:
        return
    known = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    names = {name: ort_name(from_proto(t, name)) for name, t in known.items()}
    opsets = {"" if e.domain == "ai.onnx" else e.domain: e.version for e in proto.opset_import}
    for node in graph.node:
        operator = node.domain, node.op_type, opsets.get(node.domain, 0)
        operands = [(name, names.get(name, "")) for name in node.input]
        check_operands(operator, operands, node=node.name, where=label(node))


# -- what a file states


def stated_of(info: onnx.ValueInfoProto) -> onnx.TypeProto | None:
    """The type that the file stated for an input or output of a body."""
    for p in info.metadata_props:
        if p.key == STATED:
            try:
                found: onnx.TypeProto = onnx.TypeProto.FromString(base64.b64decode(p.value, validate=True))
                return found
            except Exception:  # protobuf raises an exception class of its own
                return None
    return None


def _take_stated(graph: onnx.GraphProto) -> Stated:
    """Remove stated types of computed values."""
    infos = [v for v in (*graph.value_info, *graph.output) if v.type.WhichOneof("value")]
    stated = {v.name: onnx.TypeProto.FromString(v.type.SerializeToString()) for v in infos}
    del graph.value_info[:]
    for out in graph.output:
        out.ClearField("type")
    return stated


def _take_stated_of_body(body: onnx.GraphProto) -> None:
    """Remove stated types from a body, and the shapes of its inputs, which the enclosing node determines.

    The stated types of inputs and outputs are kept as metadata, for files that are written from the graph.
    """
    for v in (*body.input, *body.output):
        if v.type.WhichOneof("value"):
            v.metadata_props.add(key=STATED, value=base64.b64encode(v.type.SerializeToString()).decode())
    _take_stated(body)
    for v in body.input:
        _forget_shapes(v.type)


def _forget_shapes(t: onnx.TypeProto) -> None:
    """Reduce a type to its kind and element type."""
    while t.WhichOneof("value") in ("sequence_type", "optional_type"):
        t = (t.sequence_type if t.HasField("sequence_type") else t.optional_type).elem_type
    kind = t.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        getattr(t, kind).ClearField("shape")


# -- constants


def _take_constants(graph: onnx.GraphProto) -> list[TensorProto]:
    """Show constants to onnx as typed values: initializers, which are returned, and nodes without inputs."""
    initializers = list(graph.initializer)
    del graph.initializer[:]
    given = {v.name for v in graph.input}
    for t in initializers:
        if t.name not in given:
            _declare(graph, text(t.name, "initializer"), t.data_type)
    for node in graph.node:
        made = None if node.input or node.domain not in ("", "ai.onnx") else _element_type(node)
        if made is not None:
            node.domain = _HIDDEN
            _declare(graph, text(node.output[0], label(node)), made)
    return initializers


def _declare(graph: onnx.GraphProto, name: str, element: int) -> None:
    graph.value_info.add(name=name).type.tensor_type.elem_type = element


def _element_type(node: onnx.NodeProto) -> int | None:
    """The element type of the result of a node without inputs. None if it is no tensor, or if onnx should report the
    error.
    """
    if not node.output:
        return None
    if node.op_type in ("RandomNormal", "RandomUniform"):
        found = next((a.i for a in node.attribute if a.name == "dtype"), TensorProto.FLOAT)
        return found if found in TensorProto.DataType.values() else None
    return next(_value_types(node), None) if node.op_type == "Constant" else None


def _value_types(node: onnx.NodeProto) -> Iterator[int]:
    scalars = {"float": TensorProto.FLOAT, "int": TensorProto.INT64, "string": TensorProto.STRING}
    for a in node.attribute:
        if a.name == "value" and (a.type == AttributeProto.TENSOR or a.HasField("t")):
            yield a.t.data_type
        elif a.name == "sparse_value" and a.type == AttributeProto.SPARSE_TENSOR:
            yield a.sparse_tensor.values.data_type
        elif a.name.removeprefix("value_").removesuffix("s") in scalars:
            yield scalars[a.name.removeprefix("value_").removesuffix("s")]
