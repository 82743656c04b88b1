"""Descriptions of a session's model: inputs, outputs, metadata."""

from __future__ import annotations

from dataclasses import field

from sardonyx.ir.graph import Model, Value
from sardonyx.ir.types import OptionalType, SparseTensorType, TensorType, ort_name
from sardonyx.records import Record

UNVERSIONED = (1 << 63) - 1
"""The version that onnxruntime reports for a model that states none."""


class NodeArg(Record):
    """An input or output: its name, its type as onnxruntime writes it, and its dimensions (number, name or None)."""

    name: str
    type: str
    shape: list[int | str | None] = field(hash=False)


def node_arg(value: Value) -> NodeArg:
    t = value.type
    inner = t.elem if isinstance(t, OptionalType) else t
    shape = inner.shape if isinstance(inner, (TensorType, SparseTensorType)) else None
    return NodeArg(value.name, ort_name(t), list(shape or ()))


class ModelMetadata(Record):
    """The metadata of a model file."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str] = field(hash=False)


def model_metadata(model: Model) -> ModelMetadata:
    return ModelMetadata(
        producer_name=model.producer_name,
        graph_name=model.graph.name,
        domain=model.domain,
        description=model.doc,
        graph_description=model.graph.doc,
        version=UNVERSIONED if model.model_version is None else model.model_version,
        custom_metadata_map=dict(model.metadata),
    )


class OrtEpAssignedNode(Record):
    name: str
    domain: str
    op_type: str


class OrtEpAssignedSubgraph(Record):
    """Nodes that one execution provider runs."""

    ep_name: str
    _nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        return list(self._nodes)
