"""Small networks with data for tests of quantization: an image network and a transformer layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


class Writer:
    """Collects nodes and weights."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def __call__(self, op_type: str, *inputs: str, out: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op_type, list(inputs), [out], name=f"node_{out}", **attrs))
        return out

    def const(self, name: str, array: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def normal(self, name: str, *shape: int, scale: float = 1.0) -> str:
        return self.const(name, (self.rng.standard_normal(shape) * scale).astype(np.float32))

    def model(self, inputs: dict[str, list[Any]], outputs: dict[str, list[Any]], opset: int = 17) -> onnx.ModelProto:
        sides = ([helper.make_tensor_value_info(n, FLOAT, s) for n, s in side.items()] for side in (inputs, outputs))
        graph = helper.make_graph(self.nodes, "g", *sides, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def image_network(seed: int = 0) -> onnx.ModelProto:
    """Three convolutions, a pooling and a product."""
    op = Writer(seed)
    x = op("Relu", op("Conv", "x", op.normal("w1", 8, 3, 3, 3, scale=0.3), op.normal("b1", 8, scale=0.1), out="c1",
                      pads=[1, 1, 1, 1]), out="r1")  # fmt: skip
    y = op("Relu", op("Conv", x, op.normal("w2", 16, 8, 3, 3, scale=0.15), op.normal("b2", 16, scale=0.1), out="c2",
                      pads=[1, 1, 1, 1]), out="r2")  # fmt: skip
    z = op(
        "Relu",
        op("Conv", y, op.normal("w3", 16, 16, 1, 1, scale=0.3), op.normal("b3", 16, scale=0.1), out="c3"),
        out="r3",
    )
    flat = op("Flatten", op("GlobalAveragePool", z, out="p"), out="f")
    op("Gemm", flat, op.normal("w4", 16, 10, scale=0.5), op.normal("b4", 10, scale=0.1), out="y")
    return op.model({"x": ["n", 3, 12, 12]}, {"y": ["n", 10]})


def transformer_layer(seed: int = 0, hidden: int = 32, heads: int = 4) -> onnx.ModelProto:
    """Attention and a feed-forward network, each with a residual and a normalization."""
    op = Writer(seed)
    shape = op.const("by_heads", np.array([0, 0, heads, hidden // heads]))
    flat = op.const("by_rows", np.array([0, 0, hidden]))

    def linear(x: str, name: str, n: int, k: int) -> str:
        product = op("MatMul", x, op.normal(f"w_{name}", k, n, scale=k**-0.5), out=f"m_{name}")
        return op("Add", product, op.normal(f"b_{name}", n, scale=0.1), out=f"l_{name}")

    def split(x: str, name: str, perm: list[int]) -> str:
        return op(
            "Transpose", op("Reshape", linear(x, name, hidden, hidden), shape, out=f"s_{name}"), out=name, perm=perm
        )

    def norm(x: str, name: str) -> str:
        scale, bias = op.const(f"g_{name}", np.ones(hidden, np.float32)), op.normal(f"n_{name}", hidden, scale=0.1)
        return op("LayerNormalization", x, scale, bias, out=name, axis=-1)

    q, k, v = split("x", "q", [0, 2, 1, 3]), split("x", "k", [0, 2, 3, 1]), split("x", "v", [0, 2, 1, 3])
    scores = op(
        "Mul", op("MatMul", q, k, out="qk"), op.const("scale", np.float32((hidden // heads) ** -0.5)), out="scores"
    )
    mixed = op("MatMul", op("Softmax", scores, out="shares", axis=-1), v, out="mixed")
    joined = op("Reshape", op("Transpose", mixed, out="back", perm=[0, 2, 1, 3]), flat, out="joined")
    x = norm(op("Add", "x", linear(joined, "out", hidden, hidden), out="sum1"), "norm1")
    up = op("Relu", linear(x, "up", 2 * hidden, hidden), out="active")
    norm(op("Add", x, linear(up, "down", hidden, 2 * hidden), out="sum2"), "y")
    return op.model({"x": ["n", "s", hidden]}, {"y": ["n", "s", hidden]})


def samples(model: onnx.ModelProto, count: int = 4, seed: int = 9) -> list[dict[str, Any]]:
    """Feeds; images have two samples each, sequences six steps."""
    rng = np.random.default_rng(seed)
    dims = model.graph.input[0].type.tensor_type.shape.dim
    shape = [d.dim_value or {"n": 2, "s": 6}[d.dim_param] for d in dims]
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]
