"""Attention and MultiHeadAttention: masks become an additive bias, the rest is ai.onnx's Attention.

A masked key is not excluded: ``mask_filter_value`` is added to its score, so a row whose keys are all masked still
has a softmax. Only ``unidirectional`` excludes.
"""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.microsoft.body import (
    END,
    MICROSOFT,
    count,
    cut,
    dim,
    given,
    like,
    pick,
    rank_of,
    refuse,
    required,
    several,
    total,
    wanted,
)
from sardonyx.normalize.microsoft.rotary import join_heads, split_heads
from sardonyx.normalize.registry import expand


def padding_bias(
    op: Builder, node: Node, mask: Value | None, x: Value, typed: Value, keys: Value, past: Value | int
) -> Any:
    """The bias (batch, 1, queries or 1, keys), in the type of ``typed``, that a mask for the rows of ``x`` stands for.

    One axis: the ends of the valid keys, one per row, and after them, where given, their starts. Two axes: 1 for a
    valid key. Three: the same for each query. Four: the same for each query of the longest sequence.
    """
    if mask is None:
        return None
    rank = mask.rank
    if rank is None:
        raise refuse(node, "a mask of unknown rank")
    if rank == 1:
        batch = dim(op, x, 0)
        places = op.Cast(count(op, keys), to=dtypes.i32.onnx)
        padded = op.Concat(mask, op.Expand(op.const(0, dtypes.i32.numpy), batch), axis=0)
        ends, starts = (
            op.Unsqueeze(v, op.const([1]))
            for v in (cut(op, mask, 0, batch, 0), cut(op, padded, batch, op.Mul(batch, op.const([2])), 0))
        )
        valid = op.And(op.Less(places, ends), op.GreaterOrEqual(places, starts))
    else:
        if rank == 4:
            end = op.Add(dim(op, x, 1), op.const([past]) if isinstance(past, int) else past)
            mask = cut(op, cut(op, mask, past, end, 2), 0, keys, 3)
        valid = op.Greater(mask, op.const(0, dtypes.i32.numpy))
    valid = op.Unsqueeze(valid, op.const({1: [1, 2], 2: [1, 2], 3: [1]}[rank])) if rank < 4 else valid
    value = node.attrs.get("mask_filter_value", -10000.0)
    return op.Where(valid, like(op, 0.0, typed), like(op, value, typed))


def scale_of(node: Node) -> float | None:
    return node.attrs.get("scale", 0.0) or None


def attend(
    op: Builder,
    node: Node,
    qkv: tuple[Value, Value, Value],
    bias: Value | None,
    past: tuple[Value | None, Value | None],
    *,
    outputs: int,
    flat: bool = True,
) -> tuple[Value, ...]:
    """The first ``outputs`` of: output, present key, present value, scores with their bias."""
    heads = required(node, "num_heads") if flat else None
    return several(
        op,
        "Attention",
        *qkv,
        bias,
        *past,
        outputs=outputs,
        q_num_heads=heads,
        kv_num_heads=heads,
        scale=scale_of(node),
        is_causal=node.attrs.get("unidirectional", 0),
        qk_matmul_output_mode=2 if outputs == 4 else None,
    )


def key_count(op: Builder, keys: Value, axis: int, past: Value | None) -> tuple[Value, Value | int]:
    """How many keys there are with the past ones, and how many past ones."""
    new = dim(op, keys, axis)
    if past is None:
        return new, 0
    old = dim(op, past, 2)
    return op.Add(new, old), old


@expand("Attention", domain=MICROSOFT)
def attention(op: Builder, node: Node) -> tuple[Value, ...]:
    """Self attention with its input projection; keys and values of the past travel stacked in one tensor."""
    if node.attrs.get("do_rotary", 0):
        raise refuse(node, "do_rotary")
    x = given(node, 0)
    return project_and_attend(op, node, x, total(op, op.MatMul(x, given(node, 1)), node.input(2)), 3, 4, 5)


def project_and_attend(
    op: Builder, node: Node, x: Value, projected: Value, mask_at: int, past_at: int, bias_at: int | None
) -> tuple[Value, ...]:
    if node.attrs.get("past_present_share_buffer", 0):
        raise refuse(node, "past_present_share_buffer")
    sizes = node.attrs.get("qkv_hidden_sizes")
    if sizes:
        qkv = op.Split(projected, op.const(sizes), outputs=3, axis=-1)
    else:
        qkv = op.Split(projected, outputs=3, axis=-1, num_outputs=3)
    stacked = node.input(past_at)
    past = (None, None) if stacked is None else (pick(op, stacked, 0), pick(op, stacked, 1))
    keys, old = key_count(op, x, 1, past[0])
    extra = None if bias_at is None else node.input(bias_at)
    masked = padding_bias(op, node, node.input(mask_at), x, node.input(2) or x, keys, old)
    bias = extra if masked is None else total(op, masked, extra)
    if not wanted(node, 1):
        return attend(op, node, qkv, bias, past, outputs=1)
    y, key, value = attend(op, node, qkv, bias, past, outputs=3)
    return y, op.Concat(*(op.Unsqueeze(v, op.const([0])) for v in (key, value)), axis=0)


def add_bias(op: Builder, bias: Value | None, query: Value, xs: list[Value]) -> list[Value]:
    """Query, key and value with their shares of a bias of hidden + hidden + v_hidden elements."""
    if bias is None:
        return xs
    width = dim(op, query, -1)
    twice = op.Mul(width, op.const([2]))
    shares = [cut(op, bias, 0, width, 0), cut(op, bias, width, twice, 0), cut(op, bias, twice, END, 0)]
    return [op.Add(x, share) for x, share in zip(xs, shares, strict=False)]


@expand("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(op: Builder, node: Node) -> tuple[Value, ...]:
    """Attention after the projections. Packed forms are unpacked; a key of four axes has its heads split already."""
    if node.input(8) is not None or node.input(9) is not None:
        raise refuse(node, "a shared key and value buffer")
    query, key, value = given(node, 0), node.input(1), node.input(2)
    heads = required(node, "num_heads")
    if key is None:
        packed = query if rank_of(node, 0) == 5 else op.Reshape(query, op.const([0, 0, heads, 3, -1]))
        qkv = [op.Reshape(pick(op, packed, i, 3), op.const([0, 0, -1])) for i in range(3)]
    elif value is None:
        qkv = [query, *(op.Reshape(pick(op, key, i, 3), op.const([0, 0, -1])) for i in range(2))]
    else:
        qkv = [query, key, value]
    return attend_heads(op, node, qkv, node.input(3), node.input(4), node.input(5), (node.input(6), node.input(7)))


def attend_heads(
    op: Builder,
    node: Node,
    qkv: list[Value],
    bias: Value | None,
    mask: Value | None,
    extra: Value | None,
    past: tuple[Any, Any],
) -> tuple[Value, ...]:
    flat = qkv[1].rank != 4
    biased = add_bias(op, bias, qkv[0], qkv if flat else qkv[:1])
    if flat:
        query, key, value = biased
    else:
        query, (key, value) = split_heads(op, biased[0], required(node, "num_heads")), qkv[1:]
    keys, old = key_count(op, key, 1 if flat else 2, past[0])
    masked = padding_bias(op, node, mask, qkv[0], given(node, 0), keys, old)
    total_bias = extra if masked is None else total(op, masked, extra)
    y, *rest = attend(op, node, (query, key, value), total_bias, past, outputs=len(node.outputs), flat=flat)
    return y if flat else join_heads(op, y), *rest


@expand("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def decoder_masked_multi_head_attention(op: Builder, node: Node) -> tuple[Value, ...]:
    """MultiHeadAttention for one query a row, over a cache that is appended to or, when shared, written into."""
    if node.input(9) is not None:
        raise refuse(node, "cache_indirection")
    query, key, value = given(node, 0), node.input(1), node.input(2)
    if key is None or value is None:
        qkv = list(op.Split(query, outputs=3, axis=-1, num_outputs=3))
    else:
        qkv = [query, key, value]
    bias, mask, extra = node.input(10), node.input(3), node.input(4)
    past = (node.input(5), node.input(6))
    if not node.attrs.get("past_present_share_buffer", 0) or qkv[1].rank == 4:
        return attend_heads(op, node, qkv, bias, mask, extra, past)
    heads = required(node, "num_heads")
    query, key, value = (split_heads(op, x, heads) for x in add_bias(op, bias, qkv[0], qkv))
    at = op.Reshape(op.Cast(given(node, 7), to=dtypes.i64.onnx), op.const([1]))
    rows = op.Expand(at, dim(op, query, 0))
    present = [op.TensorScatter(p, new, rows, axis=2) for p, new in zip(past, (key, value), strict=True)]
    end = op.Add(at, op.const([1]))
    used_key, used_value = (cut(op, p, 0, end, 2) for p in present)
    masked = padding_bias(op, node, mask, qkv[0], given(node, 0), end, at)
    total_bias = extra if masked is None else total(op, masked, extra)
    outputs = 4 if wanted(node, 3) else 1
    y, *rest = attend(op, node, (query, used_key, used_value), total_bias, (None, None), outputs=outputs, flat=False)
    return (join_heads(op, y), *present, *rest[2:])[: len(node.outputs)]
