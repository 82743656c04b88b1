"""``ir.Model`` to ONNX: builds the protos, writes files atomically."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

from sardonyx.errors import Fail, InvalidArgument, InvalidGraph
from sardonyx.ir.graph import Graph, Model, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import MapType, OpaqueType, OptionalType, SequenceType, SparseTensorType, TensorType, described
from sardonyx.model.types import to_proto as type_to_proto
from sardonyx.records import Record
from sardonyx.writing import Chunks, write_together

PROTO_LIMIT = 1_900_000_000
"""Bytes of weights from which they are written outside the protobuf, whose limit is 2 GB."""

_MAX_FILE_NAME = 200

_TYPES = (TensorType, SparseTensorType, SequenceType, OptionalType, MapType, OpaqueType)


class Names:
    """Unique names for all values of a model; inputs and outputs of the main graph keep theirs."""

    def __init__(self, graph: Graph) -> None:
        self._of: dict[Value, str] = {}
        self._taken: set[str] = set()
        for value in graph.inputs:
            self._of[value] = value.name
        self._taken.update(self._of.values())
        for value, name in zip(graph.outputs, graph.output_names, strict=True):
            self._of.setdefault(value, name)
            self._taken.add(name)

    def __call__(self, value: Value | None) -> str:
        if value is None or (not value.name and value.is_dead):
            return ""
        name = self._of.get(value)
        if name is None:
            stem = name = value.name or "value"
            i = 1
            while name in self._taken:
                name, i = f"{stem}_{i}", i + 1
            self._of[value] = name
            self._taken.add(name)
        return name


def model_to_proto(model: Model, *, weights: bool = True) -> onnx.ModelProto:
    """The whole model; without ``weights``, the initializers are left to the caller."""
    names = Names(model.graph)
    proto = onnx.ModelProto(
        ir_version=max(model.ir_version, 8),
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version or 0,
        doc_string=model.doc,
        graph=graph_to_proto(model.graph, names, weights=weights),
    )
    for v, out in zip(model.graph.outputs, proto.graph.output, strict=True):
        stated = model.declared_outputs.get(out.name)
        if stated is not None:
            out.type.CopyFrom(type_to_proto(described(v.type, stated)))
    for domain, version in model.opsets.items():
        proto.opset_import.add(domain=domain, version=version)
    for key, text in model.metadata.items():
        proto.metadata_props.add(key=key, value=text)
    return proto


def graph_to_proto(graph: Graph, names: Names, *, weights: bool = True) -> onnx.GraphProto:
    proto = onnx.GraphProto(name=graph.name or "graph", doc_string=graph.doc)
    proto.input.extend(value_to_proto(v, names(v)) for v in graph.inputs)
    named = [(names(v), v.const) for v in graph.initializers.values()]
    if weights:
        proto.initializer.extend(tensor_to_proto(const, name) for name, const in named if const)
    outputs = set(graph.outputs)
    for node in graph.nodes:
        proto.node.append(node_to_proto(node, names))
        proto.value_info.extend(
            value_to_proto(v, names(v))
            for v in node.outputs
            if v.type is not None and v not in outputs and not v.is_dead
        )
    own = {*graph.initializers.values(), *(v for node in graph.nodes for v in node.outputs)}
    for v, name in zip(graph.outputs, graph.output_names, strict=True):
        if graph.parent is not None:
            name = names(v) if v in own else names(Value(name, v.type))
            own.discard(v)
        if names(v) != name:
            proto.node.append(helper.make_node("Identity", [names(v)], [name]))
        proto.output.append(value_to_proto(v, name))
    return proto


def value_to_proto(value: Value, name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name, type=type_to_proto(described(value.type, value.stated)), doc_string=value.doc)


def tensor_to_proto(tensor: Tensor, name: str = "", *, scalar_fields: bool = False) -> onnx.TensorProto:
    """A constant as raw bytes; with ``scalar_fields``, single numbers lie in fields such as ``float_data``."""
    array = np.asarray(tensor.numpy(), order="C")
    proto: onnx.TensorProto = numpy_helper.from_array(array, name)
    if scalar_fields and array.size == 1 and proto.HasField("raw_data"):
        return helper.make_tensor(name, proto.data_type, proto.dims, array.reshape(-1))
    return proto


def node_to_proto(node: Node, names: Names | None = None, *, subgraphs: bool = True) -> onnx.NodeProto:
    """One node. Without ``names`` the values keep their own names; without ``subgraphs`` those are left out."""
    name_of = names or (lambda v: "" if v is None else v.name)
    proto = onnx.NodeProto(
        op_type=node.op_type, domain=node.domain, name=node.name, overload=node.overload, doc_string=node.doc
    )
    proto.input.extend(name_of(v) for v in node.inputs)
    proto.output.extend(name_of(v) for v in node.outputs)
    for key, value in node.attrs.items():
        if subgraphs or not isinstance(value, Graph):
            proto.attribute.append(attribute_to_proto(key, value, node, names))
    return proto


def attribute_to_proto(key: str, value: Any, node: Node, names: Names | None = None) -> onnx.AttributeProto:
    proto = onnx.AttributeProto(name=key)
    first = value[0] if isinstance(value, list) and value else value
    many = isinstance(value, list)
    if isinstance(first, Tensor):
        proto.type = AttributeProto.TENSORS if many else AttributeProto.TENSOR
        for t in value if many else [value]:
            (proto.tensors.add() if many else proto.t).CopyFrom(tensor_to_proto(t, t.name))
    elif isinstance(first, Graph):
        assert names is not None, "a subgraph is named together with the graph around it"
        proto.type = AttributeProto.GRAPHS if many else AttributeProto.GRAPH
        for g in value if many else [value]:
            (proto.graphs.add() if many else proto.g).CopyFrom(graph_to_proto(g, names))
    elif isinstance(first, _TYPES):
        proto.type = AttributeProto.TYPE_PROTOS if many else AttributeProto.TYPE_PROTO
        for t in value if many else [value]:
            (proto.type_protos.add() if many else proto.tp).CopyFrom(type_to_proto(t))
    elif many and not value:
        proto.type = _schema_type(node, key) or AttributeProto.INTS
    elif isinstance(first, str):
        _fill(proto, many, "s", "strings", AttributeProto.STRING, AttributeProto.STRINGS, _encoded(value))
    elif isinstance(first, (bool, int, np.integer)) and not (many and float in set(map(type, value))):
        _fill(proto, many, "i", "ints", AttributeProto.INT, AttributeProto.INTS, value)
    elif isinstance(first, (float, int, np.floating)):
        _fill(proto, many, "f", "floats", AttributeProto.FLOAT, AttributeProto.FLOATS, value)
    else:
        raise InvalidGraph("an attribute cannot be written", where=node.label, got=f"{key}={value!r}")
    return proto


def _fill(proto: onnx.AttributeProto, many: bool, one: str, all_: str, kind: Any, kinds: Any, value: Any) -> None:
    proto.type = kinds if many else kind
    if many:
        getattr(proto, all_).extend(value)
    else:
        setattr(proto, one, value)


def _encoded(value: Any) -> Any:
    if isinstance(value, list):
        return [v.encode("utf-8", "surrogateescape") for v in value]
    return value.encode("utf-8", "surrogateescape")


def _schema_type(node: Node, key: str) -> Any:
    """The kind of list that the operator's schema declares, for an empty list."""
    try:
        schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
    except onnx.defs.SchemaError:
        return None
    return int(schema.attributes[key].type) if key in schema.attributes else None  # type: ignore[call-overload]


class ExternalData(Record):
    """Which weights are written outside the model's file, and where."""

    location: str | None = None
    """The file, relative to the model's folder; None is the model's own name with ``.data`` at its end."""
    threshold_nbytes: int = 1024
    """Smaller weights stay in the model's file."""
    one_file: bool = True
    """Whether all weights share a file; otherwise each has one, of its own name."""


def save(
    model: Model,
    path: str | os.PathLike[str],
    *,
    external: ExternalData | None = None,
    scalar_fields: bool = False,
) -> None:
    """Write the model. Weights go to other files in the same folder if ``external`` asks for it, or if they are past
    protobuf's limit. After a failure all files are unchanged. ``scalar_fields`` is that of ``tensor_to_proto``.
    """
    path = os.fspath(path)
    proto = model_to_proto(model, weights=False)
    names = Names(model.graph)
    weights = {names(v): v.const for v in model.graph.initializers.values() if v.const is not None}
    outside = external is not None or sum(t.nbytes for t in weights.values()) > PROTO_LIMIT
    try:
        if outside:
            write_together(
                [
                    *_external_files(proto, weights, path, external or ExternalData(), scalar_fields),
                    (path, serialized(proto)),
                ]
            )
        else:
            proto.graph.initializer.extend(
                tensor_to_proto(t, name, scalar_fields=scalar_fields) for name, t in weights.items()
            )
            write_together([(path, serialized(proto))])
    except OSError as e:
        raise Fail(f"the model cannot be written ({e.strerror})", where=path) from None


def serialized(proto: onnx.ModelProto) -> Chunks:
    """A model's bytes, computed when they are read."""
    yield proto.SerializeToString()


def _external_files(
    proto: onnx.ModelProto, weights: dict[str, Tensor], path: str, external: ExternalData, scalar_fields: bool
) -> list[tuple[str, Chunks]]:
    """The files of weights and their contents; reading these adds the weights to the proto."""
    folder, name = os.path.split(path)
    large = {each: t for each, t in weights.items() if t.nbytes >= max(1, external.threshold_nbytes)}
    proto.graph.initializer.extend(
        tensor_to_proto(t, each, scalar_fields=scalar_fields) for each, t in weights.items() if each not in large
    )
    if external.one_file:
        groups = {external.location or f"{name}.data": large} if large else {}
    else:
        groups = {_file_name(each, i): {each: t} for i, (each, t) in enumerate(large.items())}
    return [(_beside(folder, at), _external_chunks(proto, group, at)) for at, group in groups.items()]


def _beside(folder: str, location: str) -> str:
    """The path of an external file, which may not lead out of the model's folder."""
    if os.path.isabs(location) or ".." in location.replace("\\", "/").split("/"):
        raise InvalidArgument("external data lies in the model's folder", expected="a relative path", got=location)
    return os.path.join(folder, location)


def _file_name(name: str, i: int) -> str:
    return re.sub(r"[^\w.-]", "_", f"{name[-_MAX_FILE_NAME:]}.{i}").lstrip(".")


def _external_chunks(proto: onnx.ModelProto, weights: dict[str, Tensor], location: str) -> Chunks:
    offset = 0
    for name, tensor in weights.items():
        filled = tensor_to_proto(tensor, name)
        if filled.HasField("raw_data"):  # strings have none
            data = filled.raw_data
            filled.ClearField("raw_data")
            filled.data_location = onnx.TensorProto.EXTERNAL
            for key, text in (("location", location), ("offset", offset), ("length", len(data))):
                filled.external_data.add(key=key, value=str(text))
            padding = -len(data) % 4096
            offset += len(data) + padding
            yield data + bytes(padding)
        proto.graph.initializer.append(filled)
