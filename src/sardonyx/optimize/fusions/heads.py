"""Folds the split and merge of heads into Attention with three axes."""

from __future__ import annotations

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.fusion import Refused, require
from sardonyx.optimize.fusions.attention_parts import same
from sardonyx.optimize.fusions.masks import typed
from sardonyx.optimize.manager import Log, optimization

SPLIT = [0, 2, 1, 3]
"""(batch, length, heads, size) to (batch, heads, length, size), and its inverse."""


@optimization("FoldHeads")
def fold_heads(graph: Graph, log: Log) -> None:
    """Merge(Attention(Split(q), Split(k), Split(v)))  ->  Attention(q, k, v) with attributes for the heads.

    Split is Transpose(Reshape(x)) from (batch, length, heads * size) to (batch, heads, length, size); Merge is its
    inverse. A rotary embedding between Split and Attention is moved before the Split.
    """
    for node in list(graph.nodes):
        for _, sub in node.subgraphs():
            fold_heads(sub, log)
        if (
            node.onnx_op == "Attention"
            and node.domain == ""
            and node.inputs[0] is not None
            and node.inputs[0].rank == 4
        ):
            op = Builder(graph, node, prefix=node.name, origin=node.origin)
            try:
                _fold(op, node, log)
            except Refused as e:
                for made in reversed(op.made):
                    graph.remove(made)
                log.declined(node, str(e))


def _fold(op: Builder, node: Node, log: Log) -> None:
    merge = _merge(node)
    parts = [_joined(op, x) for x in node.inputs[:3] if x is not None]
    (q, q_heads), (k, k_heads), (v, v_heads) = parts
    require(k_heads == v_heads, "keys and values have different numbers of heads", v)
    outs = op.call(
        "",
        "Attention",
        q,
        k,
        v,
        *node.inputs[3:],
        outputs=len(node.outputs),
        **{**node.attrs, "q_num_heads": q_heads, "kv_num_heads": k_heads},
    )
    outs = outs if isinstance(outs, tuple) else (outs,)
    y, merged = typed(outs[0]), merge.outputs[0]
    if not _same_shape(y, merged):
        y = op.Reshape(y, merge.inputs[1], allowzero=merge.attrs.get("allowzero"))
    back = merge.inputs[0]
    assert back is not None and back.producer is not None
    what = "Reshape + Transpose around Attention -> Attention over three axes"
    log.replace(op.graph, [merge, back.producer, node], [merged, *node.outputs[1:]], [y, *outs[1:]], op.made, what)


def _merge(node: Node) -> Node:
    """The Reshape that follows the Transpose that follows Attention."""
    x = node.outputs[0]
    for op_type in ("Transpose", "Reshape"):
        readers = x.consumers
        require(not x.is_output and len(readers) == 1 and readers[0].onnx_op == op_type, "heads are not merged", x)
        require(readers[0].graph is node.graph, "heads are merged in another graph", x)
        x = readers[0].outputs[0]
        if op_type == "Transpose":
            require(readers[0].attrs.get("perm") == SPLIT, "heads are not merged in their order", x)
    merge = readers[0]
    to = merge.inputs[1]
    assert to is not None
    copies = to.is_const and not merge.attrs.get("allowzero", 0) and bool((to.numpy()[2:] == 0).any())
    require(not copies, "merged heads keep the size of a head", to)
    return merge


def _joined(op: Builder, x: Value) -> tuple[Value, int]:
    """For (batch, heads, length, size): the value that it was split from, perhaps rotated, and the number of heads."""
    node = x.producer
    if node is not None and node.op_type == "RotaryEmbedding" and node.domain == "":
        inner = node.inputs[0]
        assert inner is not None
        source, heads = _joined(op, inner)
        rotated = op.RotaryEmbedding(source, *node.inputs[1:], **{**node.attrs, "num_heads": heads})
        rotated.type = source.type
        return rotated, heads
    transposed = node is not None and node.onnx_op == "Transpose" and node.attrs.get("perm") == SPLIT
    require(transposed, "heads are not split by Reshape and Transpose", x)
    assert node is not None and node.inputs[0] is not None
    split = node.inputs[0].producer
    require(split is not None and split.onnx_op == "Reshape", "heads are not split by Reshape and Transpose", x)
    assert split is not None
    return _unsplit(op, split)


def _unsplit(op: Builder, split: Node) -> tuple[Value, int]:
    source, to, parts = split.inputs[0], split.inputs[1], split.outputs[0]
    assert source is not None and to is not None
    require(source.shape is not None and parts.shape is not None, "the shapes at a split are unknown", source)
    assert source.shape is not None and parts.shape is not None
    hidden, (heads, size) = source.shape[-1], parts.shape[2:]
    whole = isinstance(heads, int) and isinstance(size, int) and hidden == heads * size
    require(whole, "the last axis is not known to be split into heads", source)
    assert isinstance(heads, int)
    if len(source.shape) == 3 and (same(source.shape[0], parts.shape[0]) or same(source.shape[1], parts.shape[1])):
        return source, heads
    target = to.numpy().tolist() if to.is_const else []
    copied = [i for i, n in enumerate(target) if n == 0 and not split.attrs.get("allowzero", 0)]
    if len(source.shape) == 3 and copied and copied[0] < 2:
        return source, heads
    require(target and not copied, "batch and length are not known to be kept at a split", source)
    return typed(op.Reshape(source, op.const(np.array([*target[:2], hidden], np.int64)))), heads


def _same_shape(a: Value, b: Value) -> bool:
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return False
    unknown = [i for i, (d, e) in enumerate(zip(a.shape, b.shape, strict=True)) if not same(d, e)]
    return len(unknown) <= 1
