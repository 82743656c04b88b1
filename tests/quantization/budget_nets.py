"""Small float nets for the tests of budgets and remedies, and feeds for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Feeds = dict[str, np.ndarray]


class Net:
    """A graph that grows node by node; ``x`` is its input, ``y`` its output."""

    def __init__(self, shape: list[int | str], seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shape, self.last = shape, "x"

    def constant(self, name: str, array: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def add(self, operator: str, *constants: str, name: str = "", **attributes: Any) -> Net:
        name = name or f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, [self.last, *constants], [f"{name}:0"], name=name, **attributes))
        self.last = f"{name}:0"
        return self

    def conv(self, name: str, ins: int, outs: int, kernel: int = 3, group: int = 1, bias: bool = True) -> Net:
        fan = ins // group * kernel * kernel
        weight = self.rng.standard_normal((outs, ins // group, kernel, kernel)) * np.sqrt(2 / fan)
        operands = [self.constant(f"{name}.w", weight)]
        if bias:
            operands.append(self.constant(f"{name}.b", self.rng.standard_normal(outs) * 0.2))
        return self.add("Conv", *operands, name=name, pads=[kernel // 2] * 4, group=group)

    def gemm(self, name: str, ins: int, outs: int, **attributes: Any) -> Net:
        weight = self.rng.standard_normal((outs, ins) if attributes.get("transB") else (ins, outs)) / np.sqrt(ins)
        bias = self.constant(f"{name}.b", self.rng.standard_normal(outs) * 0.2)
        return self.add("Gemm", self.constant(f"{name}.w", weight), bias, name=name, **attributes)

    def matmul(self, name: str, ins: int, outs: int) -> Net:
        weight = self.rng.standard_normal((ins, outs)) / np.sqrt(ins)
        return self.add("MatMul", self.constant(f"{name}.w", weight), name=name)

    def model(self, opset: int = 17) -> onnx.ModelProto:
        self.nodes[-1].output[0] = "y"
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
        model = onnx.shape_inference.infer_shapes(model)
        onnx.checker.check_model(model, full_check=True)
        return model

    def feeds(self, count: int, seed: int = 1) -> list[Feeds]:
        rng, shape = np.random.default_rng(seed), [d if isinstance(d, int) else 1 for d in self.shape]
        return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def mobilenet_like() -> Net:
    """Pointwise and depthwise convolutions, whose channels have very different scales; ReLU in between."""
    net = Net(["n", 8, 12, 12])
    net.conv("stem", 8, 16).add("Relu")
    net.conv("depthwise", 16, 16, group=16).add("Relu")
    net.conv("pointwise", 16, 24, kernel=1).add("LeakyRelu", alpha=0.1)
    net.conv("last", 24, 8, kernel=1)
    net.add("GlobalAveragePool").add("Flatten").gemm("head", 8, 5)
    unbalance(net, [("stem", "depthwise"), ("depthwise", "pointwise"), ("pointwise", "last")])
    return net


def unbalance(net: Net, pairs: list[tuple[str, str]]) -> None:
    """Multiply channels of the first layer of each pair by factors from 1/30 to 30, and divide them in the second."""
    tensors = {t.name: t for t in net.constants}

    def put(name: str, array: np.ndarray) -> None:
        tensors[name].CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))

    for first, second in pairs:
        weight, bias, after = (numpy_helper.to_array(tensors[n]) for n in (f"{first}.w", f"{first}.b", f"{second}.w"))
        factors = np.exp(net.rng.uniform(-np.log(30), np.log(30), len(bias)))
        put(f"{first}.w", weight * factors[:, None, None, None])
        put(f"{first}.b", bias * factors)
        depthwise = after.shape[1] == 1
        put(f"{second}.w", after / (factors[:, None, None, None] if depthwise else factors[:, None, None]))


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """What onnxruntime's quantizer may have: it moves the weights of a proto to a temporary file."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


class Readings:
    """Calibration data as onnxruntime's API asks for it."""

    def __init__(self, feeds: list[Feeds]) -> None:
        self._rest = iter(feeds)

    def get_next(self) -> Feeds | None:
        return next(self._rest, None)


def sqnr_db(expected: np.ndarray, got: np.ndarray) -> float:
    return float(10 * np.log10(np.square(expected).sum() / np.square(expected - got).sum()))
