"""The example models of onnxruntime's documentation, generated on first use."""

from __future__ import annotations

import os
import tempfile


def get_example(name: str) -> str:
    """The path of an example model: ``mul_1.onnx``, ``sigmoid.onnx`` or ``logreg_iris.onnx``."""
    if name not in _MAKERS:
        raise FileNotFoundError(f"Unable to find example '{name}'; there are {', '.join(_MAKERS)}")
    path = os.path.join(_folder(), name)
    if not os.path.exists(path):
        with open(path + ".tmp", "wb") as file:
            file.write(_MAKERS[name]())
        os.replace(path + ".tmp", path)
    return path


def _folder() -> str:
    global _made
    if _made is None:
        _made = tempfile.TemporaryDirectory(prefix="sardonyx-examples-", ignore_cleanup_errors=True)
    return _made.name


_made: tempfile.TemporaryDirectory[str] | None = None


def _mul() -> bytes:
    from onnx import parser

    text = """<ir_version: 8, opset_import: ["": 13]>
    mul (float[3, 2] X) => (float[3, 2] Y) <float[3, 2] W = {1, 2, 3, 4, 5, 6}> { Y = Mul(X, W) }"""
    return bytes(parser.parse_model(text).SerializeToString())


def _sigmoid() -> bytes:
    from onnx import parser

    text = """<ir_version: 8, opset_import: ["": 13]>
    sigmoid (float[3, 4, 5] x) => (float[3, 4, 5] y) { y = Sigmoid(x) }"""
    return bytes(parser.parse_model(text).SerializeToString())


def _logreg() -> bytes:
    """Logistic regression on two features of the iris, with a map of probabilities as output."""
    from onnx import TensorProto, helper

    weights = [0.38574114, 1.3805406, -2.13145, -0.9928048, 0.6427745, -1.7489388]
    biases = [0.2496292, 0.5820278, -0.94161665]
    nodes = [
        helper.make_node(
            "LinearClassifier", ["float_input"], ["label", "scores"], domain="ai.onnx.ml",
            coefficients=weights, intercepts=biases, classlabels_ints=[0, 1, 2], post_transform="LOGISTIC",
        ),
        helper.make_node("Normalizer", ["scores"], ["shares"], domain="ai.onnx.ml", norm="L1"),
        helper.make_node(
            "ZipMap", ["shares"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]
        ),
    ]  # fmt: skip
    pair = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    graph = helper.make_graph(
        nodes,
        "logreg_iris",
        [helper.make_tensor_value_info("float_input", TensorProto.FLOAT, [None, 2])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, [None]),
            helper.make_value_info("probabilities", helper.make_sequence_type_proto(pair)),
        ],
    )
    opsets = [helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("", 13)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


_MAKERS = {"mul_1.onnx": _mul, "sigmoid.onnx": _sigmoid, "logreg_iris.onnx": _logreg}
