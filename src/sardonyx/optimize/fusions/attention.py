"""Fuses written-out attention: softmax(scale * Q @ K^T + mask) @ V, in the forms of exporters.

``FuseAttention`` matches the core, over four axes (batch, heads, length, size). Later passes fold in what surrounds it:
scales of Q and K, caches, repeated and split heads.
"""

from __future__ import annotations

from typing import Any

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.checks import number
from sardonyx.optimize.fusions.masks import Dim, Term, combine, typed
from sardonyx.optimize.pattern import Match, Var

SWAP = [0, 1, 3, 2]

STEPS = 2
"""How often exporters mask scores: by a causal mask or position bias, and by a padding mask."""


def masked(op: Any, scores: Any) -> Any:
    """The pattern of optionally scaled, capped and masked scores."""
    scaled = op.either(scores * Var("times"), scores / Var("over"), scores)
    scores = op.either(op.Tanh(scaled / Var("cap")) * Var("back"), scaled)
    for i in range(STEPS):
        mask, keep, drop, fill = (Var(f"{name}{i}") for name in ("mask", "keep", "drop", "fill"))
        scores = op.either(scores + mask, op.Where(keep, scores, fill), op.Where(drop, fill, scores), scores)
    return scores


@fusion
class FuseAttention(Fusion):
    """Softmax(scale * MatMul(q, k^T) + mask) @ v  ->  Attention(q, k, v, mask).

    A row whose keys are all masked by -inf becomes zero; the written-out form divides 0 by 0.
    """

    def pattern(self, op: Any, q: Any, kt: Any, v: Any) -> Any:
        scores = masked(op, op.MatMul(q, kt))
        soft = op.Softmax(op.maybe("Cast", scores, name="widen"), axis=lambda a: a in (-1, 3))
        weights = op.either(op.Where(op.IsNaN(soft), 0.0, soft), soft)
        return op.MatMul(op.maybe("Cast", weights), v)

    def rewrite(self, op: Builder, m: Match) -> Any:
        return attend(op, m, m.q, _keys(op, m.kt), m.v)


def attend(op: Builder, m: Match, q: Value, k: Value, v: Value) -> Any:
    """Attention with the scale, cap and masks of the match."""
    mask = combine(op, _terms(m), _scores(q, k, v))
    require(q.dtype is not None and q.dtype is k.dtype and q.dtype is v.dtype, "queries and values differ in type", v)
    scale, cap = 1.0, None
    if "times" in m.values:
        scale = number(m.times, "the scale")
    if "over" in m.values:
        scale = 1.0 / number(m.over, "the scale")
    if "cap" in m.values:
        cap = number(m.cap, "the soft cap")
        require(cap == number(m.back, "the soft cap"), "the soft cap divides and multiplies by different numbers")
    widened = [node for pattern, node in m.nodes.items() if pattern.name == "widen"]
    precision = widened[0].attrs["to"] if widened else None
    return op.Attention(q, k, v, mask, scale=scale, softcap=cap, softmax_precision=precision)


def _keys(op: Builder, kt: Value, depth: int = 8) -> Value:
    """The value that ``kt`` transposes in its last two axes. A scale on it is kept for FoldAttentionScale."""
    require(kt.rank == 4, "the keys are not known to have 4 axes", kt)
    node = kt.producer
    if node is not None and node.onnx_op in ("Mul", "Div") and depth:
        x, s = node.inputs[0], node.inputs[1]
        if node.onnx_op == "Mul" and x is not None and x.is_scalar_const:
            x, s = s, x
        if x is not None and s is not None and s.is_scalar_const and x.rank == 4:
            return typed(op.call("", node.op_type, _keys(op, x, depth - 1), s))
    if node is not None and node.onnx_op == "Reshape" and (whole := _swapped_flat(kt)) is not None:
        return whole
    if node is None or node.onnx_op != "Transpose" or node.inputs[0] is None:
        return typed(op.Transpose(kt, perm=SWAP))
    perm = [node.attrs["perm"][i] for i in SWAP]
    return node.inputs[0] if perm == [0, 1, 2, 3] else typed(op.Transpose(node.inputs[0], perm=perm))


def _swapped_flat(kt: Value) -> Value | None:
    """``x`` if ``kt`` is Reshape(Transpose(Reshape(x))), with batch and heads flattened around the transpose."""
    transposed = _source(kt, "Reshape")
    flat = _source(transposed, "Transpose")
    x = _source(flat, "Reshape")
    if x is None or flat is None or transposed is None or transposed.producer is None:
        return None
    if kt.shape is None or flat.shape is None or x.shape is None or len(x.shape) != 4 or len(flat.shape) != 3:
        return None
    (batch, heads, length, size), kept = x.shape, transposed.producer.attrs["perm"] == [0, 2, 1]
    one = flat.shape[1:] == (length, size) and kt.shape[2:] == (size, length) and None not in (length, size)
    return x if kept and one and (_same(kt.shape[0], batch) or _same(kt.shape[1], heads)) else None


def _source(x: Value | None, op_type: str) -> Value | None:
    """The input of the node of this type that computes ``x``."""
    return x.producer.inputs[0] if x is not None and x.producer is not None and x.producer.onnx_op == op_type else None


def _scores(q: Value, k: Value, v: Value) -> tuple[Dim, ...]:
    """The shape of the scores. Attention does not broadcast Q, K and V against each other as MatMul does."""
    require(q.shape is not None and len(q.shape) == 4, "the queries are not known to have 4 axes", q)
    require(v.shape is not None and len(v.shape) == 4, "the values are not known to have 4 axes", v)
    assert q.shape is not None and k.shape is not None and v.shape is not None
    for x in (k, v):
        assert x.shape is not None
        require(_same(q.shape[0], x.shape[0]), f"the batch is not known to be that of {q.name}", x)
    require(_same(k.shape[1], v.shape[1]), f"the heads are not known to be those of {k.name}", v)
    require(_same(q.shape[1], k.shape[1]) or k.shape[1] == 1, f"the heads are not known to be those of {q.name}", k)
    return (*q.shape[:3], k.shape[2])


def _same(a: Dim, b: Dim) -> bool:
    return a is not None and a == b


def _terms(m: Match) -> list[Term]:
    found = []
    for i in range(STEPS):
        if f"mask{i}" in m.values:
            found.append(Term(mask=m.values[f"mask{i}"]))
        elif f"fill{i}" in m.values:
            keeps = f"keep{i}" in m.values
            condition = m.values[f"keep{i}" if keeps else f"drop{i}"]
            found.append(Term(condition=condition, fill=m.values[f"fill{i}"], keeps=keeps))
    return found
