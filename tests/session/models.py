"""Small models as ONNX text, for tests of the session."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import parser

X = np.array([[1, 2], [3, 4], [5, 6]], np.float32)

MUL = """<ir_version: 8, opset_import: ["": 13]>
mul (float[3, 2] X) => (float[3, 2] Y) <float[3, 2] W = {1, 2, 3, 4, 5, 6}> { [times] Y = Mul(X, W) }"""

MATMUL = """<ir_version: 8, opset_import: ["": 13]>
matmul (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] W = {1, 2}> { Y = MatMul(X, W) }"""

SEQUENCE = """<ir_version: 8, opset_import: ["": 13]>
insert (seq(int64[]) s, int64[a, b] t) => (seq(int64[]) o) { o = SequenceInsert(s, t) }"""

CHAIN = """<ir_version: 8, opset_import: ["": 13]>
chain (float[n] x) => (float[n] y) {
  [first] a = Add(x, x)
  [second] b = Mul(a, x)
  [third] y = Add(b, a)
}"""

OVERRIDABLE = """<ir_version: 8, opset_import: ["": 13]>
lora (float[2] x, float[2] scale) => (float[2] y) <float[2] scale = {1, 1}> { y = Mul(x, scale) }"""

LOOP = """<ir_version: 8, opset_import: ["": 13]>
forever (float[1] x, int64 trips) => (float[1] y) <bool go = {1}, float[1] two = {2}> {
  y = Loop(trips, go, x) <body = turn (int64 i, bool c, float[1] v) => (bool c2, float[1] v2) {
    v2 = Cos(v)
    c2 = Less(v2, two)
  }>
}"""


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(text)


def serialized(text: str) -> bytes:
    return model(text).SerializeToString()


def identity(onnx_type: int, shape: list[int | str | None] | None = None) -> bytes:
    """y = x, of any element type."""
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "identity",
        [value("x", onnx_type, shape)],
        [value("y", onnx_type, shape)],
    )
    opsets = [onnx.helper.make_opsetid("", 25)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=13).SerializeToString()
