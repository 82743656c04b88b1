"""MultiHeadAttention, and its variant that decodes one token at a time."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_attribute, required_input
from sardonyx.normalize.microsoft.attention import attend, key_count, score_bias
from sardonyx.normalize.microsoft.body import (
    END,
    MICROSOFT,
    dim,
    index_axis,
    is_used,
    rank_of,
    refuse,
    slice_axis,
)
from sardonyx.normalize.microsoft.rotary import join_heads, split_heads
from sardonyx.normalize.registry import expand


def add_bias(op: Builder, bias: Value | None, query: Value, xs: list[Value]) -> list[Value]:
    """Add to query, key and value, or the first of them, their slices of a bias of hidden + hidden + v_hidden
    elements.
    """
    if bias is None:
        return xs
    width = dim(op, query, -1)
    twice = op.Mul(width, op.const([2]))
    bounds = ((0, width), (width, twice), (twice, END))
    return [op.Add(x, slice_axis(op, bias, *bound, 0)) for x, bound in zip(xs, bounds, strict=False)]


@expand("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(op: Builder, node: Node) -> tuple[Value, ...]:
    """Attention after the projections. Packed forms are unpacked; a key of rank 4 has separate heads already."""
    if node.input(8) is not None or node.input(9) is not None:
        raise refuse(node, "a shared key and value buffer")
    query, key, value = required_input(node, 0), node.input(1), node.input(2)

    def unpacked(packed: Value, count: int) -> list[Value]:
        """The slices of (batch, length, heads, count, size), each as (batch, length, heads * size)."""
        return [op.Reshape(index_axis(op, packed, i, 3), op.const([0, 0, -1])) for i in range(count)]

    flat = True
    if key is None:
        qkv = unpacked(query, 3)
    elif value is None:
        qkv = [query, *unpacked(key, 2)]
    else:
        qkv, flat = [query, key, value], rank_of(node, 1) != 4
    masks = node.input(4), node.input(5)
    return attend_heads(op, node, qkv, node.input(3), *masks, (node.input(6), node.input(7)), flat=flat)


def attend_heads(
    op: Builder,
    node: Node,
    qkv: list[Value],
    bias: Value | None,
    mask: Value | None,
    extra: Value | None,
    past: tuple[Value | None, Value | None],
    *,
    flat: bool,
) -> tuple[Value, ...]:
    """``flat``: the heads of key and value are one axis, like the query's."""
    biased = add_bias(op, bias, qkv[0], qkv if flat else qkv[:1])
    if flat:
        query, key, value = biased
    else:
        query, (key, value) = split_heads(op, biased[0], required_attribute(node, "num_heads")), qkv[1:]
    keys, old = key_count(op, key, 1 if flat else 2, past[0])
    scores = score_bias(op, node, mask, extra, x=qkv[0], typed=required_input(node, 0), keys=keys, past=old)
    y, *rest = attend(op, node, (query, key, value), scores, past, outputs=len(node.outputs), flat=flat)
    return y if flat else join_heads(op, y), *rest


@expand("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def decoder_masked_multi_head_attention(op: Builder, node: Node) -> tuple[Value, ...]:
    """MultiHeadAttention for one query per row, with a cache that is appended to or, if shared, written into."""
    if node.input(9) is not None:
        raise refuse(node, "cache_indirection")
    query, key, value = required_input(node, 0), node.input(1), node.input(2)
    flat = True
    if key is None or value is None:
        qkv = list(op.Split(query, outputs=3, axis=-1, num_outputs=3))
    else:
        qkv, flat = [query, key, value], rank_of(node, 1) != 4
    bias, mask, extra = node.input(10), node.input(3), node.input(4)
    if flat and node.attrs.get("past_present_share_buffer", 0):
        return write_and_attend(op, node, add_bias(op, bias, qkv[0], qkv), mask, extra)
    return attend_heads(op, node, qkv, bias, mask, extra, (node.input(5), node.input(6)), flat=flat)


def write_and_attend(
    op: Builder, node: Node, qkv: list[Value], mask: Value | None, extra: Value | None
) -> tuple[Value, ...]:
    """Write the new key and value into their caches after the past ones, then attend over all written ones."""
    query, *new = (split_heads(op, x, required_attribute(node, "num_heads")) for x in qkv)
    at = op.Reshape(op.Cast(required_input(node, 7), to=dtypes.i64.onnx), op.const([1]))
    end = op.Add(at, op.const([1]))
    rows = op.Expand(at, dim(op, required_input(node, 0), 0))
    caches = [op.TensorScatter(required_input(node, 5 + i), x, rows, axis=2) for i, x in enumerate(new)]
    key, value = (slice_axis(op, cache, 0, end, 2) for cache in caches)
    scores = score_bias(
        op, node, mask, extra, x=required_input(node, 0), typed=required_input(node, 0), keys=end, past=at
    )
    outputs = 4 if is_used(node, 3) else 1
    y, *rest = attend(op, node, (query, key, value), scores, (None, None), outputs=outputs, flat=False)
    return (join_heads(op, y), *caches, *rest[2:])[: len(node.outputs)]
