"""DynamicQuantizeLSTM: an LSTM whose weights are 8-bit, stored as (directions, inputs, 4 * hidden)."""

from __future__ import annotations

from typing import Any

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.microsoft.body import MICROSOFT, given, kept, several
from sardonyx.normalize.registry import expand

ATTRIBUTES = ("activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size", "input_forget")


def weight(op: Builder, quantized: Value, scale: Value, zero: Value) -> Any:
    """The real weights as LSTM takes them: (directions, 4 * hidden, inputs)."""
    if scale.rank == 1:
        scale, zero = (op.Unsqueeze(v, op.const([1])) for v in (scale, zero))
    scale, zero = (op.Unsqueeze(v, op.const([1])) for v in (scale, zero))
    offset = op.Sub(op.CastLike(quantized, scale), op.CastLike(zero, scale))
    return op.Transpose(op.Mul(offset, scale), perm=[0, 2, 1])


@expand("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(op: Builder, node: Node) -> tuple[Value, ...]:
    """LSTM with the weights dequantized. onnxruntime also quantizes input and state, step by step, for speed."""
    w = weight(op, given(node, 1), given(node, 8), given(node, 9))
    r = weight(op, given(node, 2), given(node, 10), given(node, 11))
    rest = [node.input(i) for i in range(3, 8)]
    return several(op, "LSTM", given(node, 0), w, r, *rest, outputs=len(node.outputs), **kept(node, *ATTRIBUTES))
