"""BERT's embedding layer: word, position and segment lookups, their sum, and its normalization."""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_input
from sardonyx.normalize.microsoft.body import MICROSOFT, count, dim
from sardonyx.normalize.microsoft.norm import EPSILON
from sardonyx.normalize.registry import expand


def mask_index(op: Builder, ids: Value, mask: Value | None) -> Any:
    """The number of ones in each row of the mask; zeros without a mask."""
    if mask is None:
        return op.Expand(op.const(0, dtypes.i32.numpy), dim(op, ids, 0))
    return op.ReduceSum(
        op.Cast(op.Equal(mask, op.CastLike(op.const(1), mask)), to=dtypes.i32.onnx), op.const([1]), keepdims=0
    )


def embed(
    op: Builder,
    node: Node,
    tables: tuple[Value, Value, Value | None],
    gamma: Value,
    beta: Value,
    position_ids: Value | None,
) -> tuple[Value, Value, Value]:
    """(normalized, mask index, sum) of the three look-ups."""
    words, positions, segments = tables
    ids, segment_ids = required_input(node, 0), node.input(1)
    places = count(op, dim(op, ids, 1)) if position_ids is None else position_ids
    summed = op.Add(op.Gather(words, ids), op.Gather(positions, places))
    if segments is not None and segment_ids is not None:
        summed = op.Add(summed, op.Gather(segments, segment_ids))
    y = op.LayerNormalization(summed, gamma, beta, axis=-1, epsilon=node.attrs.get("epsilon", EPSILON))
    return y, mask_index(op, ids, node.input(7)), summed


@expand("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(op: Builder, node: Node) -> tuple[Value, ...]:
    tables = (required_input(node, 2), required_input(node, 3), node.input(4))
    return embed(op, node, tables, required_input(node, 5), required_input(node, 6), node.input(8))[: len(node.outputs)]


@expand("QEmbedLayerNormalization", domain=MICROSOFT)
def q_embed_layer_normalization(op: Builder, node: Node) -> tuple[Value, ...]:
    """The same over 8-bit tables, each with a scale and a zero point."""

    def real(i: int) -> Any:
        quantized = node.input(2 + i)
        if quantized is None:
            return None
        return op.DequantizeLinear(quantized, required_input(node, 8 + i), node.input(13 + i))

    words, positions, segments, gamma, beta = (real(i) for i in range(5))
    return embed(op, node, (words, positions, segments), gamma, beta, None)[: len(node.outputs)]
