"""What hybrid language models add to attention: linear attention, causal convolution, gates, three-way rotation."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import InvalidGraph
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.microsoft.body import MICROSOFT, given, kept, like, rank_of, refuse, required, several
from sardonyx.normalize.microsoft.rotary import join_heads, split_heads
from sardonyx.normalize.registry import expand


def only(node: Node, **defaults: int) -> None:
    """Refuse attributes that ask for what the ai.onnx operator of the same name lacks."""
    for name, default in defaults.items():
        if node.attrs.get(name, default) != default:
            raise refuse(node, f"{name}={node.attrs[name]}")


@expand("LinearAttention", domain=MICROSOFT)
def linear_attention(op: Builder, node: Node) -> tuple[Value, ...]:
    only(node, state_window=0)
    if required(node, "q_num_heads") < required(node, "kv_num_heads"):
        raise refuse(node, "fewer query heads than key heads")
    attrs = kept(node, "chunk_size", "kv_num_heads", "q_num_heads", "scale", "update_rule")
    return several(op, "LinearAttention", *node.inputs, outputs=len(node.outputs), **attrs)


@expand("CausalConvWithState", domain=MICROSOFT)
def causal_conv_with_state(op: Builder, node: Node) -> tuple[Value, ...]:
    only(node, ndim=1, dilation=1, channels_last=0, state_window=0)
    attrs = kept(node, "activation")
    return several(op, "CausalConvWithState", *node.inputs, outputs=len(node.outputs), **attrs)


@expand("GatedAdd", domain=MICROSOFT)
def gated_add(op: Builder, node: Node) -> Any:
    return op.Add(given(node, 0), op.Mul(given(node, 1), given(node, 2)))


@expand("ScaledSiLU", domain=MICROSOFT)
def scaled_silu(op: Builder, node: Node) -> Any:
    """silu(scale * x)."""
    x, scale = given(node, 0), node.input(1)
    factor = like(op, node.attrs.get("alpha", 1.0), x) if scale is None else op.CastLike(scale, x)
    return op.Swish(op.Mul(x, factor))


@expand("GatedRMSNorm", domain=MICROSOFT)
def gated_rms_norm(op: Builder, node: Node) -> Any:
    """RMSNormalization of each run of as many elements as the scale has, times an activation of the gate; in f32."""
    x, scale, gate = (op.Cast(given(node, i), to=dtypes.f32.onnx) for i in range(3))
    kind = node.attrs.get("activation", "silu")
    if kind not in ("silu", "swish", "sigmoid"):
        raise InvalidGraph(f"unknown activation {kind!r}", where=node.label)
    runs = op.Reshape(x, op.Concat(op.Shape(x, end=-1), op.const([-1]), op.Shape(scale), axis=0))
    y = op.Reshape(op.RMSNormalization(runs, scale, epsilon=node.attrs.get("epsilon", 1e-5)), op.Shape(x))
    return op.CastLike(op.Mul(y, op.Sigmoid(gate) if kind == "sigmoid" else op.Swish(gate)), given(node, 0))


@expand("MRotaryEmbedding", domain=MICROSOFT)
def m_rotary_embedding(op: Builder, node: Node) -> Any:
    """Rotary embedding where each column of the caches is looked up by one of three positions: time, height, width."""
    x, positions, cos, sin = (given(node, i) for i in range(4))
    sections = required(node, "mrope_section")
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
        x = split_heads(op, x, required(node, "num_heads"))
    rotated = op.RotaryEmbedding(
        x,
        combined(cos),
        combined(sin),
        interleaved=node.attrs.get("interleaved", 0),
        rotary_embedding_dim=2 * sum(sections),
    )
    return join_heads(op, rotated) if flat else rotated
