"""Graphs written node by node, with weights from one seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

Array = np.ndarray[Any, Any]


class Net:
    """Nodes and weights in the order in which they are written; each method gives the name of a value."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, array: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(from_array(array, name))
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def numbers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def linear(self, x: str, fan_in: int, fan_out: int) -> str:
        product = self.op("MatMul", x, self.weight(fan_in, fan_out, scale=fan_in**-0.5))
        return self.op("Add", product, self.weight(fan_out, scale=0.1))

    def norm(self, x: str, width: int) -> str:
        return self.op("LayerNormalization", x, self.constant(np.ones(width, np.float32)), self.weight(width), axis=-1)

    def conv(self, x: str, fan_in: int, fan_out: int, kernel: int = 3, stride: int = 1) -> str:
        w = self.weight(fan_out, fan_in, kernel, kernel, scale=(fan_in * kernel * kernel / 2) ** -0.5)
        return self.op("Conv", x, w, self.weight(fan_out), strides=[stride] * 2, pads=[kernel // 2] * 4)

    def model(self, inputs: Sequence[tuple[str, int, Sequence[Any]]], outputs: Sequence[str], opset: int = 18) -> bytes:
        given = [make_tensor_value_info(*i) for i in inputs]
        made = [make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = make_graph(self.nodes, "net", given, made, self.weights)
        model = make_model(graph, opset_imports=[make_opsetid("", opset)], ir_version=8)
        return bytes(model.SerializeToString())
