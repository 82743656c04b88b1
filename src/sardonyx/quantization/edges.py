"""Who makes and who reads each tensor of an ``onnx.ModelProto``, and its constants, which rewrites replace in place."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.errors import InvalidArgument

if TYPE_CHECKING:
    import onnx


def read_proto(model: Any) -> onnx.ModelProto:
    """A model to change, with all its weights: a copy of a ModelProto, or the contents of a file."""
    import onnx

    from sardonyx.model.load import load
    from sardonyx.model.save import model_to_proto

    if not isinstance(model, (str, os.PathLike, onnx.ModelProto)):
        raise InvalidArgument("a model is needed", expected="a path or an onnx.ModelProto", got=type(model).__name__)
    return model_to_proto(load(model))


def write_proto(model: onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write a model atomically; weights past protobuf's limit go to a separate file."""
    from sardonyx.model.load import load
    from sardonyx.model.save import save

    save(load(model), path)


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """An attribute's value, or what it is when absent."""
    from onnx import helper

    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def onnx_op(node: onnx.NodeProto) -> str:
    """The operator's name if it is one of ai.onnx, else empty: other domains have operators of the same names."""
    return "" if node.domain not in ("", "ai.onnx") else str(node.op_type)


def unused_name(stem: str, taken: set[str]) -> str:
    """A name that no tensor or node has yet; it is taken now."""
    name, i = stem, 1
    while name in taken:
        name, i = f"{stem}_{i}", i + 1
    taken.add(name)
    return name


class Edges:
    """Edges of the main graph. Reads by subgraphs count as reads; what subgraphs compute is not looked at."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.outputs = {o.name for o in graph.output}
        self.maker: dict[str, onnx.NodeProto] = {}
        self._readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        self._constants: dict[str, onnx.TensorProto] = {t.name: t for t in graph.initializer}
        for node in graph.node:
            self.maker.update((name, node) for name in node.output if name)
            for name in _names_read(node):
                self._readers[name].append(node)
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self._constants[node.output[0]] = node.attribute[0].t
        for given in graph.input:  # a feed may replace it
            self._constants.pop(given.name, None)

    def readers(self, name: str) -> list[onnx.NodeProto]:
        """Nodes that read a tensor, once for each time that they read it."""
        return self._readers[name]

    def only_reader(self, name: str) -> onnx.NodeProto | None:
        """The node that reads a tensor, if it is the only one and the model does not return the tensor."""
        readers = self._readers[name]
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def is_constant(self, name: str) -> bool:
        return name in self._constants

    def constant(self, name: str) -> Any:
        """The array of a constant tensor; None if the tensor is not constant."""
        from onnx import numpy_helper

        found = self._constants.get(name)
        return None if found is None else numpy_helper.to_array(found)

    def replace(self, name: str, array: Any) -> None:
        """Give a constant other contents."""
        from onnx import numpy_helper

        self._constants[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), name))

    def add(self, name: str, array: Any) -> None:
        """Add an initializer."""
        from onnx import numpy_helper

        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        self._constants[name] = self.graph.initializer[-1]

    def remove_unread(self) -> None:
        """Remove dequantized constants that no node reads any more, and initializers likewise."""
        read = {name for node in self.graph.node for name in _names_read(node)} | self.outputs
        for node in [n for n in self.graph.node if n.op_type == "DequantizeLinear" and n.output[0] not in read]:
            self.graph.node.remove(node)
        read = {name for node in self.graph.node for name in _names_read(node)} | self.outputs
        for tensor in [t for t in self.graph.initializer if t.name not in read]:
            self.graph.initializer.remove(tensor)

    def names(self) -> set[str]:
        """All names of nodes and tensors, for choosing new ones."""
        tensors = (name for node in self.graph.node for name in (*node.input, *node.output))
        return {
            *tensors,
            *(node.name for node in self.graph.node),
            *(t.name for t in self.graph.initializer),
            *(v.name for v in self.graph.input),
        }


def _names_read(node: onnx.NodeProto) -> Iterator[str]:
    yield from (name for name in node.input if name)
    for each in node.attribute:
        for graph in (each.g, *each.graphs) if each.HasField("g") else each.graphs:
            for inner in graph.node:
                yield from _names_read(inner)
