"""Masks in the forms of onnxruntime's attention operators: one mask of keys, or a bias with a row for every query."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.fusion import Refused, require
from sardonyx.optimize.fusions.attention_parts import same
from sardonyx.optimize.fusions.masks import LOW, keeps_first_key, typed
from sardonyx.optimize.manager import Log, optimization
from sardonyx.records import Record

KERNELS = (dtypes.f32, dtypes.f16, dtypes.f64)
"""Element types of onnxruntime's kernel for ONNX's Attention."""

PASSING = ("Where", "Add", "Mul", "Expand", "Unsqueeze", "Slice", "Cast")
"""Operators that propagate -inf from a constant to a mask."""


class Padding(Record):
    """A mask of keys (batch, length), nonzero for kept ones; ``fill`` is added to the scores of others."""

    keys: Value
    fill: float


def padding(mask: Value) -> Padding | None:
    """The mask of keys from which a mask (batch, 1, 1, keys) was computed: (1 - keys) * fill, or a Where."""
    node = mask.producer
    if node is None or mask.rank != 4:
        return None
    if node.onnx_op == "Mul":
        for kept, fill in (node.inputs, node.inputs[::-1]):
            dropped = kept.producer if kept is not None and fill is not None and fill.is_scalar_const else None
            if dropped is not None and dropped.onnx_op == "Sub" and _is_number(dropped.inputs[0], 1.0):
                assert fill is not None
                return _padding(dropped.inputs[1], fill)
    if node.onnx_op == "Where" and _is_number(node.inputs[1], 0.0):
        condition, _, fill = node.inputs
        if fill is not None and fill.is_scalar_const and condition is not None and condition.dtype is dtypes.bool_:
            return _padding(condition, fill)
    return None


def _padding(keys: Value | None, fill: Value) -> Padding | None:
    unsqueezed = False
    while keys is not None and keys.producer is not None and keys.producer.onnx_op in ("Cast", "Unsqueeze"):
        node = keys.producer
        if node.onnx_op == "Unsqueeze":
            axes = node.inputs[1]
            if unsqueezed or axes is None or not axes.is_const or axes.numpy().tolist() != [1, 2]:
                return None
            unsqueezed = True
        keys = node.inputs[0]
    number = float(fill.item())
    if not unsqueezed or keys is None or keys.rank != 2 or not np.isfinite(number) or number > LOW:
        return None
    return Padding(keys, number) if keys.dtype in (dtypes.i32, dtypes.i64, dtypes.bool_) else None


def _is_number(x: Value | None, number: float) -> bool:
    return x is not None and x.is_scalar_const and float(x.item()) == number


def hides_rows(mask: Value, depth: int = 6) -> bool:
    """Whether a row may have no visible key. ONNX's Attention returns 0 there; onnxruntime's own operators divide 0 by
    0.
    """
    if mask.is_const:
        hidden = ~mask.numpy() if mask.dtype is dtypes.bool_ else np.isneginf(mask.numpy())
        return bool(hidden.ndim == 0 and hidden) or bool(hidden.ndim and hidden.all(axis=-1).any())
    if mask.dtype is dtypes.bool_:
        return not keeps_first_key(mask)
    node = mask.producer
    if node is None or depth == 0 or node.onnx_op not in PASSING:
        return False
    if node.onnx_op == "Where" and keeps_first_key(node.inputs[0]) and _is_number(node.inputs[1], 0.0):
        return False
    return any(hides_rows(x, depth - 1) for x in node.inputs if x is not None and x.dtype is mask.dtype)


def bias(op: Builder, node: Node) -> Any:
    """The mask of an Attention as a bias (batch or 1, heads or 1, queries, keys) in the type of the scores."""
    mask, q = node.input(3), node.inputs[0]
    if mask is None:
        return None
    assert q is not None and q.dtype is not None
    if mask.dtype is dtypes.bool_:
        zero, lowest = (op.const(np.array(x, q.dtype.numpy)) for x in (0, -np.inf))
        mask = typed(op.Where(mask, zero, lowest))
    return with_rows(op, mask, q)


def with_rows(op: Builder, mask: Value, q: Value) -> Value:
    """A mask over four axes with a row for every query."""
    require(mask.rank is not None and q.rank in (3, 4), "the mask's rank is unknown", mask)
    assert mask.rank is not None and q.rank is not None and q.shape is not None
    if mask.rank < 4:
        mask = typed(op.Unsqueeze(mask, op.const(list(range(4 - mask.rank)))))
    assert mask.shape is not None
    rows = q.shape[-2]
    if same(mask.shape[2], rows) or mask.shape[2] != 1:
        return mask
    if isinstance(rows, int):
        return typed(op.Expand(mask, op.const([1, 1, rows, 1])))
    # In self-attention every layer takes the length from the mask, so that all layers share one node.
    at = op.Shape(mask, start=3, end=4) if same(rows, mask.shape[3]) else op.Shape(q, start=q.rank - 2, end=q.rank - 1)
    return typed(op.Expand(mask, op.Concat(op.const([1, 1]), at, op.const([1]), axis=0)))


@optimization("AdaptAttentionMasks")
def adapt_masks(graph: Graph, log: Log) -> None:
    """Attention(q, k, v, mask)  ->  Attention(q, k, v, mask') for onnxruntime's kernel of ONNX's Attention.

    The mask gets a row for every query. That kernel takes rows of the lowest finite number for rows of -inf; they are
    replaced by half of that number.
    """
    for node in list(graph.nodes):
        for _, sub in node.subgraphs():
            adapt_masks(sub, log)
        mask, q = node.input(3), node.input(0)
        if node.op_type != "Attention" or node.domain or mask is None or q is None:
            continue
        op = Builder(graph, node, prefix=node.name, origin=node.origin)
        try:
            new = with_rows(op, _finite(op, mask), q)
        except Refused as e:
            log.declined(node, str(e))
            continue
        if new is mask:
            continue
        inputs = [*node.inputs[:3], new, *node.inputs[4:]]
        outs = op.call("", "Attention", *inputs, outputs=len(node.outputs), **node.attrs)
        what = "its mask has a row for every query, and numbers that are not the lowest"
        log.replace(graph, [node], node.outputs, outs if isinstance(outs, tuple) else (outs,), op.made, what)


def _finite(op: Builder, mask: Value, depth: int = 8) -> Value:
    """A mask that is selected, multiplied or summed from constants, without the lowest finite number."""
    node = mask.producer
    if node is None or node.onnx_op not in ("Where", "Mul", "Add") or mask.dtype not in KERNELS or depth == 0:
        return mask
    assert mask.dtype is not None
    lowest = float(np.finfo(mask.dtype.numpy).min)
    inputs: list[Value | None] = list(node.inputs)
    for i, x in enumerate(inputs):
        if _is_number(x, lowest):
            inputs[i] = op.const(np.array(lowest / 2, mask.dtype.numpy))
        elif node.onnx_op == "Add" and x is not None:
            inputs[i] = _finite(op, x, depth - 1)
    return mask if inputs == list(node.inputs) else typed(op.call("", node.op_type, *inputs))
