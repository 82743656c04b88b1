"""Attention: masks become an additive bias; ai.onnx's Attention does the rest.

A masked key is not excluded: ``mask_filter_value`` is added to its score, so a row whose keys are all masked still has
a softmax. Only ``unidirectional`` excludes keys.
"""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_attribute, required_input
from sardonyx.normalize.microsoft.body import (
    MICROSOFT,
    call_tuple,
    count,
    dim,
    index_axis,
    is_used,
    like,
    refuse,
    slice_axis,
    sum_given,
)
from sardonyx.normalize.registry import expand


def score_bias(
    op: Builder,
    node: Node,
    mask: Value | None,
    extra: Value | None,
    *,
    x: Value,
    typed: Value,
    keys: Value,
    past: Value | int,
) -> Any:
    """The bias of the scores (batch, heads, queries, keys): ``extra`` plus the bias of a mask for the rows of x.

    A mask of one axis holds the end of the valid keys of each row, optionally followed by their starts. Two axes: 1 for
    a valid key. Three: the same for each query. Four: the same for each query of the longest sequence.
    """
    if mask is None:
        return extra
    rank = mask.rank
    if rank is None:
        raise refuse(node, "a mask of unknown rank")
    if rank == 1:
        batch = dim(op, x, 0)
        places = op.Cast(count(op, keys), to=dtypes.i32.onnx)
        padded = op.Concat(mask, op.Expand(op.const(0, dtypes.i32.numpy), batch), axis=0)
        ends, starts = (
            op.Unsqueeze(v, op.const([1]))
            for v in (slice_axis(op, mask, 0, batch, 0), slice_axis(op, padded, batch, op.Mul(batch, op.const([2])), 0))
        )
        valid = op.And(op.Less(places, ends), op.GreaterOrEqual(places, starts))
    else:
        if rank == 4:
            end = op.Add(dim(op, x, 1), op.const([past]) if isinstance(past, int) else past)
            mask = slice_axis(op, slice_axis(op, mask, past, end, 2), 0, keys, 3)
        valid = op.Greater(mask, op.const(0, dtypes.i32.numpy))
    valid = op.Unsqueeze(valid, op.const({1: [1, 2], 2: [1, 2], 3: [1]}[rank])) if rank < 4 else valid
    value = node.attrs.get("mask_filter_value", -10000.0)
    return sum_given(op, op.Where(valid, like(op, 0.0, typed), like(op, value, typed)), extra)


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
    heads = required_attribute(node, "num_heads") if flat else None
    return call_tuple(
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
    """The number of keys including past ones, and the number of past ones."""
    new = dim(op, keys, axis)
    if past is None:
        return new, 0
    old = dim(op, past, 2)
    return op.Add(new, old), old


@expand("Attention", domain=MICROSOFT)
def attention(op: Builder, node: Node) -> tuple[Value, ...]:
    """Self-attention with its input projection; past keys and values are stacked in one tensor."""
    if node.attrs.get("do_rotary", 0):
        raise refuse(node, "do_rotary")
    x = required_input(node, 0)
    return project_and_attend(op, node, x, sum_given(op, op.MatMul(x, required_input(node, 1)), node.input(2)), 3, 4, 5)


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
    past = (None, None) if stacked is None else (index_axis(op, stacked, 0), index_axis(op, stacked, 1))
    keys, old = key_count(op, x, 1, past[0])
    extra = None if bias_at is None else node.input(bias_at)
    bias = score_bias(op, node, node.input(mask_at), extra, x=x, typed=node.input(2) or x, keys=keys, past=old)
    if not is_used(node, 1):
        return attend(op, node, qkv, bias, past, outputs=1)
    y, key, value = attend(op, node, qkv, bias, past, outputs=3)
    return y, op.Concat(*(op.Unsqueeze(v, op.const([0])) for v in (key, value)), axis=0)
