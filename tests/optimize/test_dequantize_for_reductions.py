"""Squeeze-and-excite parts of quantized nets: pooling and product each read bytes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.model.load import load
from sardonyx.normalize.run import normalize

F32, U8 = TensorProto.FLOAT, TensorProto.UINT8


def gated(*, reduces_only: bool = False) -> onnx.ModelProto:
    """Pooled bytes scale the image that they are pooled from."""
    constants = {
        "s": np.float32(0.25), "z": np.uint8(7), "g": np.float32(0.125), "zero": np.uint8(0), "o": np.float32(8),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["image"]),
        node("GlobalAveragePool", ["image"], ["mean"]),
        node("QuantizeLinear", ["mean", "g", "zero"], ["byte"]),
        node("DequantizeLinear", ["byte", "g", "zero"], ["gate"]),
        node("GlobalMaxPool", ["image"], ["largest"]),
        node("Mul", ["largest" if reduces_only else "image", "gate"], ["product"]),
        node("QuantizeLinear", ["product", "o", "z"], ["y"]),
    ]
    image, result = ([2, 24, 9, 11], [2, 24, "h", "w"])
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    inputs = [helper.make_tensor_value_info("x", U8, image)]
    outputs = [helper.make_tensor_value_info("y", U8, result)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_the_product_reads_bytes_and_not_what_the_pooling_reads() -> None:
    model = gated()
    session = sardonyx.InferenceSession(model.SerializeToString())
    lines = str(session.explain(stage="cpu")).splitlines()
    (product,) = (line for line in lines if "Mul node" in line)
    assert "DequantizeLinear" in product and "GlobalAveragePool" not in product
    plain = load(model)
    normalize(plain)
    graph = plain.graph
    x = np.random.default_rng(2).integers(0, 256, (2, 24, 9, 11)).astype(np.uint8)
    (want,) = Program(list(graph.nodes), graph.inputs, graph.outputs, bind).run([x], RunContext())
    (got,) = session.run(None, {"x": x})
    assert len(np.unique(want)) > 50
    np.testing.assert_array_equal(got, want)


def test_reductions_alone_share_what_they_read() -> None:
    session = sardonyx.InferenceSession(gated(reduces_only=True).SerializeToString())
    assert "DequantizeLinear_0" not in str(session.explain(stage="cpu"))
