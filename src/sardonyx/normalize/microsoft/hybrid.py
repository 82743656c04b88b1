"""Operators of hybrid language models: linear attention, causal convolution, gates, three-way rotary embedding."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import InvalidGraph
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_attribute, required_input
from sardonyx.normalize.microsoft.body import (
    MICROSOFT,
    call_tuple,
    like,
    rank_of,
    refuse,
    shared_attributes,
)
from sardonyx.normalize.microsoft.rotary import join_heads, split_heads
from sardonyx.normalize.registry import expand


def only(node: Node, **defaults: int) -> None:
    """Refuse attributes for features that the ai.onnx operator of the same name lacks."""
    for name, default in defaults.items():
        if node.attrs.get(name, default) != default:
            raise refuse(node, f"{name}={node.attrs[name]}")


@expand("LinearAttention", domain=MICROSOFT)
def linear_attention(op: Builder, node: Node) -> tuple[Value, ...]:
    only(node, state_window=0)
    if required_attribute(node, "q_num_heads") < required_attribute(node, "kv_num_heads"):
        raise refuse(node, "fewer query heads than key heads")
    attrs = shared_attributes(node, "chunk_size", "kv_num_heads", "q_num_heads", "scale", "update_rule")
    return call_tuple(op, "LinearAttention", *node.inputs, outputs=len(node.outputs), **attrs)


@expand("CausalConvWithState", domain=MICROSOFT)
def causal_conv_with_state(op: Builder, node: Node) -> tuple[Value, ...]:
    only(node, ndim=1, dilation=1, channels_last=0, state_window=0)
    attrs = shared_attributes(node, "activation")
    return call_tuple(op, "CausalConvWithState", *node.inputs, outputs=len(node.outputs), **attrs)


@expand("GatedAdd", domain=MICROSOFT)
def gated_add(op: Builder, node: Node) -> Any:
    return op.Add(required_input(node, 0), op.Mul(required_input(node, 1), required_input(node, 2)))


@expand("ScaledSiLU", domain=MICROSOFT)
def scaled_silu(op: Builder, node: Node) -> Any:
    """silu(scale * x)."""
    x, scale = required_input(node, 0), node.input(1)
    factor = like(op, node.attrs.get("alpha", 1.0), x) if scale is None else op.CastLike(scale, x)
    return op.Swish(op.Mul(x, factor))


@expand("GatedRMSNorm", domain=MICROSOFT)
def gated_rms_norm(op: Builder, node: Node) -> Any:
    """RMSNormalization of each block as long as the scale, times an activation of the gate; in f32."""
    x, scale, gate = (op.Cast(required_input(node, i), to=dtypes.f32.onnx) for i in range(3))
    kind = node.attrs.get("activation", "silu")
    if kind not in ("silu", "swish", "sigmoid"):
        raise InvalidGraph(f"unknown activation {kind!r}", where=node.label)
    runs = op.Reshape(x, op.Concat(op.Shape(x, end=-1), op.const([-1]), op.Shape(scale), axis=0))
    y = op.Reshape(op.RMSNormalization(runs, scale, epsilon=node.attrs.get("epsilon", 1e-5)), op.Shape(x))
    return op.CastLike(op.Mul(y, op.Sigmoid(gate) if kind == "sigmoid" else op.Swish(gate)), required_input(node, 0))


@expand("MRotaryEmbedding", domain=MICROSOFT)
def m_rotary_embedding(op: Builder, node: Node) -> Any:
    """Rotary embedding where each column of the caches is looked up by one of three positions: time, height, width."""
    x, positions, cos, sin = (required_input(node, i) for i in range(4))
    sections = required_attribute(node, "mrope_section")
    stream = np.repeat([0, 1, 2], sections)
    if node.attrs.get("mrope_layout", 0):
        places = np.arange(sum(sections))
        stream = np.where(places < 3 * np.array(sections)[places % 3], places % 3, 0)
    chosen = (np.arange(3)[:, None] == stream)[:, None, None, :]

    def combined(cache: Value) -> Any:
        zero = like(op, 0.0, cache)
        return op.ReduceSum(op.Where(op.const(chosen), op.Gather(cache, positions), zero), op.const([0]), keepdims=0)

    flat = rank_of(node, 0) == 3
    if flat:
        x = split_heads(op, x, required_attribute(node, "num_heads"))
    rotated = op.RotaryEmbedding(
        x,
        combined(cos),
        combined(sin),
        interleaved=node.attrs.get("interleaved", 0),
        rotary_embedding_dim=2 * sum(sections),
    )
    return join_heads(op, rotated) if flat else rotated
