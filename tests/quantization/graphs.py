"""Small networks to quantize, with random weights and data from fixed seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node
Feeds = dict[str, np.ndarray]


class Network:
    """A model and data for it."""

    def __init__(self, model: onnx.ModelProto, data: Sequence[Feeds]) -> None:
        self.model, self.data = model, list(data)


class Weights:
    """Random initializers by name."""

    def __init__(self, seed: int, dtype: Any = np.float32) -> None:
        self.random, self.dtype = np.random.default_rng(seed), dtype
        self.made: list[onnx.TensorProto] = []

    def real(self, name: str, *shape: int, scale: float = 0.3) -> str:
        self.add(name, (self.random.standard_normal(shape) * scale).astype(self.dtype))
        return name

    def add(self, name: str, array: Any) -> str:
        self.made.append(numpy_helper.from_array(np.asarray(array), name))
        return name


def build(
    nodes: Sequence[onnx.NodeProto],
    weights: Weights,
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Mapping[str, Sequence[int | str]],
    opset: int = 17,
    **domains: int,
) -> onnx.ModelProto:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(weights.dtype))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, element, shape) for name, shape in outputs.items()],
        weights.made,
    )
    imports = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(d.replace("_", "."), v) for d, v in domains.items()),
    ]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def convnet(opset: int = 17, seed: int = 0) -> Network:
    """Convolutions (one depthwise), Relu and Clip, pools, pointwise operators, and a Gemm."""
    w = Weights(seed)
    nodes = [
        node("Conv", ["x", w.real("w0", 8, 3, 3, 3), w.real("b0", 8)], ["c0"], "conv0", pads=[1, 1, 1, 1]),
        node("Relu", ["c0"], ["r0"], "relu0"),
        node("MaxPool", ["r0"], ["m0"], "pool0", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["m0", w.real("w1", 8, 8, 3, 3), w.real("b1", 8)], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        node("Clip", ["c1", w.add("low", np.float32(0)), w.add("high", np.float32(6))], ["r1"], "clip1"),
        node("Conv", ["r1", w.real("w2", 8, 1, 3, 3)], ["c2"], "depthwise", pads=[1, 1, 1, 1], group=8),
        node("Conv", ["m0", w.real("w3", 8, 8, 1, 1), w.real("b3", 8)], ["c3"], "pointwise"),
        node("Add", ["c2", "c3"], ["a"], "add"),
        node("Sigmoid", ["a"], ["s"], "sigmoid"),
        node("Mul", ["s", "a"], ["sa"], "mul"),
        node("LeakyRelu", ["sa"], ["l"], "leaky"),
        node("Concat", ["l", "r1"], ["cc"], "concat", axis=1),
        node("AveragePool", ["cc"], ["p"], "average", kernel_shape=[2, 2]),
        node("GlobalAveragePool", ["p"], ["g"], "global"),
        node("Flatten", ["g"], ["f"], "flatten"),
        node("Gemm", ["f", w.real("wg", 5, 16), w.real("bg", 5)], ["h"], "gemm", transB=1),
        node("Softmax", ["h"], ["y"], "softmax", axis=-1),
    ]
    model = build(nodes, w, {"x": (TensorProto.FLOAT, ["N", 3, 16, 16])}, {"y": ["N", 5]}, opset)
    return Network(model, [{"x": w.random.standard_normal((2, 3, 16, 16)).astype(np.float32)} for _ in range(4)])


def perceptron(opset: int = 17, seed: int = 1) -> Network:
    w = Weights(seed)
    split = {"num_outputs": 2} if opset >= 18 else {}
    nodes = [
        node("Gemm", ["x", w.real("w0", 12, 16), w.real("b0", 16)], ["h0"], "gemm0"),
        node("Relu", ["h0"], ["r0"], "relu"),
        node("MatMul", ["r0", w.real("w1", 16, 20)], ["h1"], "matmul"),
        node("Add", ["h1", w.real("b1", 20)], ["h2"], "add"),
        node("Split", ["h2"], ["s0", "s1"], "split", axis=1, **split),
        node("Mul", ["s0", "s1"], ["m"], "mul"),
        node("Gemm", ["m", w.real("w2", 6, 10), w.real("b2", 6)], ["y"], "gemm2", transB=1),
    ]
    model = build(nodes, w, {"x": (TensorProto.FLOAT, ["N", 12])}, {"y": ["N", 6]}, opset)
    return Network(model, [{"x": w.random.standard_normal((3, 12)).astype(np.float32)} for _ in range(4)])


def transformer(opset: int = 17, seed: int = 2) -> Network:
    """An embedding and one layer of attention."""
    w, width, heads, length = Weights(seed), 16, 2, 6
    split, merged = (
        w.add("split", np.array([0, length, heads, width // heads])),
        w.add("merged", np.array([0, length, width])),
    )
    nodes = [
        node("Gather", [w.real("table", 30, width, scale=1), "ids"], ["e"], "gather"),
        node("Add", ["e", w.real("position", length, width)], ["ep"], "add_position"),
        node("LayerNormalization", ["ep", w.real("g0", width), w.real("n0", width)], ["x"], "norm0"),
    ]
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", ["x", w.real(f"w{name}", width, width)], [f"{name}0"], f"matmul_{name}"),
            node("Add", [f"{name}0", w.real(f"b{name}", width)], [f"{name}1"], f"add_{name}"),
            node("Reshape", [f"{name}1", split], [f"{name}2"], f"reshape_{name}"),
            node("Transpose", [f"{name}2"], [f"{name}3"], f"transpose_{name}", perm=order),
        ]
    nodes += [
        node("MatMul", ["q3", "k3"], ["scores"], "scores"),
        node("Mul", ["scores", w.add("factor", np.float32(0.35))], ["scaled"], "scale"),
        node("Softmax", ["scaled"], ["p"], "softmax", axis=-1),
        node("MatMul", ["p", "v3"], ["o"], "context"),
        node("Transpose", ["o"], ["ot"], "transpose_o", perm=[0, 2, 1, 3]),
        node("Reshape", ["ot", merged], ["or"], "reshape_o"),
        node("MatMul", ["or", w.real("wo", width, width)], ["oo"], "matmul_o"),
        node("Add", ["oo", "x"], ["residual"], "add_residual"),
        node("LayerNormalization", ["residual", w.real("g1", width), w.real("n1", width)], ["l"], "norm1"),
        node("MatMul", ["l", w.real("wf", width, 32)], ["f"], "matmul_f"),
        node("Relu", ["f"], ["fr"], "relu"),
        node("MatMul", ["fr", w.real("wy", 32, width)], ["y"], "matmul_y"),
    ]
    model = build(nodes, w, {"ids": (TensorProto.INT64, ["N", length])}, {"y": ["N", length, width]}, opset)
    return Network(model, [{"ids": w.random.integers(0, 30, (2, length))} for _ in range(4)])


NETWORKS = {"convnet": convnet, "perceptron": perceptron, "transformer": transformer}
