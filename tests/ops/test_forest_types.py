"""Forests: what is known before they run, without the tables of their trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx import dtypes
from sardonyx.model.load import load
from sardonyx.normalize import normalize
from sardonyx.ops.infer import output_types
from sardonyx.ops.ml_forest import Forest, Weights

ort = pytest.importorskip("onnxruntime")

STUMP = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}  # fmt: skip
LEAVES = {"treeids": [0, 0, 0], "nodeids": [1, 1, 2], "ids": [0, 2, 1], "weights": [0.25, 0.5, 1.0]}


def model(labels: dict[str, Any], input_shape: list[Any]) -> onnx.ModelProto:
    leaves = {f"class_{name}": value for name, value in LEAVES.items()}
    node = helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", **STUMP, **leaves, **labels
    )
    label = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, input_shape)],
        [helper.make_tensor_value_info("label", label, None), helper.make_tensor_value_info("scores", 1, None)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        ({"classlabels_int64s": [7, 8, 9]}, dtypes.i64),
        ({"classlabels_strings": ["a", "b", "c"]}, dtypes.string),
    ],
)
@pytest.mark.parametrize(("shape", "rows"), [(["n", 2], "n"), ([5, 2], 5)])
def test_types_are_those_of_a_run(labels: dict[str, Any], dtype: Any, shape: list[Any], rows: Any) -> None:
    proto = model(labels, shape)
    loaded = load(proto.SerializeToString())
    normalize(loaded)
    (node,) = loaded.graph.nodes
    assert node.attrs["nodes_modes"] == ["BRANCH_LEQ", "LEAF", "LEAF"]
    assert node.attrs["class_weights"] == [0.25, 0.5, 1.0]
    label, scores = output_types(node)
    assert label is not None and scores is not None
    assert (label.dtype, label.shape) == (dtype, (rows,))
    assert (scores.dtype, scores.shape) == (dtypes.f32, (rows, 3))
    x = np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)
    theirs = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    ours = sardonyx.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6)


def test_whether_all_targets_are_reached() -> None:
    """Against the definition, on forests of three trees with two leaves each."""
    rng = np.random.default_rng(1)
    branches = np.arange(6, 9)
    forest = Forest(
        6, branches, np.zeros(3, np.int64), np.zeros(3, np.float32), np.zeros(3, np.uint8),
        np.array([0, 2, 4]), np.array([1, 3, 5]), np.zeros(3, np.int64),
    )  # fmt: skip
    seen = set()
    for _ in range(300):
        count = rng.integers(3, 14)
        leaf, target = rng.integers(0, 6, count), rng.integers(0, 2, count)
        given = set(zip(leaf.tolist(), target.tolist(), strict=True))
        wanted = all(any({(2 * t, n), (2 * t + 1, n)} <= given for t in range(3)) for n in range(2))
        weights = Weights(6, 2, leaf, target, np.ones(count, np.float32))
        assert weights.reach_every_target(forest) == wanted
        seen.add(wanted)
    assert seen == {True, False}
