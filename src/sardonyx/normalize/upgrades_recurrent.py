"""RNN, GRU and LSTM before opset 7."""

from __future__ import annotations

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node
from sardonyx.normalize.registry import Result, upgrade


@upgrade("GRU", to=3)
def gru_direction(op: Builder, node: Node) -> Result:
    """The first schema misspelt its default."""
    if node.attrs.get("direction") == "foward":
        node.attrs["direction"] = "forward"
    return None


@upgrade("RNN", "GRU", "LSTM", to=7)
def sequence_output(op: Builder, node: Node) -> Result:
    """The whole sequence is returned if that output is present."""
    node.attrs.pop("output_sequence", None)
    return None
