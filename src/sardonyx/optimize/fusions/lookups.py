"""Lookups in constant tables: products with one-hot rows become lookups; pointwise functions move into the table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ops import registry
from sardonyx.ops.pointwise import has_program
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.affine import Constant
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import Match, attribute

LARGEST = 1 << 17
"""Largest table that is recomputed."""


@fusion
class FoldOneHotMatMul(Fusion):
    """MatMul(Cast(x == [0, 1, .. n - 1]), w)  ->  Gather(w plus a row of zeros, x); other numbers select the zeros."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.MatMul(op.Cast(op.Equal(x, Constant("order"))), Constant("w"))

    def rewrite(self, op: Builder, m: Match) -> Any:
        require(_is_table(m.w), "the table is too large, or not a matrix", m.w)
        x, order, table = m.x, m.order.numpy(), m.w.numpy()
        require(x.dtype in (dtypes.i32, dtypes.i64), "the numbers are not of an index type", x)
        is_single = x.shape is not None and len(x.shape) >= order.ndim and x.shape[-1] == 1
        require(
            is_single and np.array_equal(order.reshape(-1), np.arange(len(table))),
            "the compared constants are not 0, 1, 2 ...",
            x,
        )
        require(np.isfinite(table).all(), "the table has numbers that are not finite", m.w)
        bounds = (op.const(np.array(n, x.dtype.numpy)) for n in (-1, len(table)))
        rows = np.concatenate((table, np.zeros_like(table[:1])))
        return op.Gather(op.const(rows), op.Clip(op.Squeeze(x, [-1]), *bounds), axis=0)


@optimization("FoldGatheredPointwise")
def fold_gathered_pointwise(graph: Graph, log: Log) -> None:
    """f(Gather(table, i), constants)  ->  Gather(f(table, constants), i)."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            fold_gathered_pointwise(sub, log)
        found = _gathered(node)
        if found is not None:
            _fold(graph, node, found, log)


def _gathered(node: Node) -> Value | None:
    """The gathered operand of a pointwise node whose other operands are constants that do not depend on the row."""
    if not has_program(node.domain, node.op_type) or len(node.outputs) != 1:
        return None
    given = dict.fromkeys(v for v in node.inputs if v is not None)
    varying = [v for v in given if not v.is_const]
    gather = varying[0].producer if len(varying) == 1 else None
    if gather is None or gather.op_type != "Gather" or gather.domain or int(attribute(gather, "axis")) != 0:
        return None
    table, out = gather.inputs[0], gather.output
    if table is None or not _is_table(table) or out.is_output or out.consumers != [node]:
        return None
    shapes = [v.const.shape for v in given if v.const is not None and v is not out]
    is_even = all(math.prod(shape) in (1, *shape[-1:]) and len(shape) <= (out.rank or 0) for shape in shapes)
    return out if is_even else None


def _is_table(value: Value) -> bool:
    return value.is_const and value.const is not None and value.rank == 2 and value.const.size <= LARGEST


def _fold(graph: Graph, node: Node, out: Value, log: Log) -> None:
    gather, meaning = out.producer, registry.find(node.domain, node.op_type)
    assert gather is not None and meaning is not None
    table, indices = gather.inputs
    assert table is not None
    given = [None if v is None else table.numpy() if v is out else v.numpy().reshape(-1) for v in node.inputs]
    op = Builder(graph, node, prefix=node.name or node.outputs[0].name, origin=(*gather.origin, *node.origin))
    rows = np.asarray(meaning.numpy(*given, **node.attrs))
    new = op.Gather(op.const(rows), indices, axis=0)
    log.replace(graph, [node, gather], node.outputs, [new], op.made, f"{node.op_type} of a table, computed once")
