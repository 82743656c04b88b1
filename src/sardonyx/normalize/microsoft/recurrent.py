"""DynamicQuantizeLSTM: an LSTM whose weights are 8-bit, stored as (directions, inputs, 4 * hidden)."""

from __future__ import annotations

from typing import Any

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_input
from sardonyx.normalize.microsoft.body import MICROSOFT, call_tuple, shared_attributes
from sardonyx.normalize.registry import expand

ATTRIBUTES = ("activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size", "input_forget")


def weight(op: Builder, quantized: Value, scale: Value, zero: Value) -> Any:
    """The dequantized weights in LSTM's layout: (directions, 4 * hidden, inputs)."""
    if scale.rank == 1:
        scale, zero = (op.Unsqueeze(v, op.const([1])) for v in (scale, zero))
    scale, zero = (op.Unsqueeze(v, op.const([1])) for v in (scale, zero))
    offset = op.Sub(op.CastLike(quantized, scale), op.CastLike(zero, scale))
    return op.Transpose(op.Mul(offset, scale), perm=[0, 2, 1])


@expand("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(op: Builder, node: Node) -> tuple[Value, ...]:
    """LSTM with the weights dequantized. onnxruntime also quantizes input and state, step by step, for speed."""
    w = weight(op, required_input(node, 1), required_input(node, 8), required_input(node, 9))
    r = weight(op, required_input(node, 2), required_input(node, 10), required_input(node, 11))
    rest = [node.input(i) for i in range(3, 8)]
    return call_tuple(
        op,
        "LSTM",
        required_input(node, 0),
        w,
        r,
        *rest,
        outputs=len(node.outputs),
        **shared_attributes(node, *ATTRIBUTES),
    )
