"""The shapes that sessions report for inputs and outputs, compared with onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def info(name: str, shape: Any, kind: int = F) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def without_name(name: str) -> onnx.ValueInfoProto:
    """A dimension whose dim_param is empty."""
    found = info(name, ["a", "b"])
    found.type.tensor_type.shape.dim[0].dim_param = ""
    return found


def tensor(shape: Any) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(F, shape)


SHAPES: dict[str, Any] = {
    "named": ["a", "b"],
    "unnamed": [None, None],
    "mixed": ["a", None, 3],
    "no shape": None,
    "scalar": [],
    "empty": [0, 2],
    "expressions": ["a+1", "2*b"],
    "digits": ["3", "a"],
}
RELU = {
    f"{name}, output {form}": ([helper.make_node("Relu", ["x"], ["y"])], [info("x", shape)], [output], {})
    for name, shape in SHAPES.items()
    for form, output in {
        "alike": info("y", shape),
        "untyped": onnx.ValueInfoProto(name="y"),
        "without shape": info("y", None),
        "without names": info("y", shape and [None] * len(shape)),
        "of other names": info("y", shape and [f"d{i}" for i in range(len(shape))]),
    }.items()
}
IMAGES = [info("x", ["n", 3, "h", "w"])]
WEIGHTS = {"w": np.zeros((4, 3, 3, 3), np.float32)}
UNTYPED = onnx.ValueInfoProto(name="y")
OTHERS: dict[str, Any] = {
    "empty name": ([helper.make_node("Relu", ["x"], ["y"])], [without_name("x")], [without_name("y")], {}),
    "counted": ([helper.make_node("NonZero", ["x"], ["y"])], [info("x", ["a", "b"])], [UNTYPED], {}),
    "counted, named": (
        [helper.make_node("NonZero", ["x"], ["y"])], [info("x", ["a", "b"])], [info("y", [2, "n"], I64)], {}
    ),
    "reshaped": (
        [helper.make_node("Reshape", ["x", "s"], ["y"])], [info("x", ["a", "b"])], [UNTYPED], {"s": np.array([-1, 2])}
    ),
    "reshaped by a run": (
        [helper.make_node("Reshape", ["x", "s"], ["y"])], [info("x", ["a", "b"]), info("s", [2], I64)], [UNTYPED], {}
    ),
    "reshaped to any rank": (
        [helper.make_node("Reshape", ["x", "s"], ["y"])], [info("x", ["a", "b"]), info("s", ["k"], I64)], [UNTYPED], {}
    ),
    "sum of sizes": (
        [helper.make_node("Concat", ["x", "z"], ["y"], axis=0)],
        [info("x", ["a", "b"]), info("z", ["c", "b"])],
        [info("y", [None, None])],
        {},
    ),
    "product": (
        [helper.make_node("MatMul", ["x", "z"], ["y"])], [info("x", ["a", "k"]), info("z", ["k", "b"])], [UNTYPED], {}
    ),
    "convolved": ([helper.make_node("Conv", ["x", "w"], ["y"])], IMAGES, [UNTYPED], WEIGHTS),
    "convolved, named": (
        [helper.make_node("Conv", ["x", "w"], ["y"])], IMAGES, [info("y", ["n", "c", "h2", "w2"])], WEIGHTS
    ),
    "optional": (
        [helper.make_node("Optional", ["x"], ["y"])],
        [info("x", ["a", None])],
        [helper.make_value_info("y", helper.make_optional_type_proto(tensor(["a", None])))],
        {},
    ),
    "optional input": (
        [helper.make_node("OptionalHasElement", ["x"], ["y"])],
        [helper.make_value_info("x", helper.make_optional_type_proto(tensor(["a", None])))],
        [UNTYPED],
        {},
    ),
    "sequence": (
        [helper.make_node("SequenceConstruct", ["x", "x"], ["y"])],
        [info("x", ["a"])],
        [helper.make_value_info("y", helper.make_sequence_type_proto(tensor(["q"])))],
        {},
    ),
    "overridable": (
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [info("x", ["a", 2]), info("w", [None, 2])],
        [UNTYPED],
        {"w": np.zeros((1, 2), np.float32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", [*RELU, *OTHERS])
def test_shapes_are_shown_as_in_onnxruntime(case: str) -> None:
    peer = pytest.importorskip("onnxruntime")
    nodes, inputs, outputs, constants = {**RELU, **OTHERS}[case]
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    made = helper.make_graph(nodes, "g", inputs, outputs, stored)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    ours, theirs = (
        [
            [(v.name, v.type, v.shape) for v in side]
            for side in (s.get_inputs(), s.get_outputs(), s.get_overridable_initializers())
        ]
        for s in (library.InferenceSession(model, providers=["CPUExecutionProvider"]) for library in (sardonyx, peer))
    )
    assert ours == theirs
