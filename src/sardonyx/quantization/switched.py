"""A quantized model whose layers can each be computed in float, run by run, without being built again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Model, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.model.save import save
from sardonyx.quantization.data import Feeds
from sardonyx.quantization.running import open_session
from sardonyx.quantization.source import MICROSOFT


class Switched:
    """Layers are the nodes of a model in the QDQ format that read dequantized operands; ``floats`` is the same model
    before, with a name for every node.
    """

    def __init__(self, floats: Model, quantized: Model, wanted: Collection[str], path: Path) -> None:
        model = clone(quantized)
        originals = {node.name: node for node in floats.graph.nodes}
        self.layers: list[str] = []
        for node in list(model.graph.nodes):
            if node.name in wanted and node.name in originals and _switch(model, node, originals[node.name]):
                self.layers.append(node.name)
        model = replace(model, opsets={**model.opsets, "": max(9, model.opsets.get("", 1))})
        save(model, path)
        self._session = open_session(str(path)) if self.layers else None

    def run(self, feeds: Feeds, in_float: Collection[str]) -> list[Any]:
        assert self._session is not None
        switches = {_name(layer): np.array(layer not in in_float) for layer in self.layers}
        return list(self._session.run(None, {**feeds, **switches}))


def _switch(model: Model, node: Node, original: Node) -> bool:
    """Let a node read its operands as they were, where an input says so."""
    graph, switch = model.graph, Value(_name(node.name), TensorType(dtypes.bool_, ()))
    is_switched = False
    for i, value in enumerate(node.inputs):
        plain = None if value is None else _before(model, value, original.inputs[i])
        if value is None or plain is None:
            continue
        chosen = Value(f"{switch.name}/{i}", value.type)
        graph.insert(Node("Where", [switch, value, plain], [chosen]), before=node)
        node.set_input(i, chosen)
        is_switched = True
    if is_switched:
        graph.inputs.append(switch)
    return is_switched


def _before(model: Model, value: Value, original: Value | None) -> Value | None:
    """What a dequantized value was before it was quantized; None for other values."""
    producer = value.producer
    if producer is None or producer.op_type != "DequantizeLinear" or producer.domain not in ("", MICROSOFT):
        return None
    if original is not None and original.const is not None:
        return model.graph.add_const(original.const, f"{original.name}/float")
    source = producer.inputs[0]
    maker = None if source is None else source.producer
    return None if maker is None or maker.op_type != "QuantizeLinear" else maker.inputs[0]


def _name(layer: str) -> str:
    return f"{layer}/is_quantized"
