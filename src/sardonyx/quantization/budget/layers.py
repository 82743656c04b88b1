"""The layers of a model: nodes that are quantized, or kept in float, together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sardonyx.quantization.edges import Edges, unused_name

if TYPE_CHECKING:
    import onnx

HEAVY = frozenset(("Attention", "Conv", "ConvTranspose", "EmbedLayerNormalization", "Gather", "Gemm", "LSTM", "MatMul"))
"""Operators with weights or with sums of products: each begins a layer."""

SENSITIVE = frozenset(("InstanceNormalization", "LayerNormalization", "ReduceMean", "Softmax"))
"""Operators whose quantization costs accuracy of its own: layers by themselves."""

_INTEGER_FORM = {"QuantizeLinear", "DequantizeLinear"}


@dataclass(frozen=True)
class Layer:
    """A node with the nodes that only its result goes through; ``name`` and ``operator`` are the first node's."""

    name: str
    operator: str
    nodes: tuple[str, ...]

    @property
    def is_heavy(self) -> bool:
        return self.operator in HEAVY


def name_nodes(model: onnx.ModelProto) -> None:
    """Give every node without a name, or with another node's, a name of its own: nodes are kept in float by name."""
    taken = {node.name for node in model.graph.node}
    seen = set()
    for node in model.graph.node:
        if not node.name or node.name in seen:
            node.name = unused_name(f"{node.op_type}_{node.output[0]}", taken)
        seen.add(node.name)


def layers_of(floats: onnx.ModelProto, quantized: onnx.ModelProto, never: Collection[str] = frozenset()) -> list[Layer]:
    """Layers of a float model that its quantized form (QDQ) computes with quantized operands, in order; nodes of
    ``never`` stay in float between quantized ones.
    """
    edges, float_edges = Edges(quantized.graph), Edges(floats.graph)
    in_integers = {n.name for n in quantized.graph.node if n.name not in never and _is_quantized(edges, n)}
    names = {node.name for node in quantized.graph.node}
    first_of: dict[str, str] = {}
    members: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in floats.graph.node:
        folded = node.name not in names  # a Relu that the quantization of its result replaces
        if node.name not in in_integers and not folded:
            continue
        before = _node_before(float_edges, node)
        joins = before is not None and before.name in first_of and node.op_type not in HEAVY | SENSITIVE
        if folded and not joins:
            continue
        first = first_of[before.name] if joins and before is not None else node.name
        first_of[node.name] = first
        members[first].append(node)
    return [Layer(name, nodes[0].op_type, tuple(n.name for n in nodes)) for name, nodes in members.items()]


def grouped(layers: Sequence[Layer], count: int) -> list[Layer]:
    """At most ``count`` layers, of neighbours, if there are more."""
    size = -(-len(layers) // count)
    if size == 1:
        return list(layers)
    groups = [layers[i : i + size] for i in range(0, len(layers), size)]
    return [
        Layer(
            f"{g[0].name} .. {g[-1].name}" if len(g) > 1 else g[0].name,
            next((layer.operator for layer in g if layer.is_heavy), g[0].operator),
            tuple(node for layer in g for node in layer.nodes),
        )
        for g in groups
    ]


def _is_quantized(edges: Edges, node: onnx.NodeProto) -> bool:
    """Whether a node multiplies dequantized operands, or reads one and has its result quantized."""
    if node.op_type in _INTEGER_FORM or node.domain not in ("", "ai.onnx", "com.microsoft"):
        return False
    makers = [edges.maker.get(name) for name in node.input if name]
    dequantized = [m for m in makers if m is not None and m.op_type == "DequantizeLinear"]
    if not dequantized:
        return False
    if node.op_type in HEAVY - {"Gather"}:
        return len(dequantized) >= 2
    result = [reader.op_type for name in node.output for reader in edges.readers(name)]
    return any(operator == "QuantizeLinear" for operator in result)


def _node_before(edges: Edges, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The node that makes the only operand that is computed, if no other node reads it."""
    computed = [name for name in node.input if name in edges.maker and not edges.is_constant(name)]
    if len(computed) != 1 or any(
        name not in edges.maker and not edges.is_constant(name) for name in node.input if name
    ):
        return None
    return edges.maker[computed[0]] if edges.only_reader(computed[0]) is not None else None


class LayerTimes:
    """Steps of a profile assigned to layers: by node, or by the tensor that a step (de)quantizes or computes last."""

    def __init__(self, layers: Sequence[Layer], model: onnx.ModelProto) -> None:
        self._edges = Edges(model.graph)
        self._nodes = {node.name: node for node in model.graph.node}
        self._layer_of = {node: layer.name for layer in layers for node in layer.nodes}

    def __call__(self, profile: dict[str, float]) -> dict[str, float]:
        """Milliseconds by layer; layers whose nodes other steps have computed too are missing."""
        times: dict[str, float] = defaultdict(float)
        for name, ms in profile.items():
            layer = self._find(self._nodes.get(name) or self._edges.maker.get(name))
            if layer is not None:
                times[layer] += ms
        return dict(times)

    def _find(self, node: onnx.NodeProto | None) -> str | None:
        first = node
        while node is not None and node.name not in self._layer_of and node.op_type in _INTEGER_FORM:
            node = self._edges.maker.get(node.input[0])
        if node is not None:
            return self._layer_of.get(node.name)
        while first is not None and first.op_type in _INTEGER_FORM:  # of an input of the model: its first reader
            readers = self._edges.readers(first.output[0])
            first = readers[0] if readers else None
        return None if first is None else self._layer_of.get(first.name)
