"""Inference for recurrent layers."""

from __future__ import annotations

from sardonyx.ir.graph import Node
from sardonyx.ops.rules import Content, Result, like, rule, shaped, tensor


@rule("DynamicQuantizeLSTM", domain="com.microsoft")
@rule("RNN", "GRU", "LSTM")
def recurrent(node: Node, content: Content) -> Result:
    (first, second, _), hidden = shaped(node), shaped(node, 2)[1 if node.domain else -1]
    ways = 2 if node.attrs.get("direction") == "bidirectional" else 1
    is_batch_first = node.attrs.get("layout", 0)
    batch = first if is_batch_first else second
    y = (first, second, ways, hidden) if is_batch_first else (first, ways, second, hidden)
    state = (batch, ways, hidden) if is_batch_first else (ways, batch, hidden)
    return [like(tensor(node), shape) for shape in (y, state, state)[: len(node.outputs)]]
