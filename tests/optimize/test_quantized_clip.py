"""A Relu or Clip in front of a QuantizeLinear, which may saturate at the same bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.model.load import load
from sardonyx.normalize.run import normalize

SCALE = 16
RECTIFIERS = {"Relu": (), "Clip from 0": (0, None), "Clip to what fits": (0, 255 * SCALE), "Clip": (0, 100 * SCALE)}


def layer(zero: Any, rectifier: str) -> onnx.ModelProto:
    """A dequantized convolution, rectified and quantized."""
    weights = np.random.default_rng(5).integers(-127, 128, (8, 4, 3, 3)).astype(np.int8)
    constants = {
        "w": weights, "sx": np.float32(0.5), "zx": np.uint8(100), "sw": np.float32(0.25), "zw": np.int8(0),
        "sy": np.float32(SCALE), "zy": zero,
    }  # fmt: skip
    bounds = {f"bound {i}": np.float32(v) for i, v in enumerate(RECTIFIERS[rectifier]) if v is not None}
    node = helper.make_node
    nodes = [
        node("DequantizeLinear", ["x", "sx", "zx"], ["image"]),
        node("DequantizeLinear", ["w", "sw", "zw"], ["filters"]),
        node("Conv", ["image", "filters"], ["sums"]),
        node(rectifier.split(maxsplit=1)[0], ["sums", *bounds], ["rectified"]),
        node("QuantizeLinear", ["rectified", "sy", "zy"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 4, 9, 9])]
    result = helper.np_dtype_to_tensor_dtype(zero.dtype)
    outputs = [helper.make_tensor_value_info("y", result, [1, 8, 7, 7])]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants | bounds).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("rectifier", RECTIFIERS)
@pytest.mark.parametrize("zero", [np.uint8(0), np.int8(-128), np.uint8(3), np.int8(0)])
def test_saturation_takes_the_place_of_the_bounds(zero: Any, rectifier: str) -> None:
    model = layer(zero, rectifier)
    session = sardonyx.InferenceSession(model.SerializeToString())
    saturates = int(zero) == np.iinfo(zero.dtype).min and rectifier != "Clip"
    left = {placement.op_type for placement in session.explain().placements}
    assert not left & {"Relu", "Clip"}
    assert bool(left & {"Max", "Min"}) != saturates, "integers are clipped where saturation does not do that"
    plain = load(model)
    normalize(plain)
    x = np.random.default_rng(6).integers(0, 256, (1, 4, 9, 9)).astype(np.uint8)
    program = Program(list(plain.graph.nodes), plain.graph.inputs, plain.graph.outputs, bind)
    (want,) = program.run([x], RunContext())
    (got,) = session.run(None, {"x": x})
    assert (want == zero).any() and len(np.unique(want)) > 20
    np.testing.assert_array_equal(got, want)
