"""Questions about the nodes of a model in onnx's protos, and small changes of them, with onnxruntime's names.

What follows an edge takes a table of ``input_name_to_nodes`` or ``output_name_to_node``; without one it makes its own,
which is slow in a loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

    Readers = dict[str, list[onnx.NodeProto]]
    Producers = dict[str, onnx.NodeProto]


class ProtoGraph:
    """The base of onnxruntime's model classes: ``nodes()`` is what they look at."""

    model: Any

    def nodes(self) -> Any:
        raise NotImplementedError

    # -- edges

    def input_name_to_nodes(self) -> Readers:
        """Name of a value to the nodes that read it."""
        found: Readers = {}
        for node in self.nodes():
            for name in filter(None, node.input):
                found.setdefault(name, []).append(node)
        return found

    def output_name_to_node(self) -> Producers:
        """Name of a value to the node that computes it."""
        return {name: node for node in self.nodes() for name in node.output if name}

    def get_children(
        self,
        node: onnx.NodeProto,
        input_name_to_nodes: Readers | None = None,
        output_index: int | None = None,
    ) -> list[onnx.NodeProto]:
        """The readers of all outputs, or of one."""
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        outputs = list(node.output) if output_index is None else list(node.output)[output_index : output_index + 1]
        return [child for name in outputs for child in readers.get(name, ())]

    def get_parents(self, node: onnx.NodeProto, output_name_to_node: Producers | None = None) -> list[onnx.NodeProto]:
        producers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return [producers[name] for name in node.input if name in producers]

    def get_parent(
        self, node: onnx.NodeProto, i: int, output_name_to_node: Producers | None = None
    ) -> onnx.NodeProto | None:
        """The node that computes input ``i``, if one does."""
        producers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return producers.get(node.input[i]) if i < len(node.input) else None

    def match_first_parent(
        self,
        node: onnx.NodeProto,
        parent_op_type: str,
        output_name_to_node: Producers,
        exclude: Collection[onnx.NodeProto] = (),
    ) -> tuple[onnx.NodeProto | None, int | None]:
        """The first parent of this operator, and the input that it computes."""
        for i in range(len(node.input)):
            parent = self.match_parent(node, parent_op_type, i, output_name_to_node, exclude)
            if parent is not None:
                return parent, i
        return None, None

    def match_parent(
        self,
        node: onnx.NodeProto,
        parent_op_type: str,
        input_index: int | None = None,
        output_name_to_node: Producers | None = None,
        exclude: Collection[onnx.NodeProto] = (),
        return_indice: list[int | None] | None = None,
    ) -> onnx.NodeProto | None:
        """The parent at input ``input_index``, or the first one, if it is of this operator.

        Without ``input_index``, the input that was found is appended to ``return_indice``.
        """
        producers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        if input_index is None:
            first, found = self.match_first_parent(node, parent_op_type, producers, exclude)
            if return_indice is not None:
                return_indice.append(found)
            return first
        parent = self.get_parent(node, input_index, producers)
        return parent if parent is not None and parent.op_type == parent_op_type and parent not in exclude else None

    def match_parent_path(
        self,
        node: onnx.NodeProto,
        parent_op_types: Sequence[str],
        parent_input_index: Sequence[int | None] | None = None,
        output_name_to_node: Producers | None = None,
        return_indice: list[int | None] | None = None,
    ) -> list[onnx.NodeProto] | None:
        """The chain of parents of these operators, each at its input; None if the graph has no such chain."""
        inputs: Sequence[int | None] = parent_input_index or [None] * len(parent_op_types)
        if len(inputs) != len(parent_op_types):
            raise ValueError(f"{len(parent_op_types)} operators need as many inputs, not {len(inputs)}")
        producers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        found: list[onnx.NodeProto] = []
        for op_type, at in zip(parent_op_types, inputs, strict=True):
            parent = self.match_parent(node, op_type, at, producers, (), return_indice)
            if parent is None:
                return None
            found.append(parent)
            node = parent
        return found

    # -- values

    def find_graph_input(self, input_name: str) -> onnx.ValueInfoProto | None:
        return next((each for each in self.model.graph.input if each.name == input_name), None)

    def find_graph_output(self, output_name: str) -> onnx.ValueInfoProto | None:
        return next((each for each in self.model.graph.output if each.name == output_name), None)

    def get_initializer(self, name: str) -> onnx.TensorProto | None:
        return next((each for each in self.model.graph.initializer if each.name == name), None)

    def get_constant_value(self, output_name: str) -> Any:
        """The array of an initializer or of a Constant's ``value``; None for what is computed."""
        from onnx import numpy_helper

        for node in self.nodes():
            if node.op_type == "Constant" and output_name in node.output:
                for attribute in node.attribute:
                    if attribute.name == "value":
                        return numpy_helper.to_array(attribute.t)
        tensor = self.get_initializer(output_name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    # -- changes

    @staticmethod
    def replace_node_input(node: onnx.NodeProto, old_input_name: str, new_input_name: str) -> None:
        _replace(node.input, old_input_name, new_input_name)

    @staticmethod
    def replace_node_output(node: onnx.NodeProto, old_output_name: str, new_output_name: str) -> None:
        _replace(node.output, old_output_name, new_output_name)

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
        for node in self.nodes():
            _replace(node.input, old_input_name, new_input_name)

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str) -> None:
        for node in self.nodes():
            _replace(node.output, old_output_name, new_output_name)


def _replace(names: Any, old: str, new: str) -> None:
    for i, name in enumerate(names):
        if name == old:
            names[i] = new


def remove_protos(container: Any, unwanted: Iterable[Any]) -> None:
    """Remove these messages themselves from a repeated field, not what is equal to them."""
    doomed = {id(each) for each in unwanted}
    for i in reversed(range(len(container))):
        if id(container[i]) in doomed:
            del container[i]
