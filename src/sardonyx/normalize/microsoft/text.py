"""Tokenizer has no body over ai.onnx; its attributes are checked at load time."""

from __future__ import annotations

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node
from sardonyx.normalize.edits import required_attribute
from sardonyx.normalize.microsoft.body import MICROSOFT
from sardonyx.normalize.registry import expand
from sardonyx.ops.tokenizer import cutter


@expand("Tokenizer", domain=MICROSOFT)
def tokenizer(op: Builder, node: Node) -> None:
    for name in ("mark", "pad_value", "mincharnum"):
        required_attribute(node, name)
    cutter(node.attrs.get("separators"), node.attrs.get("tokenexp"), node.attrs["mincharnum"])
