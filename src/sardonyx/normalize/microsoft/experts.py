"""Mixtures of experts: every expert runs on every token, weighted by a routing that is zero except for the best
``k``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_input
from sardonyx.normalize.microsoft.blockwise import UNSIGNED, unpack_last
from sardonyx.normalize.microsoft.body import END, MICROSOFT, like, refuse
from sardonyx.normalize.registry import expand


def routing(op: Builder, node: Node, mixing: Value | None) -> Any:
    """(experts, tokens, 1): softmax of the router's scores for each token's best ``k`` experts, 0 for others.

    With ``mixing``, the scores only select experts and ``mixing`` holds the weights.
    """
    scores = required_input(node, 1)
    weights = op.Softmax(scores, axis=-1) if mixing is None else mixing
    _, best = op.TopK(scores, op.const([node.attrs.get("k", 1)]), outputs=2, axis=-1)
    chosen = op.GatherElements(weights, best, axis=1)
    if node.attrs.get("normalize_routing_weights", 0):
        chosen = op.Div(chosen, op.ReduceSum(chosen, op.const([1]), keepdims=1))
    empty = op.Expand(like(op, 0.0, scores), op.Shape(scores))
    spread = op.ScatterElements(empty, best, chosen, axis=1)
    return op.Unsqueeze(op.Transpose(spread, perm=[1, 0]), op.const([2]))


def layer(op: Builder, x: Value, weight: Value, bias: Value | None) -> Any:
    """x W' + b for each expert: (experts, tokens, outputs)."""
    y = op.MatMul(x, op.Transpose(weight, perm=[0, 2, 1]))
    return y if bias is None else op.Add(y, op.Unsqueeze(bias, op.const([1])))


def activated(op: Builder, node: Node, y: Value, other: Value | None) -> Any:
    """The activation of the first product, times the third product if there is one."""
    kind = node.attrs.get("activation_type", "relu")
    if kind == "swiglu":
        return swiglu(op, node, y, other)
    if kind == "gelu":
        y = op.Gelu(y, approximate="tanh")
    elif kind in ("relu", "silu"):
        y = op.Relu(y) if kind == "relu" else op.Swish(y)
    elif kind != "identity":
        raise InvalidGraph(f"unknown activation {kind!r}", where=node.label)
    return y if other is None else op.Mul(y, other)


def swiglu(op: Builder, node: Node, y: Value, other: Value | None) -> Any:
    """G * sigmoid(alpha G) * (L + beta), G and L clamped. G and L are interleaved, concatenated, or two products."""
    typed, fusion = required_input(node, 0), node.attrs.get("swiglu_fusion", 0)
    if fusion == 1:
        gate, linear = (op.Slice(y, op.const([i]), op.const([END]), op.const([2]), op.const([2])) for i in (0, 1))
    elif fusion == 2:
        gate, linear = op.Split(y, outputs=2, axis=2, num_outputs=2)
    elif other is not None:
        gate, linear = y, other
    else:
        raise InvalidGraph("swiglu that is not fused needs fc3_experts_weights", where=node.label)
    limit = node.attrs.get("swiglu_limit")
    if limit is not None:
        top, bottom = like(op, limit, typed), like(op, -limit, typed)
        gate, linear = op.Min(gate, top), op.Clip(linear, bottom, top)
    shifted = op.Add(linear, like(op, node.attrs.get("activation_beta", 0.0), typed))
    return op.Mul(op.Swish(gate, alpha=node.attrs.get("activation_alpha", 1.0)), shifted)


def mixture(
    op: Builder,
    node: Node,
    layers: list[tuple[Value, Value | None] | None],
    mixing: Value | None,
) -> Any:
    """``layers`` are weights and biases of the three products; the third is optional."""
    if node.attrs.get("use_sparse_mixer", 0):
        raise refuse(node, "use_sparse_mixer")
    first, second, third = layers
    assert first is not None and second is not None
    x = required_input(node, 0)
    tokens = op.Reshape(x, op.Concat(op.const([1, -1]), op.Shape(x, start=-1), axis=0))
    partner = None if third is None else layer(op, tokens, *third)
    hidden = activated(op, node, layer(op, tokens, *first), partner)
    weighted = op.Mul(layer(op, hidden, *second), routing(op, node, mixing))
    return op.Reshape(op.ReduceSum(weighted, op.const([0]), keepdims=0), op.Shape(x))


@expand("MoE", domain=MICROSOFT)
def moe(op: Builder, node: Node) -> Any:
    third = node.input(6)
    layers: list[tuple[Value, Value | None] | None] = [
        (required_input(node, 2), node.input(3)),
        (required_input(node, 4), node.input(5)),
        None if third is None else (third, node.input(7)),
    ]
    return mixture(op, node, layers, None)


@expand("QMoE", domain=MICROSOFT)
def q_moe(op: Builder, node: Node) -> Any:
    """MoE over 2-, 4- or 8-bit weights, with a scale for each row or for each block of a row."""
    if node.attrs.get("quant_type", "int") != "int":
        raise refuse(node, f"quant_type={node.attrs['quant_type']!r}")
    if node.attrs.get("weights_prepacked", -1) == 1:
        raise refuse(node, "weights_prepacked")
    layers: list[tuple[Value, Value | None] | None] = []
    for i in range(3):
        packed, bias = node.input(2 + 3 * i), node.input(4 + 3 * i)
        layers.append(None if packed is None else (dense(op, node, packed, i), bias))
    return mixture(op, node, layers, node.input(14))


def dense(op: Builder, node: Node, packed: Value, i: int) -> Any:
    """The dequantized weights (experts, rows, columns) of product ``i``."""
    bits = node.attrs.get(f"fc{i + 1}_expert_weight_bits", node.attrs.get("expert_weight_bits", 4))
    if bits not in UNSIGNED:
        raise refuse(node, f"expert_weight_bits={bits}")
    block, scales, zeros = node.attrs.get("block_size", 0), required_input(node, 3 + 3 * i), node.input(11 + i)
    numbers = packed if bits == 8 else unpack_last(op, packed, bits)
    if zeros is None:
        points = op.Expand(op.const(np.uint8(2 ** (bits - 1))), op.Shape(scales))
    else:
        whole = zeros if bits == 8 else unpack_last(op, zeros, bits)
        points = op.Slice(whole, op.const([0]), op.Shape(scales, start=-1), op.const([-1]))
    if block:
        return op.DequantizeLinear(numbers, scales, points, axis=2, block_size=block)
    steps, offsets = (op.Unsqueeze(v, op.const([2])) for v in (scales, op.CastLike(points, scales)))
    return op.Mul(op.Sub(op.CastLike(numbers, scales), offsets), steps)
