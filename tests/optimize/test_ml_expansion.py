"""Models of ai.onnx.ml in operators of ai.onnx, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx

ort = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)
WEIGHTS = {"coefficients": RNG.standard_normal(4 * 6).tolist(), "intercepts": RNG.standard_normal(4).tolist()}
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
