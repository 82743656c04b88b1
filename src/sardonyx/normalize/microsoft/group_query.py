"""GroupQueryAttention: a key and value cache that each row extends at its own length; masks by absolute position.

Row ``b`` of the cache holds ``seqlens_k[b] + 1`` tokens after the step. The first prompt (as many new tokens as the
longest row's total) is written from position 0, with shorter rows padded on the right; later steps append.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_attribute, required_input
from sardonyx.normalize.microsoft.attention import scale_of
from sardonyx.normalize.microsoft.body import (
    MICROSOFT,
    call_tuple,
    count,
    dim,
    is_used,
    like,
    refuse,
    shape,
    slice_axis,
)
from sardonyx.normalize.microsoft.rotary import join_heads, rotate, split_heads
from sardonyx.normalize.registry import expand


def check(node: Node) -> None:
    for name in ("k_quant_type", "v_quant_type"):
        if node.attrs.get(name, "NONE") != "NONE":
            raise refuse(node, f"{name}={node.attrs[name]!r}")
    if node.attrs.get("sliding_window_cache", 0):
        raise refuse(node, "sliding_window_cache")


def heads(op: Builder, node: Node) -> tuple[Value, Value, Value]:
    """Query, key and value as (batch, heads, length, size), from three tensors or from one that packs them."""
    n, kv = required_attribute(node, "num_heads"), required_attribute(node, "kv_num_heads")
    query, key, value = required_input(node, 0), node.input(1), node.input(2)
    if key is not None and value is not None:
        return split_heads(op, query, n), split_heads(op, key, kv), split_heads(op, value, kv)
    packed = split_heads(op, query, n + 2 * kv)
    parts: tuple[Value, Value, Value] = op.Split(packed, op.const([n, kv, kv]), outputs=3, axis=1)
    return parts


def append(op: Builder, past: Value | None, new: Value, at: Value, length: Value) -> Any:
    """The cache, extended to ``length`` if it is shorter, with ``new`` written at row lengths ``at``."""
    if past is None:
        return new
    grow = op.Max(op.Sub(length, dim(op, past, 2)), op.const([0]))
    pads = shape(op, 0, 0, 0, 0, 0, 0, grow, 0)
    return op.TensorScatter(op.Pad(past, pads), new, at, axis=2)


def visible(op: Builder, node: Node, positions: Value, ends: Value, keys: Value) -> Any:
    """Which keys (batch, 1, queries, keys) each query may attend to: none after its position, none outside its
    window.
    """
    places = count(op, keys)
    here = op.Unsqueeze(positions, op.const([1, 3]))
    if node.attrs.get("causal", 1):
        seen = op.LessOrEqual(places, here)
    else:
        seen = op.Less(places, op.Unsqueeze(ends, op.const([1, 2, 3])))
    window = node.attrs.get("local_window_size", -1)
    if window > 0:
        seen = op.And(seen, op.Greater(places, op.Sub(here, op.const(window))))
    return seen


@expand("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(op: Builder, node: Node) -> tuple[Value | None, ...]:
    check(node)
    query, key, value = heads(op, node)
    if (norm := node.input(14)) is not None:
        epsilon = node.attrs.get("qk_norm_epsilon", 1e-6)
        query = op.RMSNormalization(query, norm, axis=-1, epsilon=epsilon)
        key = op.RMSNormalization(key, required_input(node, 15), axis=-1, epsilon=epsilon)
    batch, new = dim(op, required_input(node, 0), 0), dim(op, required_input(node, 0), 1)
    ends = op.Add(op.Cast(op.Reshape(required_input(node, 5), op.const([-1])), to=dtypes.i64.onnx), op.const(1))
    length = op.Reshape(op.Cast(required_input(node, 6), to=dtypes.i64.onnx), op.const([1]))
    first = op.Equal(length, new)
    starts = op.Where(first, op.const([0]), op.Sub(ends, new))
    positions = op.Add(op.Unsqueeze(starts, op.const([1])), count(op, new))
    if node.attrs.get("do_rotary", 0):
        places = positions if node.input(9) is None else required_input(node, 9)
        turns = required_input(node, 7), required_input(node, 8), node.attrs.get("rotary_interleaved", 0)
        query, key = (rotate(op, x, places, *turns) for x in (query, key))
    key = append(op, node.input(3), key, starts, length)
    value = append(op, node.input(4), value, starts, length)
    seen = visible(op, node, positions, ends, dim(op, key, 2))
    y, *scores = attend(op, node, query, key, value, seen, node.input(10), batch)
    if not scores:
        return (join_heads(op, y), key, value)[: len(node.outputs)]
    qk = slice_axis(op, scores[-1], 0, dim(op, key, 2), 3)
    unmasked = op.Where(seen, qk, like(op, 0.0, required_input(node, 0)))
    return join_heads(op, y), key, value, slice_axis(op, unmasked, 0, length, 3)


def attend(
    op: Builder, node: Node, query: Value, key: Value, value: Value, seen: Value, bias: Value | None, batch: Value
) -> tuple[Value, ...]:
    """Attention in which a head may have a sink: a share of the softmax that no key gets.

    The sink is an additional zero key and value whose score is the sink's value.
    """
    sink = node.input(11)
    mask = seen
    if bias is not None or sink is not None or node.attrs.get("smooth_softmax", -1) == 1:
        zero, lowest = like(op, 0.0, required_input(node, 0)), like(op, -np.inf, required_input(node, 0))
        mask = op.Where(seen, zero if bias is None else widened(op, bias, dim(op, key, 2)), lowest)
    if sink is not None or node.attrs.get("smooth_softmax", -1) == 1:
        n = required_attribute(node, "num_heads")
        share = like(op, 0.0, required_input(node, 0)) if sink is None else op.Reshape(sink, op.const([1, n, 1, 1]))
        rows = shape(op, batch, n, dim(op, query, 2))
        mask = op.Concat(
            op.Expand(mask, shape(op, rows, dim(op, key, 2))), op.Expand(share, shape(op, rows, 1)), axis=3
        )
        key, value = (op.Pad(x, op.const([0, 0, 0, 0, 0, 0, 1, 0])) for x in (key, value))
    scores = is_used(node, 3)
    return call_tuple(
        op,
        "Attention",
        query,
        key,
        value,
        mask,
        outputs=4 if scores else 1,
        scale=scale_of(node),
        softcap=node.attrs.get("softcap"),
        qk_matmul_output_mode=(2 if node.attrs.get("qk_output", 0) == 1 else 3) if scores else None,
    )


def widened(op: Builder, bias: Value, keys: Value) -> Any:
    """A bias for the existing tokens, padded for a cache with more room."""
    return op.Pad(bias, shape(op, 0, 0, 0, 0, 0, 0, 0, op.Sub(keys, dim(op, bias, 3))))
