"""Folds scales, growing caches and repeated heads into Attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.fusion import Fusion, Refused, fusion, require
from sardonyx.optimize.fusions.masks import Dim
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import Match, Var


def attention(op: Any, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """The pattern of an Attention with any mask and further inputs."""
    rest = (op.optional(name) for name in ("past_key", "past_value", "lengths"))
    return op.Attention(q, k, v, op.optional("mask") if mask is None else mask, *rest, name="attention")


_SAME: Any = object()


def rewritten(op: Builder, m: Match, q: Value, k: Value, v: Value, *, mask: Any = _SAME, **attrs: Any) -> Any:
    """The matched Attention with other inputs."""
    node = m.node("attention")
    inputs = (q, k, v, m.mask if mask is _SAME else mask, m.past_key, m.past_value, m.lengths)
    return op.call("", "Attention", *inputs, outputs=len(node.outputs), **{**node.attrs, **attrs})


class Scalar(Var):
    """Matches a constant of one element, by name."""

    def match(self, value: Value | None, m: Match) -> Iterator[Match]:
        if value is not None and value.is_scalar_const:
            yield from super().match(value, m)


@fusion
class FoldAttentionScale(Fusion):
    """Attention(q * a, k * b, v, scale=c)  ->  Attention(q, k, v, scale=a*b*c)."""

    shares = True

    def pattern(self, op: Any, q: Any, k: Any, v: Any) -> Any:
        queries = op.either(q * Scalar("q_times"), q / Scalar("q_over"))
        keys = op.either(k * Scalar("k_times"), k / Scalar("k_over"))
        return attention(op, queries, keys, v), attention(op, queries, k, v), attention(op, q, keys, v)

    def rewrite(self, op: Builder, m: Match) -> Any:
        node = m.node("attention")
        scaled_keys = m.k is not node.inputs[1]
        require(m.past_key is None or not scaled_keys, "keys are scaled before they enter the cache", m.k)
        require(m.q.rank == m.k.rank == m.v.rank, "a constant gives the scaled value another rank", node.inputs[0])
        scale = scale_of(node)
        require(scale is not None, "the default scale depends on an unknown head size", m.q)
        assert scale is not None
        for name, by in m.values.items():
            if name.endswith("_times") and by is not None:
                scale *= by.item()
            elif name.endswith("_over") and by is not None:
                scale /= by.item()
        return rewritten(op, m, m.q, m.k, m.v, scale=float(scale))


def scale_of(node: Node) -> float | None:
    """The scale of an Attention's scores, if known."""
    if "scale" in node.attrs:
        return float(node.attrs["scale"])
    q = node.inputs[0]
    size = None if q is None or q.shape is None else q.shape[-1]
    heads = node.attrs.get("q_num_heads", 1)
    if not isinstance(size, int) or not 1 <= heads <= size:
        return None
    return float((size // heads) ** -0.5)


@fusion
class FoldRepeatedHeads(Fusion):
    """Attention(q, repeat(k), repeat(v))  ->  Attention(q, k, v), where query heads share key heads."""

    shares = True

    def pattern(self, op: Any, q: Any, k: Any, v: Any, k_wide: Any, v_wide: Any, k_flat: Any, v_flat: Any) -> Any:
        keys = op.Reshape(op.Expand(op.Unsqueeze(k, axes=[2]), k_wide), k_flat)
        values = op.Reshape(op.Expand(op.Unsqueeze(v, axes=[2]), v_wide), v_flat)
        return attention(op, q, keys, values)

    def rewrite(self, op: Builder, m: Match) -> Any:
        require(m.past_key is None, "the cache is not repeated", m.past_key)
        _, keys, values = m.node("attention").inputs[:3]
        assert keys is not None and values is not None
        for x, repeated in ((m.k, keys), (m.v, values)):
            assert repeated.producer is not None
            wide = repeated.producer.inputs[0]
            assert wide is not None
            _require_repeated(x, wide, repeated)
        return rewritten(op, m, m.q, m.k, m.v)


def same(a: Dim, b: Dim) -> bool:
    """Whether two sizes are known to be equal."""
    return a is not None and a == b


def _require_repeated(x: Value, wide: Value, flat: Value) -> None:
    """Refuse unless every head of (batch, heads, length, size) is followed by its own copies."""
    a, b, c = x.shape, wide.shape, flat.shape
    require(a is not None and len(a) == 4, "the repeated value is not known to have 4 axes", x)
    require(
        b is not None and len(b) == 5 and c is not None and len(c) == 4, "the repeated heads' shape is unknown", flat
    )
    assert a is not None and b is not None and c is not None
    kept = all(same(d, e) for d, e in zip((a[0], a[1], a[2], a[3]), (b[0], b[1], b[3], b[4]), strict=True))
    require(kept, "axes other than the heads are repeated", wide)
    heads, times = a[1], b[2]
    whole = isinstance(heads, int) and isinstance(times, int) and c[1] == heads * times and same(c[3], a[3])
    require(whole and (same(c[0], a[0]) or same(c[2], a[2])), "repeated heads are not merged into one axis", flat)


@optimization("FoldPast")
def fold_past(graph: Graph, log: Log) -> None:
    """Attention(q, Concat(past_key, k), Concat(past_value, v))  ->  Attention(q, k, v, past_key, past_value).

    The results of the Concats become further outputs of the operator.
    """
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            fold_past(sub, log)
        if node.op_type == "Attention" and node.domain == "" and len(node.outputs) == 1 and node.input(4) is None:
            try:
                _fold_past(graph, node, log)
            except Refused as e:
                log.declined(node, str(e))


def _fold_past(graph: Graph, node: Node, log: Log) -> None:
    key, value = node.inputs[1], node.inputs[2]
    assert key is not None and value is not None
    joins = [x.producer for x in (key, value)]
    if any(j is None or j.onnx_op != "Concat" for j in joins):
        return
    concats = [j for j in joins if j is not None]
    for join, x in zip(concats, (key, value), strict=True):
        require(
            join.graph is graph and len(join.inputs) == 2 and x.rank == 4,
            "a cache is not concatenated from two values",
            x,
        )
        require(join.attrs["axis"] % 4 == 2, "a cache grows along another axis than its length", x)
        others = [n for n in x.consumers if n is not node]
        require(not others, f"the grown cache is also read by {others[0].label if others else ''}", x)
    require(node.input(6) is None, "a cache combined with lengths of keys")
    (past_key, k), (past_value, v) = (j.inputs for j in concats)
    op = Builder(graph, node, prefix=node.name, origin=tuple(o for n in (*concats, node) for o in n.origin))
    new = op.Attention(node.inputs[0], k, v, node.input(3), past_key, past_value, outputs=3, **node.attrs)
    old = [node.outputs[0], key, value]
    log.replace(graph, [node, *concats], old, new, op.made, "Concat + Concat + Attention -> Attention with a cache")
