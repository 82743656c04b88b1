"""Models that end in maps, run again and again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx as sx
from sardonyx.errors import InvalidArgument, SardonyxError

MAPS = helper.make_sequence_type_proto(
    helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, ()))
)


def classifier(names: list[str], *, width: Any = 3) -> bytes:
    """Scores, the best of each row, and a map from label to score, of which some are outputs."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["scores"], axis=1),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[7, 8, 9]),
    ]
    kinds = {
        "maps": helper.make_value_info("maps", MAPS),
        "best": helper.make_tensor_value_info("best", TensorProto.INT64, ["n"]),
        "scores": helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", width]),
    }
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])
    graph = helper.make_graph(nodes, "classifier", [x], [kinds[name] for name in names])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    found: np.ndarray[Any, Any] = e / e.sum(1, keepdims=True)
    return found


@pytest.mark.parametrize("names", [["best", "maps"], ["maps"], ["maps", "scores", "best"]], ids=" ".join)
def test_every_run_gives_maps_of_its_own(names: list[str]) -> None:
    session = sx.InferenceSession(classifier(names))
    for rows in (2, 2, 2, 1, 1, 0, 0, 2):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        found = dict(zip(names, session.run(None, {"x": x}), strict=True))
        expected = softmax(x)
        assert [list(row) for row in found["maps"]] == [[7, 8, 9]] * rows
        scores = np.array([list(row.values()) for row in found["maps"]]).reshape(rows, 3)
        np.testing.assert_allclose(scores, expected, rtol=1e-6)
        if "best" in found:
            np.testing.assert_array_equal(found["best"], expected.argmax(1))
        for row in found["maps"]:
            row.clear()


def test_an_error_of_a_later_run_names_the_node() -> None:
    session = sx.InferenceSession(classifier(["maps"], width="w"))
    for _ in range(2):
        with pytest.raises(SardonyxError, match="number of features") as error:
            session.run(None, {"x": np.zeros((2, 4), np.float32)})
        assert "ZipMap" in str(error.value.where)


def test_integers_are_not_truncated() -> None:
    pair = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.INT64, ()))
    node = helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", string_vocabulary=["a", "b"])
    out = helper.make_tensor_value_info("y", TensorProto.INT64, [1, 2])
    graph = helper.make_graph([node], "g", [helper.make_value_info("x", pair)], [out])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    session = sx.InferenceSession(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    assert session.run(None, {"x": {"a": 2**40, "b": np.int32(3)}})[0].tolist() == [[2**40, 3]]
    for wrong in (1.5, np.array(1), "1"):
        with pytest.raises(InvalidArgument, match="Unexpected value type"):
            session.run(None, {"x": {"a": wrong}})
