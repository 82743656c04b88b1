"""Nets of the onnx package (onnx/backend/test/data/light) with weights.

Those files hold topologies: each weight is a ConstantOfShape. Here it is drawn from one seed, and a pass over the net,
node by node, scales every product to unit size and gives every normalization the statistics of its data.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_tensor_value_info
from onnx.numpy_helper import from_array, to_array

from sardonyx.interpret.bind import bind
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.model.load import load
from sardonyx.normalize import normalize

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

FILES = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIGHT = {
    "resnet50-caffe2": "light_resnet50", "densenet121": "light_densenet121", "squeezenet": "light_squeezenet",
    "shufflenet": "light_shufflenet", "inception-v1": "light_inception_v1", "inception-v2": "light_inception_v2",
    "alexnet": "light_bvlc_alexnet", "zfnet512": "light_zfnet512", "vgg19": "light_vgg19",
}  # fmt: skip
PRODUCTS = ("Conv", "Gemm")
MEAN, VARIANCE = 3, 4
"""Inputs of BatchNormalization."""
LEAST_VARIANCE = 0.1
"""A channel that happens to be constant is not blown up when it no longer is."""


def build(name: str, path: Path, seed: int) -> Arrays:
    """Write a net; returns feeds for it."""
    proto = onnx.load(FILES / f"{LIGHT[name]}.onnx")
    rng = np.random.default_rng(seed)
    shapes, fixed, nodes = _split(proto.graph)
    weights = {w: rng.standard_normal(shape).astype(np.float32) for w, shape in shapes.items()}
    known = {*shapes, *(t.name for t in proto.graph.initializer)}
    images = [i for i in proto.graph.input if i.name not in known]
    feeds = {
        i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim], np.float32) for i in images
    }
    inputs = [make_tensor_value_info(w, TensorProto.FLOAT, shape) for w, shape in shapes.items()]
    model = load(_model(proto, nodes, [*images, *inputs], fixed))
    normalize(model)
    settle(model.graph, weights, feeds)
    onnx.save(_model(proto, nodes, images, [*fixed, *map(from_array, weights.values(), weights)]), path)
    return feeds


def _split(graph: onnx.GraphProto) -> tuple[dict[str, tuple[int, ...]], list[onnx.TensorProto], list[onnx.NodeProto]]:
    """The shapes of a net's weights, by name; its other constants; and its nodes."""
    constants = {t.name: t for t in graph.initializer}
    nodes = [n for n in graph.node if n.op_type != "ConstantOfShape"]
    shapes = {n.output[0]: constants.pop(n.input[0]) for n in graph.node if n.op_type == "ConstantOfShape"}
    drawn = {name: tuple(map(int, to_array(t))) for name, t in shapes.items()}
    drawn |= {t.name: tuple(t.dims) for t in constants.values() if t.data_type == TensorProto.FLOAT}
    return drawn, [t for t in constants.values() if t.name not in drawn], nodes


def _model(proto: onnx.ModelProto, nodes: list[Any], inputs: list[Any], constants: list[Any]) -> onnx.ModelProto:
    graph = make_graph(nodes, proto.graph.name, inputs, list(proto.graph.output), constants)
    return make_model(graph, opset_imports=proto.opset_import, ir_version=8)


def settle(graph: Graph, weights: Arrays, feeds: Arrays) -> None:
    """Bring weights, in place, to where a net that is fed with `feeds` keeps its activations near 1."""
    values: dict[Value, Any] = {v: (weights | feeds)[v.name] for v in graph.inputs}
    for node in graph.nodes:
        args = [v and values.get(v, v.numpy() if v.is_const else None) for v in node.inputs]
        own = [(i, a) for i, a in enumerate(args) if (v := node.input(i)) is not None and v.name in weights]
        for i, a in own:
            _scale(a, node, i)
        if node.op_type == "BatchNormalization":
            _measure(args)
        result = bind(node)[0](*args)
        results = result if isinstance(result, tuple) else (result,)
        if node.op_type in PRODUCTS:
            by = np.float32(1 / math.sqrt(np.square(results[0]).mean()))
            for a in (*results, *(a for _, a in own)):
                a *= by
        values |= dict(zip(node.outputs, results, strict=True))


def _scale(normal: Array, node: Node, i: int) -> None:
    """Normal numbers to those of a node's input: weights of unit gain, scales around 1, biases around 0."""
    if normal.ndim > 1:
        normal *= math.sqrt(2 / normal[0].size)
        return
    is_scale = i == 1 if node.op_type == "BatchNormalization" else [n.op_type for n in node.output.consumers] == ["Mul"]
    normal *= 0.1
    normal += is_scale


def _measure(args: list[Any]) -> None:
    """Have a BatchNormalization's statistics be those of its image."""
    image = args[0].astype(np.float64)
    args[MEAN][:] = image.mean((0, 2, 3))
    args[VARIANCE][:] = np.maximum(image.var((0, 2, 3)), LEAST_VARIANCE)
