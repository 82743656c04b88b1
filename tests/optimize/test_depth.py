"""What looks along a graph gives up in time: chains of thousands of nodes, and pairs of edges that double the ways."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx

F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
LONG, DOUBLED = 1500, 60


def info(name: str, kind: int = F, shape: list[int | str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def session(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], **constants: object
) -> sardonyx.InferenceSession:
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="y")], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return sardonyx.InferenceSession(model.SerializeToString())


def chain(first: str, last: str, count: int, op_type: str, inputs: int = 1) -> list[onnx.NodeProto]:
    """A chain of nodes; those of two inputs read the one before them twice."""
    names = [first, *(f"{last}_{i}" for i in range(1, count)), last]
    return [helper.make_node(op_type, [a] * inputs, [b]) for a, b in itertools.pairwise(names)]


@pytest.mark.timeout(120)
def test_readers_after_a_branch_that_squeezes() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], start=0, end=1),
        helper.make_node("Equal", ["size", "one"], ["is_one"]),
        helper.make_node(
            "If",
            ["is_one"],
            ["z"],
            then_branch=helper.make_graph(
                [helper.make_node("Squeeze", ["x", "axis"], ["a"])], "then", [], [onnx.ValueInfoProto(name="a")]
            ),
            else_branch=helper.make_graph(
                [helper.make_node("Identity", ["x"], ["b"])], "else", [], [onnx.ValueInfoProto(name="b")]
            ),
        ),
        *chain("z", "y", LONG, "Relu"),
    ]
    made = session(nodes, [info("x", F, ["n", 2])], one=np.array([1]), axis=np.array([0]))
    assert made.run(None, {"x": np.ones((1, 2), np.float32)})[0].shape == (2,)
    assert made.run(None, {"x": np.ones((3, 2), np.float32)})[0].shape == (3, 2)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("count", "inputs", "op_type"), [(LONG, 1, "Identity"), (LONG, 2, "Min"), (DOUBLED, 2, "Add")])
def test_conditions_of_loops(count: int, inputs: int, op_type: str) -> None:
    body = helper.make_graph(
        [
            *chain("i", "w", count, op_type, inputs),
            helper.make_node("Less", ["w", "limit"], ["on"]),
            helper.make_node("Neg", ["v"], ["u"]),
        ],
        "b",
        [info("i", I64, []), info("c", BOOL, []), info("v", F, ["n"])],
        [info("on", BOOL, []), info("u", F, ["n"])],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)]
    made = session(nodes, [info("x", F, ["n"])], trips=np.array(3), limit=np.array(1))
    assert made.run(None, {"x": np.ones(2, np.float32)})[0].shape == (2,)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("count", "inputs"), [(LONG, 1), (DOUBLED, 2)])
def test_conditions_of_loops_that_are_conjunctions(count: int, inputs: int) -> None:
    body = helper.make_graph(
        [*chain("c", "on", count, "And" if inputs == 2 else "Identity", inputs), helper.make_node("Neg", ["v"], ["u"])],
        "b",
        [info("i", I64, []), info("c", BOOL, []), info("v", F, ["n"])],
        [info("on", BOOL, []), info("u", F, ["n"])],
    )
    nodes = [helper.make_node("Loop", ["trips", "go", "x"], ["y"], body=body)]
    made = session(nodes, [info("x", F, ["n"])], trips=np.array(3), go=np.array(True))
    assert made.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [-1, -1]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("kind", "op_type", "count"), [(BOOL, "And", DOUBLED), (BOOL, "And", LONG), (F, "Add", DOUBLED), (F, "Add", LONG)]
)
def test_masks_of_attention(kind: int, op_type: str, count: int) -> None:
    nodes = [*chain("m", "mask", count, op_type, 2), helper.make_node("Attention", ["q", "q", "q", "mask"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [info("q", F, [1, 2, 4, 8]), info("m", kind, [4, 4])], [onnx.ValueInfoProto(name="y")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    made = sardonyx.InferenceSession(model.SerializeToString())
    mask = np.zeros((4, 4), np.float32) if kind == F else np.ones((4, 4), bool)
    assert made.run(None, {"q": np.ones((1, 2, 4, 8), np.float32), "m": mask})[0].shape == (1, 2, 4, 8)
