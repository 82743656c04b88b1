"""``ONNXModel``: a proto with onnxruntime's methods to look at it, change it and save it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.quantization.companions import companions
from sardonyx.transformers.onnx_model import OnnxModel
from sardonyx.transformers.proto_graph import ProtoGraph, remove_protos

if TYPE_CHECKING:
    import onnx

    from sardonyx.ir.graph import Model
    from sardonyx.transformers.proto_graph import Readers

__all__ = ["ONNXModel"]


class ONNXModel(ProtoGraph):
    """A model of which ``model`` is the proto; the methods see the main graph alone."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model: onnx.ModelProto = model

    def graph(self) -> onnx.GraphProto:
        return self.model.graph

    def nodes(self) -> Any:
        return self.model.graph.node

    def initializer(self) -> Any:
        return self.model.graph.initializer

    def ir_version(self) -> int:
        return self.model.ir_version

    def opset_import(self) -> Any:
        return self.model.opset_import

    def set_opset_import(self, domain: str, version: int) -> None:
        for each in self.model.opset_import:
            if each.domain == domain:
                each.version = version
                return
        self.model.opset_import.add(domain=domain, version=version)

    # -- nodes

    def add_node(self, node: onnx.NodeProto) -> None:
        self.model.graph.node.append(node)

    def add_nodes(self, nodes_to_add: Iterable[onnx.NodeProto]) -> None:
        self.model.graph.node.extend(nodes_to_add)

    def remove_node(self, node: onnx.NodeProto) -> None:
        if node in self.model.graph.node:
            self.model.graph.node.remove(node)

    def remove_nodes(self, nodes_to_remove: Iterable[onnx.NodeProto]) -> None:
        for node in list(nodes_to_remove):
            self.remove_node(node)

    def find_node_by_name(
        self, node_name: str, new_nodes_list: Iterable[onnx.NodeProto], graph: onnx.GraphProto
    ) -> onnx.NodeProto | None:
        """The node of this name, among those of the graph and further ones."""
        return next((each for each in (*graph.node, *new_nodes_list) if each.name == node_name), None)

    def find_nodes_by_initializer(self, graph: onnx.GraphProto, initializer: onnx.TensorProto) -> list[onnx.NodeProto]:
        return [node for node in graph.node for name in node.input if name == initializer.name]

    def get_largest_node_name_suffix(self, node_name_prefix: str) -> int:
        """The largest number after a prefix in the names of nodes, -1 if there is none."""
        return _largest_suffix(self.model.graph.node, node_name_prefix)

    def get_largest_initializer_name_suffix(self, initializer_name_prefix: str) -> int:
        """The largest number after a prefix in the names of initializers, -1 if there is none."""
        return _largest_suffix(self.model.graph.initializer, initializer_name_prefix)

    def replace_input_of_nodes(self, old_input_name: str, new_input_name: str, node_names_set: set[str]) -> None:
        for node in self.model.graph.node:
            if node.name in node_names_set:
                self.replace_node_input(node, old_input_name, new_input_name)

    def replace_output_of_nodes(self, old_output_name: str, new_output_name: str, node_names_set: set[str]) -> None:
        for node in self.model.graph.node:
            if node.name in node_names_set:
                self.replace_node_output(node, old_output_name, new_output_name)

    # -- values

    def initializer_extend(self, inits: Sequence[onnx.TensorProto]) -> None:
        if not inits:
            raise ValueError("there is no initializer to add")
        self.model.graph.initializer.extend(inits)

    def add_initializer(self, tensor: onnx.TensorProto) -> None:
        """Add a constant, unless there is one of its name."""
        if self.get_initializer(tensor.name) is None:
            self.model.graph.initializer.append(tensor)

    def get_initializer_name_set(self) -> set[str]:
        return {each.name for each in self.model.graph.initializer}

    def remove_initializer(self, tensor: onnx.TensorProto) -> None:
        """Remove a constant, and the input of its name."""
        self.remove_initializers([tensor])

    def remove_initializers(self, init_to_remove: Iterable[onnx.TensorProto]) -> None:
        graph, names = self.model.graph, {each.name for each in init_to_remove}
        remove_protos(graph.initializer, [each for each in graph.initializer if each.name in names])
        remove_protos(graph.input, [each for each in graph.input if each.name in names])

    def get_non_initializer_inputs(self) -> set[str]:
        return {each.name for each in self.model.graph.input} - self.get_initializer_name_set()

    def get_tensor_type(self, tensor_name: str) -> onnx.TypeProto.Tensor | None:
        """Element type and shape, as far as the file states them."""
        graph = self.model.graph
        for each in (*graph.value_info, *graph.input, *graph.output):
            if each.name == tensor_name:
                found: onnx.TypeProto.Tensor = each.type.tensor_type
                return found
        return None

    def is_graph_input(self, tensor_name: str) -> bool:
        return self.find_graph_input(tensor_name) is not None

    def is_graph_output(self, output_name: str) -> bool:
        return self.find_graph_output(output_name) is not None

    # -- rewriting

    def replace_gemm_with_matmul(self) -> None:
        """Write Gemm nodes without factors and without a transposed first operand as MatMul and Add."""
        _replace_gemms(self.model.graph, [])

    def remove_unused_constant(self) -> None:
        """Remove Constant nodes and initializers that nothing reads."""
        graph, readers = self.model.graph, self._all_readers()
        unused = [
            node
            for node in graph.node
            if node.op_type == "Constant" and not self.is_graph_output(node.output[0]) and node.output[0] not in readers
        ]
        remove_protos(graph.node, unused)
        self.remove_initializers(
            [each for each in graph.initializer if each.name not in readers and not self.is_graph_output(each.name)]
        )

    def clean_initializers(self) -> tuple[onnx.GraphProto, set[str]]:
        """Remove initializers that nothing reads, in bodies too; the graph, and the names that it takes from outside:
        none in a valid model.
        """
        return self.model.graph, _clean(self.model.graph)

    def _all_readers(self) -> Readers:
        """By name of the value the nodes that read it, in bodies too."""
        found: Readers = {}
        graphs = [self.model.graph]
        for graph in graphs:
            for node in graph.node:
                for name in filter(None, node.input):
                    found.setdefault(name, []).append(node)
                graphs += _bodies(node)
            if graph is not self.model.graph:
                for value in graph.output:
                    found.setdefault(value.name, [])
        return found

    def topological_sort(self) -> None:
        """Put every node after those that compute its inputs, and keep the order otherwise."""
        graph = self.model.graph
        producers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
        waits = [{producers[name] for name in _reads(node) if name in producers} for node in graph.node]
        order: list[int] = []
        placed: set[int] = set()
        stack = [(i, False) for i in reversed(range(len(waits)))]
        open_: set[int] = set()
        while stack:
            i, is_left = stack.pop()
            if is_left:
                open_.discard(i)
                placed.add(i)
                order.append(i)
            elif i in open_:
                raise ValueError(f"node {graph.node[i].name or graph.node[i].op_type!r} is part of a cycle")
            elif i not in placed:
                open_.add(i)
                stack.append((i, True))
                stack += [(j, False) for j in sorted(waits[i] - placed, reverse=True)]
        if order != sorted(order):
            nodes = [graph.node[i] for i in order]
            del graph.node[:]
            graph.node.extend(nodes)

    # -- saving

    def save_model_to_file(self, output_path: str | os.PathLike[str], use_external_data_format: bool = False) -> None:
        """Write the model, its weights to the file ``output_path`` and ``.data`` on request."""
        self.topological_sort()
        OnnxModel.save(self.model, os.fspath(output_path), use_external_data_format, convert_attribute=True)


class QuantizedModel(ONNXModel):
    """An ``ONNXModel`` of a graph: the proto, which cannot hold more than 2 GB, is made when it is asked for."""

    def __init__(self, source: Model) -> None:
        self._made = OnnxModel(source)

    @property
    def model(self) -> onnx.ModelProto:
        return self._made.model

    @model.setter
    def model(self, model: onnx.ModelProto) -> None:
        self._made.model = model

    def save_model_to_file(self, output_path: str | os.PathLike[str], use_external_data_format: bool = False) -> None:
        self._made.save_model_to_file(os.fspath(output_path), use_external_data_format)


def _largest_suffix(items: Iterable[Any], prefix: str) -> int:
    ends = (each.name.removeprefix(prefix) for each in items if each.name.startswith(prefix))
    return max((int(end) for end in ends if end.isdecimal()), default=-1)


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [
        body
        for attribute in node.attribute
        for body in ([attribute.g] if attribute.HasField("g") else list(attribute.graphs))
    ]


def _reads(node: onnx.NodeProto) -> list[str]:
    """The names that a node takes from its graph, those that only its bodies read included."""
    found = [name for name in node.input if name]
    for body in _bodies(node):
        found += (name for inner in body.node for name in _reads(inner))
        found += (value.name for value in body.output)
    return found


def _clean(graph: onnx.GraphProto) -> set[str]:
    wanted = {value.name for value in graph.output}
    for node in graph.node:
        wanted.update(filter(None, node.input))
        for body in _bodies(node):
            wanted |= _clean(body)
    unused = {each.name for each in graph.initializer} - wanted
    remove_protos(graph.initializer, [each for each in graph.initializer if each.name in unused])
    remove_protos(graph.input, [each for each in graph.input if each.name in unused])
    made = {name for node in graph.node for name in node.output}
    return wanted - made - {each.name for each in (*graph.initializer, *graph.input)}


def _replace_gemms(graph: onnx.GraphProto, outer: list[onnx.GraphProto]) -> None:
    from onnx import helper, numpy_helper

    scopes = [*outer, graph]
    made: list[onnx.NodeProto] = []
    for node in graph.node:
        for body in _bodies(node):
            _replace_gemms(body, scopes)
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        scaled = given.get("alpha", 1.0) != 1.0 or given.get("beta", 1.0) != 1.0 or given.get("transA", 0)
        if node.op_type != "Gemm" or scaled:
            made.append(node)
            continue
        right, name = node.input[1], node.name
        if given.get("transB", 0):
            constant = _constant(right, scopes)
            if constant is not None and _count_reads(right, scopes[0]) == 1:
                transposed = numpy_helper.from_array(numpy_helper.to_array(constant).T.copy(), right)
                constant.CopyFrom(transposed)
            else:
                right = f"{right}_Transposed"
                if not any(right in each.output for each in made):
                    made.append(
                        helper.make_node(
                            "Transpose", [node.input[1]], [right], name and f"{name}_Transpose", perm=[1, 0]
                        )
                    )
        has_bias = len(node.input) > 2 and node.input[2]
        product = f"{node.output[0]}_MatMul" if has_bias else node.output[0]
        made.append(helper.make_node("MatMul", [node.input[0], right], [product], name and f"{name}_MatMul"))
        if has_bias:
            made.append(helper.make_node("Add", [product, node.input[2]], list(node.output), name and f"{name}_Add"))
    del graph.node[:]
    graph.node.extend(made)


def _constant(name: str, scopes: list[onnx.GraphProto]) -> onnx.TensorProto | None:
    """The initializer of this name in the innermost scope, if it is no input too."""
    for graph in reversed(scopes):
        for each in graph.initializer:
            if each.name == name:
                return None if any(value.name == name for value in graph.input) else each
    return None


def _count_reads(name: str, graph: onnx.GraphProto) -> int:
    """How often a value is read, in bodies and as an output too."""
    count: int = sum(value.name == name for value in graph.output)
    for node in graph.node:
        count += sum(each == name for each in node.input)
        count += sum(_count_reads(name, body) for body in _bodies(node))
    return count


__getattr__ = companions(__name__)
