"""Rules for tables that are looked up: the same in dynamic quantization and in the QOperator format."""

from __future__ import annotations

from sardonyx.ir.graph import Node, Value
from sardonyx.quantization import names
from sardonyx.quantization.rewriter import Rewriter, quantized_name
from sardonyx.quantization.source import MICROSOFT, is_weight


def gather(rewriter: Rewriter, node: Node) -> bool:
    """A constant table becomes integers, and so do the rows that are read from it."""
    table = node.input(0)
    stored = rewriter.activation(table) if is_weight(table) else None
    if stored is None or stored.zero_point.dtype is None:
        return False
    result = rewriter.value(names.quantized(node.outputs[0].name), stored.zero_point.dtype, node.outputs[0])
    rewriter.add("Gather", [stored.integers, *node.inputs[1:]], [result], node.attrs, name=node.name)
    rewriter.keep(node.outputs[0], result, stored.scale, stored.zero_point, stored)
    return True


def embed_layer_normalization(rewriter: Rewriter, node: Node) -> bool:
    """Word, position and segment tables, scale and bias become integers; the result is real."""
    if len(node.outputs) > 2:
        return False
    stored = [rewriter.activation(node.input(i)) for i in range(2, 7)]
    if any(each is None and node.input(i) is not None for i, each in enumerate(stored, 2)):
        return False
    columns: list[list[Value | None]] = [[None if each is None else each.all[k] for each in stored] for k in range(3)]
    inputs = [node.input(0), node.input(1), *columns[0], node.input(7), *columns[1], *columns[2]]
    outputs = [Value(out.name, out.type) for out in node.outputs]
    rewriter.add("QEmbedLayerNormalization", inputs, outputs, node.attrs, name=quantized_name(node), domain=MICROSOFT)
    for old, new in zip(node.outputs, outputs, strict=True):
        rewriter.graph.replace_uses(old, new)
    return True
