"""Types of a whole model: onnx's inference is never shown what crashes it."""

from __future__ import annotations

import contextlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.errors import SardonyxError
from sardonyx.ir.types import TensorType
from sardonyx.model.load import load
from sardonyx.normalize.run import normalize
from sardonyx.session.session import InferenceSession

BEFORE = {
    "stated": ([-1], []),
    "padded": ([2], [helper.make_node("Pad", ["x", "c"], ["t"])]),
    "expanded": ([1], [helper.make_node("Expand", ["x", "c1"], ["t"])]),
    "cropped": ([3], [helper.make_node("CenterCropPad", ["x", "c1"], ["t"])]),
    "split": ([3], [helper.make_node("Split", ["x", "c"], ["t", "u"])]),
}
"""The shape of x, and nodes that give t a negative dimension."""


def ints(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def model(shape: list[int | str], nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto]) -> bytes:
    value = helper.make_tensor_value_info
    x, y = value("x", TensorProto.FLOAT, shape), value("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("name", BEFORE)
def test_slices_of_negative_dimensions(name: str, step: int) -> None:
    shape, before = BEFORE[name]
    constants = [ints("s", 0), ints("e", 5), ints("a", 0), ints("st", step), ints("c", -7, 1), ints("c1", -7)]
    last = helper.make_node("Slice", ["t" if before else "x", "s", "e", "a", "st"], ["y"])
    assert load(model(shape, [*before, last], constants)).graph.output_names == ["y"]
    with contextlib.suppress(SardonyxError):
        InferenceSession(model(shape, [*before, last], constants)).run(None, {"x": np.ones(abs(shape[0]), np.float32)})


def test_gathers_with_indices_of_a_negative_dimension() -> None:
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, [3, 4]), value("i", TensorProto.INT64, [-3, -2])]
    node = helper.make_node("GatherND", ["x", "i"], ["y"])
    graph = helper.make_graph([node], "g", inputs, [value("y", TensorProto.FLOAT, None)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    assert load(proto).graph.outputs[0].type.dtype.name == "f32"


def test_safe_operators_are_still_inferred() -> None:
    constants = [ints("s", 0, 1), ints("e", 5, 3), ints("i", 0)]
    nodes = [helper.make_node("Slice", ["x", "s", "e"], ["t"]), helper.make_node("GatherND", ["t", "i"], ["y"])]
    loaded = load(model([7, 4], nodes, constants))
    normalize(loaded)
    assert [n.op_type for n in loaded.graph.nodes] == ["Slice", "GatherND"]
    assert [v.name for v in loaded.graph.inputs] == ["x"]
    types = [node.output.type for node in loaded.graph.nodes]
    assert isinstance(types[0], TensorType) and types[0].shape == (5, 2)
    assert isinstance(types[1], TensorType) and types[1].shape == (2,)
