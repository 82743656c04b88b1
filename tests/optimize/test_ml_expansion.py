"""Models of ai.onnx.ml in operators of ai.onnx, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx

ort = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)
WEIGHTS = {"coefficients": RNG.standard_normal(4 * 6).tolist(), "intercepts": RNG.standard_normal(4).tolist()}
REGRESSOR = ("coefficients", "support_vectors", "rho", "kernel_type", "kernel_params")


def machine(classes: int, kernel: str) -> dict[str, Any]:
    each = [5] * classes
    return {
        "coefficients": RNG.standard_normal((classes - 1) * sum(each)).tolist(),
        "support_vectors": RNG.standard_normal(6 * sum(each)).tolist(), "vectors_per_class": each,
        "rho": RNG.standard_normal(classes * (classes - 1) // 2).tolist(), "kernel_type": kernel,
        "kernel_params": [0.2, 0.5, 3.0], "classlabels_ints": [7, 3, 5, 9][:classes],
    }  # fmt: skip


CASES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "classes": ("LinearClassifier", {**WEIGHTS, "classlabels_ints": [3, 1, 4, 2]}, ["label", "scores"]),
    "softmax": (
        "LinearClassifier", {**WEIGHTS, "classlabels_ints": [3, 1, 4, 2], "post_transform": "SOFTMAX"},
        ["label", "scores"],
    ),
    "logistic": (
        "LinearClassifier", {**WEIGHTS, "classlabels_ints": [0, 1, 2, 3], "post_transform": "LOGISTIC"},
        ["label", "scores"],
    ),
    **{
        f"{kernel} of two, votes": ("SVMClassifier", machine(2, kernel), ["label", "scores"])
        for kernel in ("RBF", "POLY", "SIGMOID")
    },
    "votes of four": ("SVMClassifier", machine(4, "RBF"), ["label", "scores"]),
    "support vectors": (
        "SVMRegressor", {k: v for k, v in machine(2, "LINEAR").items() if k in REGRESSOR} | {"n_supports": 10}, ["y"]
    ),
    "one class": (
        "SVMRegressor",
        {k: v for k, v in machine(2, "RBF").items() if k in REGRESSOR} | {"n_supports": 10, "one_class": 1}, ["y"],
    ),
    "regression": ("LinearRegressor", {**WEIGHTS, "targets": 4}, ["y"]),
    "largest": ("Normalizer", {"norm": "MAX"}, ["y"]),
    "sums": ("Normalizer", {"norm": "L1"}, ["y"]),
    "lengths": ("Normalizer", {"norm": "L2"}, ["y"]),
    "scaled": ("Scaler", {"offset": [0.5, 1.0, 2.0, -1.0, 0.0, 3.0], "scale": [2.0, 1.0, 3.0, 0.5, 0.1, 0.2]}, ["y"]),
}  # fmt: skip


def model(kind: str, attributes: dict[str, Any], outputs: list[str], rows: int | None = None) -> bytes:
    node = helper.make_node(kind, ["x"], outputs, domain="ai.onnx.ml", **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 6])
    results = [
        helper.make_tensor_value_info(name, TensorProto.INT64, [rows])
        if name == "label"
        else helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in outputs
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "g", [x], results)
    return bytes(helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString())


def rows() -> Any:
    x = RNG.standard_normal((5, 6)).astype(np.float32)
    x[3] = 0
    return x


@pytest.mark.parametrize("name", CASES)
def test_against_onnxruntime(name: str) -> None:
    written, x = model(*CASES[name]), rows()
    session = sardonyx.InferenceSession(written)
    assert set(session.explain().counts()) == {"cpu"}
    expected = ort.InferenceSession(written, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    for got, want in zip(session.run(None, {"x": x}), expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_rows_at_infinity_are_far_from_all_support_vectors() -> None:
    attributes = {k: v for k, v in machine(2, "RBF").items() if k in REGRESSOR} | {"n_supports": 10}
    written, x = model("SVMRegressor", attributes, ["y"]), rows()
    x[1, 2], x[2, 0] = np.inf, np.nan
    expected = ort.InferenceSession(written, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (got,) = sardonyx.InferenceSession(written).run(None, {"x": x})
    np.testing.assert_allclose(got, expected[0], rtol=1e-5, atol=1e-6)
    assert got[1, 0] == np.float32(attributes["rho"][0]) and np.isnan(got[2, 0])


def test_a_stated_size_that_the_input_contradicts() -> None:
    written, x = model(*CASES["classes"], rows=1), rows()
    label, scores = sardonyx.InferenceSession(written).run(None, {"x": x})
    assert label.shape == (5,) and scores.shape == (5, 4)
    np.testing.assert_array_equal(label, np.array([3, 1, 4, 2])[scores.argmax(axis=1)])


@pytest.mark.parametrize(
    "attributes",
    [
        {**WEIGHTS, "classlabels_strings": ["a", "b", "c", "d"]},
        {"coefficients": WEIGHTS["coefficients"][:6], "intercepts": [0.5], "classlabels_ints": [0, 1]},
        {**WEIGHTS, "classlabels_ints": [0, 1, 2, 3], "post_transform": "PROBIT"},
    ],
)
def test_others_keep_their_meaning(attributes: dict[str, Any]) -> None:
    node = helper.make_node("LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 6])
    kind = TensorProto.STRING if "classlabels_strings" in attributes else TensorProto.INT64
    results = [
        helper.make_tensor_value_info("label", kind, None),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, None),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    written = helper.make_model(helper.make_graph([node], "g", [x], results), ir_version=8, opset_imports=opsets)
    session = sardonyx.InferenceSession(written.SerializeToString())
    assert set(session.explain().counts()) == {"reference"}


def trees(classes: list[int], *, is_positive: bool, **more: Any) -> dict[str, Any]:
    """Three trees of two splits; the leaves of tree i have weights for ``classes[i % len(classes)]``, or for both."""
    nodes: dict[str, list[Any]] = {key: [] for key in ("treeids", "nodeids", "featureids", "values", "modes")}
    nodes |= {"truenodeids": [], "falsenodeids": []}
    weighed: dict[str, list[Any]] = {key: [] for key in ("treeids", "nodeids", "ids", "weights")}
    rng = np.random.default_rng(5)
    for tree in range(3):
        for node, (mode, true, false) in enumerate([("BRANCH_LEQ", 1, 2), ("BRANCH_LT", 3, 4), *[("LEAF", 0, 0)] * 3]):
            mode = "BRANCH_LEQ" if mode == "BRANCH_LT" else mode
            row = (tree, node, int(rng.integers(6)), float(rng.normal()), mode, true, false)
            for key, value in zip(nodes, row, strict=True):
                nodes[key].append(value)
            for which in set(classes) if mode == "LEAF" else ():
                weight = float(rng.random() / 3 if is_positive else rng.normal())
                for key, value in zip(weighed, (tree, node, which, weight), strict=True):
                    weighed[key].append(value)
    return {f"nodes_{k}": v for k, v in nodes.items()} | {f"class_{k}": v for k, v in weighed.items()} | more


@pytest.mark.parametrize("is_positive", [True, False], ids=["probabilities", "scores"])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize(
    ("classes", "more", "is_compiled"),
    [
        ([0], {}, True),
        ([1], {}, True),
        ([0, 1], {}, True),
        ([0], {"base_values": [0.25]}, True),
        ([1], {"base_values": [0.25]}, False),
        ([0], {"base_values": [0.25, -0.5]}, False),
        ([0, 1], {"base_values": [0.25, -0.5]}, False),
    ],
    ids=str,
)
def test_trees_of_two_classes(
    classes: list[int], more: dict[str, Any], is_compiled: bool, transform: str, is_positive: bool
) -> None:
    attributes = trees(classes, is_positive=is_positive, classlabels_int64s=[7, 3], post_transform=transform, **more)
    written, x = model("TreeEnsembleClassifier", attributes, ["label", "scores"]), np.tile(rows(), (8, 1))
    x += RNG.standard_normal(x.shape).astype(np.float32)
    session = sardonyx.InferenceSession(written)
    if transform != "SOFTMAX" or classes != [0]:
        assert set(session.explain().counts()) == ({"cpu"} if is_compiled else {"reference"})
    expected = ort.InferenceSession(written, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    for got, want in zip(session.run(None, {"x": x}), expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("widths", [None, [2, 3, 1], [1, 5, 2]], ids=str)
@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64])
def test_vectors_side_by_side(dtype: Any, widths: list[int] | None) -> None:
    """Cut or filled with zeros to their widths, whatever their type."""
    attributes = {} if widths is None else {"inputdimensions": widths}
    node = helper.make_node("FeatureVectorizer", ["a", "b", "c"], ["v"], domain="ai.onnx.ml", **attributes)
    scaler = helper.make_node("Scaler", ["v"], ["y"], domain="ai.onnx.ml", offset=[0.5], scale=[2.0])
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [
        helper.make_tensor_value_info(name, kind, ["n", width]) for name, width in zip("abc", (2, 3, 1), strict=True)
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node, scaler], "g", inputs, [result])
    session = sardonyx.InferenceSession(
        helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString()
    )
    assert set(session.explain().counts()) == {"cpu"}
    for n in (4, 1):
        feeds = {name: RNG.normal(0, 9, (n, width)).astype(dtype) for name, width in zip("abc", (2, 3, 1), strict=True)}
        columns = []
        for x, width in zip(feeds.values(), widths or (2, 3, 1), strict=True):
            cut = x[:, :width]
            columns.append(np.pad(cut, ((0, 0), (0, width - cut.shape[1]))).astype(np.float32))
        (got,) = session.run(None, feeds)
        np.testing.assert_allclose(got, (np.concatenate(columns, axis=1) - 0.5) * 2, rtol=1e-6)
    with pytest.raises(sardonyx.errors.InvalidArgument):
        session.run(None, {**feeds, "a": np.zeros((2, 2), dtype)})


def test_labels_that_a_classifier_looks_up() -> None:
    """scikit-learn's spelling: the number of rows is known in the run alone, and nothing is left to the reference."""
    labels = np.array([7, 3, 9, 1], np.int32)
    nodes = [
        helper.make_node("ArgMax", ["x"], ["best"], axis=1),
        helper.make_node("ArrayFeatureExtractor", ["labels", "best"], ["found"], domain="ai.onnx.ml"),
        helper.make_node("Reshape", ["found", "flat"], ["row"]),
        helper.make_node("Cast", ["row"], ["y"], to=TensorProto.INT64),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])
    result = helper.make_tensor_value_info("y", TensorProto.INT64, [None])
    constants = [numpy_helper.from_array(labels, "labels"), numpy_helper.from_array(np.array([-1]), "flat")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "g", [x], [result], constants)
    session = sardonyx.InferenceSession(
        helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString()
    )
    assert len(session.explain(stage="cpu").parts) == 1
    for n in (1, 6):
        rows = RNG.standard_normal((n, 4)).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": rows})[0], labels[rows.argmax(1)])
