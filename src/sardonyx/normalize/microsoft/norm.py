"""Layer and group normalization, with fused preceding additions."""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_attribute, required_input
from sardonyx.normalize.microsoft.body import (
    MICROSOFT,
    call_tuple,
    channels_first,
    channels_last,
    is_used,
    rank_of,
    sum_given,
)
from sardonyx.normalize.registry import expand

EPSILON = 1e-12


def inverse_rms(op: Builder, x: Value, axes: list[int], epsilon: float) -> Any:
    """1 / sqrt(mean(x*x) + epsilon) over some axes, which are kept with size 1, in f32."""
    wide = op.Cast(x, to=dtypes.f32.onnx)
    mean = op.ReduceMean(op.Mul(wide, wide), op.const(axes), keepdims=1)
    return op.Reciprocal(op.Sqrt(op.Add(mean, op.const(epsilon))))


def simplified(op: Builder, node: Node) -> tuple[Value | None, ...]:
    """x / rms(x) * scale; the second output is 1 / rms(x)."""
    x = required_input(node, 0)
    axis, epsilon = node.attrs.get("axis", -1), node.attrs.get("epsilon", 1e-5)
    y = op.RMSNormalization(
        x, required_input(node, 1), axis=axis, epsilon=epsilon, stash_type=node.attrs.get("stash_type")
    )
    if not is_used(node, 1):
        return (y,)
    axes = list(range(axis, 0)) if axis < 0 else list(range(axis, rank_of(node, 0)))
    return y, inverse_rms(op, x, axes, epsilon)


expand("SimplifiedLayerNormalization", domain="")(simplified)
expand("SimplifiedLayerNormalization", domain=MICROSOFT)(simplified)


@expand("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(op: Builder, node: Node) -> tuple[Value | None, ...]:
    """LayerNormalization of input + skip + bias; the sum is the last output."""
    summed = sum_given(op, required_input(node, 0), required_input(node, 1), node.input(4))
    statistics = is_used(node, 1) or is_used(node, 2)
    y, *rest = call_tuple(
        op,
        "LayerNormalization",
        summed,
        required_input(node, 2),
        node.input(3),
        outputs=3 if statistics else 1,
        axis=-1,
        epsilon=node.attrs.get("epsilon", EPSILON),
    )
    mean, inverse = rest if statistics else (None, None)
    return (y, mean, inverse, summed)[: len(node.outputs)]


@expand("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(op: Builder, node: Node) -> tuple[Value | None, ...]:
    """RMSNormalization of input + skip + bias; the sum is the last output, and there is no mean."""
    epsilon = node.attrs.get("epsilon", EPSILON)
    summed = sum_given(op, required_input(node, 0), required_input(node, 1), node.input(3))
    y = op.RMSNormalization(summed, required_input(node, 2), axis=-1, epsilon=epsilon)
    inverse = inverse_rms(op, summed, [-1], epsilon) if is_used(node, 2) else None
    return (y, None, inverse, summed)[: len(node.outputs)]


def group_norm(op: Builder, node: Node, x: Value, *, rank: int | None, last: bool) -> Any:
    wide = op.Cast(channels_first(op, x, rank) if last else x, to=dtypes.f32.onnx)
    gamma, beta = (op.Cast(required_input(node, i), to=dtypes.f32.onnx) for i in (1, 2))
    epsilon = node.attrs.get("epsilon", 1e-5)
    y = op.GroupNormalization(wide, gamma, beta, num_groups=required_attribute(node, "groups"), epsilon=epsilon)
    if required_attribute(node, "activation") == 1:
        y = op.Swish(y)
    return op.CastLike(channels_last(op, y, rank) if last else y, x)


@expand("GroupNorm", domain=MICROSOFT)
def group_norm_op(op: Builder, node: Node) -> Any:
    """GroupNormalization over channels-last data, in f32, with an optional SiLU."""
    x = required_input(node, 0)
    return group_norm(op, node, x, rank=x.rank, last=bool(node.attrs.get("channels_last", 1)))


@expand("SkipGroupNorm", domain=MICROSOFT)
def skip_group_norm(op: Builder, node: Node) -> tuple[Value, ...]:
    """GroupNorm of x + skip + bias; the sum is the second output."""
    last = bool(node.attrs.get("channels_last", 1))
    x, skip, bias = required_input(node, 0), required_input(node, 3), node.input(4)
    if rank_of(node, 3) == 2:
        skip = op.Unsqueeze(skip, op.const([1, 2] if last else [2, 3]))
    if bias is not None and not last:
        bias = op.Unsqueeze(bias, op.const([1, 2]))
    summed = sum_given(op, x, skip, bias)
    return (group_norm(op, node, summed, rank=x.rank, last=last), summed)[: len(node.outputs)]
