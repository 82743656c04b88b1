"""FlexAttention: attention whose scores and weights are modified by subgraphs of the model."""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.branches import splice
from sardonyx.optimize.manager import Log, optimization

PREVIEW = "ai.onnx.preview"


@optimization("ExpandFlexAttention")
def expand_flex_attention(graph: Graph, log: Log) -> None:
    """FlexAttention  ->  Attention or, with subgraphs, MatMul and Softmax around them."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            expand_flex_attention(sub, log)
        if node.domain == PREVIEW and node.op_type == "FlexAttention":
            _expand(graph, node, log)


def _expand(graph: Graph, node: Node, log: Log) -> None:
    q, k, v = node.inputs[:3]
    if q is None or k is None or v is None or q.shape is None or k.shape is None or q.dtype is None:
        log.declined(node, "the shapes of Q and K are not known")
        return
    if not len(q.shape) == len(k.shape) == 4 or (v.shape is not None and len(v.shape) != 4):
        log.declined(node, "Q, K and V do not have four axes")
        return
    heads, key_heads, width = q.shape[1], k.shape[1], q.shape[3]
    if not isinstance(heads, int) or not isinstance(key_heads, int) or not isinstance(width, int) or not width:
        log.declined(node, "the heads are not known")
        return
    op = Builder(graph, node, prefix=node.name or node.outputs[0].name, origin=node.origin)
    scale = node.attrs.get("scale", 1 / width**0.5)
    mods = [node.attrs.get(name) for name in ("score_mod", "prob_mod")]
    if not any(mods):
        precision = node.attrs.get("softmax_precision")
        y = op.Attention(q, k, v, scale=scale, softmax_precision=precision)
    else:
        y = _written_out(op, node, (q, k, v), scale, mods, heads // max(key_heads, 1))
    log.replace(graph, [node], node.outputs, [y], op.made, "written out")


def _written_out(
    op: Builder, node: Node, given: tuple[Value, ...], scale: float, mods: list[Any], shared: int
) -> Value:
    wide = dtypes.f64 if given[0].dtype is dtypes.f64 else dtypes.f32
    q, k, v = (op.Cast(x, to=wide.onnx) if x.dtype is not wide else x for x in given)
    k, v = (_repeated(op, x, shared) if shared > 1 else x for x in (k, v))
    scores = op.MatMul(op.Mul(q, op.const(scale, wide.numpy)), op.Transpose(k, perm=[0, 1, 3, 2]))
    precision = node.attrs.get("softmax_precision") or wide.onnx
    scores = op.Cast(scores, to=precision) if precision != wide.onnx else scores
    if mods[0] is not None:
        (scores,) = splice(op, mods[0], [scores])
    weights = op.Softmax(scores, axis=-1)
    if mods[1] is not None:
        (weights,) = splice(op, mods[1], [weights])
    weights = op.Cast(weights, to=wide.onnx) if precision != wide.onnx else weights
    y = op.MatMul(weights, v)
    assert given[0].dtype is not None
    found: Value = op.Cast(y, to=given[0].dtype.onnx) if given[0].dtype is not wide else y
    return found


def _repeated(op: Builder, x: Value, times: int) -> Any:
    """Repeat every head for the query heads that share it."""
    shape = op.Shape(x)
    lead, rest = op.Slice(shape, [0], [2], [0]), op.Slice(shape, [2], [4], [0])
    wide = op.Expand(op.Unsqueeze(x, [2]), op.Concat(lead, op.const([times]), rest, axis=0))
    flat = op.Concat(op.Slice(shape, [0], [1], [0]), op.const([-1]), rest, axis=0)
    return op.Reshape(wide, flat)
