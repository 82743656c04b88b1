"""Models in float64 that are computed in float32: types at the edges stay, results agree within f32's rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import sardonyx as ort
from sardonyx import dtypes
from sardonyx.errors import InvalidArgument
from sardonyx.model.load import load
from sardonyx.normalize.run import normalize
from sardonyx.optimize.narrow import narrow_doubles

HEAD = '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 3]>'
CASES = {
    "products": "net (double[n, 8] x) => (double[n, 4] y) { a = MatMul(x, w) b = Tanh(a) y = Softmax(b) }",
    "an input that is an output": """net (double[n, 8] x) => (double[n, 8] x2, double[n, 8] y) {
        x2 = Identity(x) y = Exp(x) }""",
    "types in attributes": """net (double[n, 8] x) => (double[n, 8] y, int64[n, 8] z) {
        s = Shape(x) o = ConstantOfShape<value = double[1] {0.5}>(s) c = Constant<value = double {2.0}>()
        i = Cast<to = 7>(x) d = Cast<to = 11>(i) e = Mul(d, c) f = Add(e, o) y = Add(f, x) z = Cast<to = 7>(x) }""",
    "a loop": """net (double[n, 8] x) => (double[n, 8] y) {
        n = Constant<value_int = 3>() go = Constant<value = bool {1}>()
        y = Loop(n, go, x) <body = b (int64 i, bool c, double[n, 8] s) => (bool c2, double[n, 8] t) {
            c2 = Identity(c) h = Constant<value = double {0.5}>() t0 = Mul(s, h) t = Add(t0, x) }> }""",
    "a branch": """net (double[n, 8] x) => (double[n, 8] y) {
        m = ReduceSum<keepdims = 0>(x) z = Constant<value = double {0.0}>() p = Greater(m, z)
        y = If(p) <then_branch = t () => (double[n, 8] a) { a = Sin(x) },
                   else_branch = e () => (double[n, 8] b) { b = Cos(x) }> }""",
    "another domain": """net (double[n, 8] x) => (double[n, 8] y, float[n, 8] z) {
        a = Mul(x, x) z = ai.onnx.ml.Scaler<offset = [0.5], scale = [2.0]>(a) y = Sub(x, a) }""",
}


def model_of(text: str) -> onnx.ModelProto:
    model = parser.parse_model(f"{HEAD} {text}")
    weight = np.random.default_rng(3).standard_normal((8, 4))
    if "w)" in text:
        model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def narrowed(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.float64_as_float32", "1")
    return ort.InferenceSession(model.SerializeToString(), options)


@pytest.mark.parametrize("name", CASES)
def test_results_and_types(name: str) -> None:
    model = model_of(CASES[name])
    x = np.random.default_rng(4).uniform(0.1, 2, (5, 8))
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    got = narrowed(model).run(None, {"x": x})
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    wide = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert [a.dtype for a in got] == [a.dtype for a in wide]
    is_copied = name == "an input that is an output"
    assert any((a != b).any() for a, b in zip(got, wide, strict=True)) or is_copied, "f32 rounds what f64 does not"


@pytest.mark.parametrize("name", CASES)
def test_nothing_of_ours_is_left_in_doubles(name: str) -> None:
    model = load(model_of(CASES[name]).SerializeToString())
    normalize(model)
    assert narrow_doubles(model.graph) > 0
    for node in model.graph.all_nodes():
        if not node.domain and node.op_type != "Cast":
            assert all(v is None or v.dtype is not dtypes.f64 for v in (*node.inputs, *node.outputs)), node


def test_a_weight_that_callers_may_feed() -> None:
    model = model_of("net (double[n, 8] x, double[8] w) => (double[n, 8] y) { y = Mul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.full(8, 3.0), "w"))
    x = np.random.default_rng(4).uniform(0.1, 2, (5, 8))
    session = narrowed(model)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], 3 * x, rtol=1e-6)
    np.testing.assert_allclose(session.run(None, {"x": x, "w": np.full(8, 5.0)})[0], 5 * x, rtol=1e-6)


def test_models_without_doubles_are_unchanged() -> None:
    model = load(model_of("net (float[n, 8] x) => (float[n, 8] y) { y = Exp(x) }").SerializeToString())
    assert narrow_doubles(model.graph) == 0 and [n.op_type for n in model.graph.nodes] == ["Exp"]


def test_sequences_at_the_edges_are_refused() -> None:
    made: Any = helper.make_tensor_sequence_value_info("s", TensorProto.DOUBLE, [2])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [])
    graph = helper.make_graph([helper.make_node("SequenceLength", ["s"], ["y"])], "g", [made], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(InvalidArgument, match="sequences of float64"):
        narrowed(model)
