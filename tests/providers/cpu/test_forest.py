"""Decision trees, against onnxruntime and the groups' own meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx import errors
from sardonyx.lower import interpret
from sardonyx.lower.build import lower
from sardonyx.model.load import load
from sardonyx.normalize.run import normalize
from sardonyx.optimize.pipelines import optimize
from tests.lower.agree import part_of

ort = pytest.importorskip("onnxruntime")

FEATURES = 5


def trees(
    count: int, targets: int, *, mode: str = "BRANCH_LEQ", seed: int = 0, features: int = FEATURES
) -> dict[str, Any]:
    """Random trees whose leaves weigh every target, in the form of TreeEnsembleRegressor."""
    rng = np.random.default_rng(seed)
    nodes: dict[str, list[Any]] = {
        name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    weights: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree: int, depth: int, free: list[int]) -> int:
        number = free[0]
        free[0] += 1
        is_leaf = depth == 0 or (depth < 4 and rng.random() < 0.2)
        row = len(nodes["nodeids"])
        for name, value in zip(
            nodes, (tree, number, int(rng.integers(features)), float(rng.standard_normal()), mode, 0, 0), strict=True
        ):
            nodes[name].append(value)
        if is_leaf:
            nodes["modes"][row], nodes["featureids"][row] = "LEAF", 0
            for target in range(targets):
                for name, value in zip(weights, (tree, number, target, float(rng.standard_normal())), strict=True):
                    weights[name].append(value)
        else:
            nodes["truenodeids"][row] = grow(tree, depth - 1, free)
            nodes["falsenodeids"][row] = grow(tree, depth - 1, free)
        return number

    for tree in range(count):
        grow(tree, 4, [0])
    tracks = [int(m != "LEAF" and rng.random() < 0.5) for m in nodes["modes"]]
    found = {f"nodes_{k}": v for k, v in nodes.items()} | {f"target_{k}": v for k, v in weights.items()}
    return {**found, "nodes_missing_value_tracks_true": tracks, "n_targets": targets}


def model(kind: str, attributes: dict[str, Any], outputs: list[str]) -> bytes:
    node = helper.make_node(kind, ["x"], outputs, domain="ai.onnx.ml", **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])
    types = {"label": TensorProto.INT64}
    results = [helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), None) for name in outputs]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "g", [x], results)
    return bytes(helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString())


def rows(count: int) -> Any:
    x = np.random.default_rng(1).standard_normal((count, FEATURES)).astype(np.float32)
    x[:: max(count // 3, 1), 2] = np.nan
    return x


CASES: dict[str, dict[str, Any]] = {
    "one tree": trees(1, 1),
    "many trees": trees(29, 1),
    "targets": trees(9, 3, mode="BRANCH_LT"),
    "many targets": trees(8, 19, mode="BRANCH_GTE"),
    "mean": {**trees(10, 2), "aggregate_function": "AVERAGE"},
    "largest": {**trees(10, 2), "aggregate_function": "MAX"},
    "base and transform": {**trees(10, 3), "base_values": [0.5, -1.0, 2.0], "post_transform": "SOFTMAX"},
}


@pytest.mark.parametrize("name", CASES)
def test_regressors(name: str) -> None:
    written = model("TreeEnsembleRegressor", CASES[name], ["y"])
    session = sardonyx.InferenceSession(written)
    assert set(session.explain().counts()) == {"cpu"}
    other = ort.InferenceSession(written, providers=["CPUExecutionProvider"])
    for count in (1, 7, 40):
        x = rows(count)
        (got,), (want,) = session.run(None, {"x": x}), other.run(None, {"x": x})
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert session.run(None, {"x": rows(1)[:0]})[0].shape == (0, CASES[name]["n_targets"])


@pytest.mark.parametrize("features", [3, 5, 16, 37])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_nan_goes_where_nodes_send_it(features: int, is_transposed: bool) -> None:
    """Wherever in a row it is, and where the row's elements are apart."""
    attributes = trees(21, 2, features=features)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [features, "n"] if is_transposed else ["n", features])
    nodes = [helper.make_node("TreeEnsembleRegressor", ["r"], ["y"], domain="ai.onnx.ml", **attributes)]
    nodes.insert(0, helper.make_node("Transpose" if is_transposed else "Identity", ["x"], ["r"]))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "g", [given], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    written = helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString()
    x = np.random.default_rng(2).standard_normal((2 * features + 3, features)).astype(np.float32)
    x[np.arange(features), np.arange(features)] = np.nan
    x[-1] = np.nan
    feed = {"x": np.ascontiguousarray(x.T) if is_transposed else x}
    (want,) = ort.InferenceSession(written, providers=["CPUExecutionProvider"]).run(None, feed)
    (got,) = sardonyx.InferenceSession(written).run(None, feed)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_classes() -> None:
    attributes = trees(12, 4)
    attributes = {k.replace("target_", "class_"): v for k, v in attributes.items() if k != "n_targets"}
    attributes |= {"classlabels_int64s": [7, 5, 3, 1], "post_transform": "SOFTMAX"}
    written, x = model("TreeEnsembleClassifier", attributes, ["label", "scores"]), rows(30)
    session = sardonyx.InferenceSession(written)
    assert set(session.explain().counts()) == {"cpu"}
    expected = ort.InferenceSession(written, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    got = session.run(None, {"x": x})
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-5, atol=1e-6)


def test_meaning() -> None:
    loaded = load(model("TreeEnsembleRegressor", CASES["targets"], ["y"]))
    normalize(loaded)
    optimize(loaded.graph, "all", frozenset())
    part, x = part_of(loaded.graph), rows(9)
    (got,) = interpret.run(lower(part), [x])
    want = sardonyx.InferenceSession(model("TreeEnsembleRegressor", CASES["targets"], ["y"])).run(None, {"x": x})[0]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_comparisons_of_several_kinds_keep_their_meaning() -> None:
    attributes = trees(2, 1)
    branches = [i for i, mode in enumerate(attributes["nodes_modes"]) if mode != "LEAF"]
    attributes["nodes_modes"][branches[0]] = "BRANCH_GT"
    session = sardonyx.InferenceSession(model("TreeEnsembleRegressor", attributes, ["y"]))
    assert set(session.explain().counts()) == {"reference"}


def leaves(weights: dict[int, float], **more: Any) -> dict[str, Any]:
    """A tree of a leaf alone for each target and its weight, in the form of TreeEnsembleRegressor."""
    count = len(weights)
    lists = {name: [0] * count for name in ("nodeids", "featureids", "truenodeids", "falsenodeids")}
    nodes = {**lists, "treeids": [*range(count)], "modes": ["LEAF"] * count, "values": [0.5] * count}
    of_targets = {"treeids": [*range(count)], "nodeids": [0] * count, "ids": [*weights], "weights": [*weights.values()]}
    found = {f"nodes_{k}": v for k, v in nodes.items()} | {f"target_{k}": v for k, v in of_targets.items()}
    return {**found, "n_targets": count, **more}


@pytest.mark.parametrize("features", [0, 1])
@pytest.mark.parametrize("aggregate", ["SUM", "MIN"])
def test_trees_without_branches_read_no_feature(aggregate: str, features: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CHECK_ADDRESSES", "1")
    loaded = onnx.load_from_string(
        model("TreeEnsembleRegressor", leaves({1: 0.5, 0: -2.0}, aggregate_function=aggregate), ["y"])
    )
    loaded.graph.input[0].type.tensor_type.ClearField("shape")
    session = sardonyx.InferenceSession(loaded.SerializeToString())
    (got,) = session.run(None, {"x": np.zeros((3, features), np.float32)})
    np.testing.assert_array_equal(got, [[-2.0, 0.5]] * 3)


def test_targets_that_no_leaf_weighs_take_no_memory() -> None:
    attributes = leaves({0: 1.0, 1: 2.0}, n_targets=2**31, base_values=[1.0])
    session = sardonyx.InferenceSession(model("TreeEnsembleRegressor", attributes, ["y"]))
    with pytest.raises(errors.SardonyxError):
        session.run(None, {"x": rows(1)})


def test_trees_that_share_a_leaf_may_miss_a_target() -> None:
    """Both trees reach leaf 1; in the first, it leads past target 0."""
    node = helper.make_node(
        "TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", aggregate_function=2, n_targets=2, tree_roots=[0, 1],
        nodes_featureids=[0, 0], nodes_modes=helper.make_tensor("m", TensorProto.UINT8, [2], [0, 0]),
        nodes_splits=helper.make_tensor("s", TensorProto.FLOAT, [2], [0.0, 1.0]), nodes_truenodeids=[0, 1],
        nodes_falsenodeids=[1, 2], nodes_trueleafs=[1, 1], nodes_falseleafs=[1, 1], leaf_targetids=[0, 1, 1],
        leaf_weights=helper.make_tensor("w", TensorProto.FLOAT, [3], [3.0, 4.0, 5.0]),
    )  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5)]
    written = helper.make_model(helper.make_graph([node], "g", [x], [y]), ir_version=10, opset_imports=opsets)
    (got,) = sardonyx.InferenceSession(written.SerializeToString()).run(None, {"x": np.array([[-1], [0.5], [2]], "f")})
    np.testing.assert_array_equal(got, [[3, 4], [0, 4], [0, 4]])
