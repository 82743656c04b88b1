"""Fuses normalizations with a preceding residual addition."""

from __future__ import annotations

from typing import Any

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.fusion import Fusion, Refused, fusion, require
from sardonyx.optimize.fusions.checks import fits_trailing, same_shape
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import Match, attribute
from sardonyx.optimize.spelling import MICROSOFT
from sardonyx.optimize.spelling.activation import require_kernel

SKIP = {"LayerNormalization": "SkipLayerNormalization", "RMSNormalization": "SkipSimplifiedLayerNormalization"}


@fusion
class SpellSimplifiedLayerNorm(Fusion):
    """RMSNormalization(x, scale)  ->  SimplifiedLayerNormalization(x, scale), which onnxruntime has at every opset."""

    def pattern(self, op: Any, x: Any, scale: Any) -> Any:
        return op.RMSNormalization(x, scale, name="norm")

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_kernel(m.x)
        require(m.scale.dtype is m.x.dtype, "scale is of another type", m.scale)
        return op.SimplifiedLayerNormalization(m.x, m.scale, **m.node("norm").attrs)


@optimization("SpellSkipLayerNorm")
def spell_skip_norms(graph: Graph, log: Log) -> None:
    """norm(a + b)  ->  Skip...Normalization(a, b); the sum becomes an output if it has other readers."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            spell_skip_norms(sub, log)
        if node.op_type not in SKIP or node.domain or node.inputs[0] is None:
            continue
        added = node.inputs[0].producer
        if added is not None and added.op_type == "Add" and not added.domain and added.graph is graph:
            try:
                _spell_skip_norm(graph, node, added, log)
            except Refused as why:
                log.declined(node, str(why))


def _spell_skip_norm(graph: Graph, norm: Node, added: Node, log: Log) -> None:
    total, (gamma, beta) = added.output, (norm.inputs[1], norm.input(2))
    require_kernel(total)
    require(total.rank in (2, 3), "the sum has neither 2 nor 3 dimensions", total)
    require(attribute(norm, "axis") in (-1, (total.rank or 0) - 1), "it normalizes more than the last axis", total)
    require(all(out.is_dead for out in norm.outputs[1:]), "its statistics are read", norm.outputs[0])
    for v in (gamma, beta):
        require(v is None or (v.is_const and fits_trailing(v, total) and v.dtype is total.dtype), "it does not fit", v)
    x, skip = _operands(added)
    nodes = [norm, added]
    # The new node takes the place of the sum, because readers of the sum may precede the normalization.
    op = Builder(graph, added, prefix=norm.name or norm.outputs[0].name, origin=_origin(nodes))
    op_type, shared = SKIP[norm.op_type], len(total.uses) > 1 or total.is_output
    stem = f"{op.prefix}/{op_type}"
    outputs = [Value(stem)]
    if shared:
        outputs += [Value(""), Value(""), Value(f"{stem}:sum")]
    parameters = (gamma, beta) if norm.op_type == "LayerNormalization" else (gamma,)
    op.call(MICROSOFT, op_type, x, skip, *parameters, outputs=outputs, epsilon=float(attribute(norm, "epsilon")))
    old, new = [norm.outputs[0]], [outputs[0]]
    if shared:
        old, new = [*old, total], [*new, outputs[3]]
    what = f"{' + '.join(n.op_type for n in reversed(nodes))} -> {op_type}"
    log.replace(graph, nodes, old, new, op.made, what)


def _operands(added: Node) -> tuple[Value, Value]:
    """The addends: one with the sum's shape, and one with that shape or constant over the batch."""
    a, b = added.inputs
    assert a is not None and b is not None
    total = added.output
    if not same_shape(a, total):
        a, b = b, a
    require(same_shape(a, total), "neither addend is known to have the sum's shape", total)
    assert total.shape is not None
    shared = total.rank == 3 and b.shape in ((1, *total.shape[1:]), total.shape[1:])
    require(same_shape(b, total) or (shared and None not in total.shape), "the addends have different shapes", b)
    return a, b


@optimization("SpellBiasSkipLayerNorm")
def spell_biased_skip_norms(graph: Graph, log: Log) -> None:
    """Skip...Normalization(a + bias, b)  ->  Skip...Normalization(a, b, bias)."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            spell_biased_skip_norms(sub, log)
        if node.op_type in SKIP.values() and node.domain == MICROSOFT:
            _take_bias(graph, node, log)


def _take_bias(graph: Graph, node: Node, log: Log) -> None:
    x, skip, *parameters = node.inputs
    assert x is not None and skip is not None
    place = 2 if node.op_type == "SkipLayerNormalization" else 1
    for v, other in ((x, skip), (skip, x)):
        found = _bias(v, graph) if same_shape(v, node.outputs[0]) else None
        if found is None:
            continue
        inner, bias, added = found
        padded = [*parameters, *[None] * (place - len(parameters)), bias]
        op = Builder(graph, node, prefix=node.name, origin=_origin([node, added]))
        outputs = [Value(out.name, out.type) for out in node.outputs]
        op.call(MICROSOFT, node.op_type, inner, other, *padded, outputs=outputs, **node.attrs)
        log.replace(graph, [node, added], node.outputs, outputs, op.made, f"Add + {node.op_type} -> {node.op_type}")
        return


def _bias(v: Value, graph: Graph) -> tuple[Value, Value, Node] | None:
    """The value that a bias of the last axis was added to, the bias, and the addition, which has no other reader."""
    node = v.producer
    if node is None or node.onnx_op != "Add" or node.graph is not graph or len(v.uses) > 1 or v.is_output:
        return None
    for x, bias in (node.inputs, node.inputs[::-1]):
        if x is not None and bias is not None and bias.is_const and fits_trailing(bias, v) and same_shape(x, v):
            return x, bias, node
    return None


def _origin(nodes: list[Node]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for node in reversed(nodes) for name in node.origin))
