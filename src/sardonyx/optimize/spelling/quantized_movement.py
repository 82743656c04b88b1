"""Operators that only move elements, applied to the integers."""

from __future__ import annotations

from typing import Any

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.optimize.fusion import Fusion, Refused, fusion, require
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import Match, attribute
from sardonyx.optimize.spelling.quantized import GROUPS
from sardonyx.optimize.spelling.quantized_values import Produced, Quantized, dequantized, is_dequantized, quantized

REARRANGE = ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that keep every element exactly once."""

MOVE = frozenset({
    *REARRANGE, "DepthToSpace", "Expand", "Gather", "GatherElements", "MaxPool", "Pad", "ReduceMax", "ReduceMin",
    "Resize", "Slice", "SpaceToDepth", "Split", "Tile",
})  # fmt: skip
"""Operators whose results are elements of their first input, or zeros."""

LOOK_AHEAD = 8
"""Longest chain of such operators through which readers are searched."""


@optimization("SinkDequantize")
def sink_dequantize(graph: Graph, log: Log) -> None:
    """move(DequantizeLinear(q))  ->  DequantizeLinear(move(q)), if readers can take the integers."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            sink_dequantize(sub, log)
        if (
            _moves(node)
            and is_dequantized(node.inputs[0])
            and all(_readers_accept_integers(out, 0) for out in node.outputs)
        ):
            _sink(graph, node, log)


def _sink(graph: Graph, node: Node, log: Log) -> None:
    try:
        x = dequantized(node.inputs[0])
    except Refused as e:
        log.declined(node, str(e))
        return
    op = Builder(graph, node, prefix=node.name or node.outputs[0].name, origin=node.origin)
    steps = x.scalars(op)
    others = list(node.inputs[1:])
    if _fills(node):
        others[1:2] = [steps[1]]
    moved = op.call("", node.op_type, x.q, *others, outputs=len(node.outputs), **node.attrs)
    parts = moved if isinstance(moved, tuple) else (moved,)
    for part, real in zip(parts, node.outputs, strict=True):
        part.type = _like(real, x)
    new = tuple(op.DequantizeLinear(part, *steps) for part in parts)
    log.replace(graph, [node], node.outputs, new, op.made, f"{node.op_type} of the integers")


def _like(real: Value, x: Quantized) -> TensorType:
    """The type of the integers with the shape of the floats."""
    return TensorType(x.dtype, real.shape)


def _moves(node: Node) -> bool:
    if node.op_type not in MOVE or node.domain or not node.inputs:
        return False
    if node.op_type == "Resize":
        return attribute(node, "mode") == "nearest" and node.input(1) is None
    if _fills(node):
        value = node.input(2)
        return value is None or (value.is_scalar_const and value.item() == 0)
    return node.op_type != "MaxPool" or len(node.outputs) == 1


def _fills(node: Node) -> bool:
    return node.op_type == "Pad" and attribute(node, "mode") == "constant"


def _readers_accept_integers(v: Value, depth: int) -> bool:
    """Whether all readers of ``v`` can read integers instead."""
    if v.is_output or depth > LOOK_AHEAD or not v.uses:
        return False
    return all(_accepts_integers(reader, i, depth) for reader, i in v.uses)


def _accepts_integers(reader: Node, i: int, depth: int) -> bool:
    if reader.op_type == "QuantizeLinear" or (reader.op_type in ("Gemm", "MatMul") and not reader.domain):
        return i == 0 or (reader.op_type != "QuantizeLinear" and is_dequantized(reader.inputs[0]))
    if _moves(reader):
        return i == 0 and all(_readers_accept_integers(out, depth + 1) for out in reader.outputs)
    return reader.op_type in GROUPS and all(n.op_type == "QuantizeLinear" for n in reader.outputs[0].consumers)


@fusion
class RaiseQuantize(Fusion):
    """QuantizeLinear(rearrange(x))  ->  rearrange(QuantizeLinear(x))."""

    def pattern(self, op: Any, s: Any) -> Any:
        return op.QuantizeLinear(Produced(*REARRANGE, name="move"), s, op.optional("z"), name="quantize")

    def rewrite(self, op: Builder, m: Match) -> Any:
        y = quantized(m.node("quantize"))
        moves = _rearranged(m.node("move"))
        x = moves[-1].inputs[0]
        assert x is not None
        require(_is_private(x), "the rearranged value has other readers", x)
        attrs = {key: value for key, value in m.node("quantize").attrs.items() if key != "axis"}
        moved = op.QuantizeLinear(x, *y.scalars(op), **attrs)
        moved.type = _like(x, y)
        for move in reversed(moves):
            moved = op.call("", move.op_type, moved, *move.inputs[1:], **move.attrs)
            moved.type = _like(move.outputs[0], y)
        return moved


def _is_private(v: Value) -> bool:
    return len(v.uses) == 1 and not v.is_output


def _rearranged(last: Node) -> list[Node]:
    """A rearrangement and its predecessors without other readers, last first."""
    moves, x = [last], last.inputs[0]
    while x is not None and _is_private(x) and x.producer is not None:
        if x.producer.op_type not in REARRANGE or x.producer.domain:
            break
        moves.append(x.producer)
        x = x.producer.inputs[0]
    return moves


@fusion
class FoldDequantizedArg(Fusion):
    """ArgMax(DequantizeLinear(q)), ArgMin(DequantizeLinear(q))  ->  the same of the integers, whose order is equal."""

    shares = True

    def pattern(self, op: Any, q: Any, s: Any) -> Any:
        real = op.DequantizeLinear(q, s, op.optional("z"), name="real")
        return op.call("", ("ArgMax", "ArgMin"), real, name="arg")

    def rewrite(self, op: Builder, m: Match) -> Any:
        x, arg = dequantized(m.node("real").output), m.node("arg")
        require(x.scale.item() > 0, "the scale is not positive", x.scale)
        return op.call("", arg.op_type, x.q, **arg.attrs)
