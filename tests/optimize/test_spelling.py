"""onnxruntime's own operators: written where its kernels take them, read back here, and agreeing in onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.ir.clone import clone
from sardonyx.model.save import model_to_proto
from sardonyx.optimize import feeds
from sardonyx.optimize.api import optimize_model
from sardonyx.optimize.check import answers
from tests.optimize.graphs import parse

G = "g = Constant<value_floats=[0.5, 1.5, -2.0, 1.0]>() b = Constant<value_floats=[0.1, -0.3, 0.2, 1.0]>() "
W = "w = Constant<value_floats=[0.5,1.0,-1.0,2.0]>() wl = Constant<value_ints=[2,2,1,1]>() k = Reshape(w, wl) "
THREE = ("float[2,3,4] x, float[2,3,4] z", "float[2,3,4] y")
IMAGE = ("float[1,2,5,5] x, float[1,2,5,5] z", "float[1,2,5,5] y")
FLAT = ("float[3,4] x, float[4,4] w", "float[3,4] y")
BATCH = ("float[2,3,4] x, float[2,5,4] w", "float[2,3,5] y")
TRANSPOSED = "s = Constant<value_float=4.0>() t = Transpose<perm=[0,2,1]>(w) "
IDS = ("int64[B,S] x, int64[B,S] z", "float[B,S,4] y")
PLACED = ("int64[B,S] x, int64[1,S] p", "float[B,S,4] y")
PLACED_EACH = ("int64[B,S] x, int64[B,S] p", "float[B,S,4] y")
TABLES = "".join(
    f"t{i} = Constant<value_floats=[{','.join(str((j * (7 + i)) % 11 / 10) for j in range(4 * n))}]>() "
    f"l{i} = Constant<value_ints=[{n},4]>() e{i} = Reshape(t{i}, l{i}) "
    for i, n in enumerate((9, 3, 6))
)
LOOKED_UP = TABLES + "d = Gather(e0, x) h = Gather(e2, p) "
PLACES = (
    "p1 = Constant<value_ints=[0,1,2,3,4,5]>() pa = Constant<value_ints=[0]>() pu = Unsqueeze(p1, pa) "
    "n = Shape<start=1,end=2>(x) one = Constant<value_ints=[1]>() p = Slice(pu, pa, n, one) "
)

CASES = {
    "skip": (THREE, G + "s = Add(x, z) y = LayerNormalization(s, g, b)", ["SkipLayerNormalization"]),
    "skip and bias": (THREE, G + "a = Add(x, b) s = Add(z, a) y = LayerNormalization(s, g, b)",
                      ["SkipLayerNormalization"]),
    "skip whose sum is read": (THREE, G + "s = Add(x, z) n = LayerNormalization(s, g, b) y = Sub(n, s)",
                               ["SkipLayerNormalization", "Sub"]),
    "skip whose sum is read before": (THREE, G + "s = Add(x, z) r = Abs(s) n = LayerNormalization(s, g, b) "
                                      "y = Sub(n, r)", ["SkipLayerNormalization", "Abs", "Sub"]),
    "skip that all examples share": (("float[2,3,4] x, float[1,3,4] z", THREE[1]),
                                     G + "s = Add(z, x) y = LayerNormalization(s, g, b)", ["SkipLayerNormalization"]),
    "skip of two axes": (("float[3,4] x, float[3,4] z", "float[3,4] y"),
                         G + "s = Add(x, z) y = LayerNormalization(s, g, b)", ["SkipLayerNormalization"]),
    "BiasGelu": (THREE, G + "s = Add(b, x) y = Gelu(s)", ["BiasGelu"]),
    "BiasGelu, a bias with leading ones": (
        THREE, G + "l = Constant<value_ints=[1,1,4]>() b3 = Reshape(b, l) s = Add(b3, x) y = Gelu(s)", ["BiasGelu"]),
    "FastGelu": (THREE, G + 's = Add(b, x) y = Gelu<approximate="tanh">(s)', ["FastGelu"]),
    "Gelu": (THREE, "y = Gelu(x)", ["Gelu"]),
    "QuickGelu": (THREE, "q = Constant<value_float=1.702>() a = Mul(x, q) s = Sigmoid(a) y = Mul(x, s)", ["QuickGelu"]),
    "Conv, Relu": (IMAGE, W + "c = Conv(x, k) y = Relu(c)", ["FusedConv"]),
    "Conv, Clip": (IMAGE, W + "l = Constant<value_float=-0.1>() h = Constant<value_float=0.7>() c = Conv(x, k) "
                   "y = Clip(c, l, h)", ["FusedConv"]),
    "Conv, LeakyRelu": (IMAGE, W + "c = Conv(x, k) y = LeakyRelu<alpha=0.3>(c)", ["FusedConv"]),
    "Conv, HardSigmoid": (IMAGE, W + "c = Conv(x, k) y = HardSigmoid<alpha=0.3, beta=0.4>(c)", ["FusedConv"]),
    "Conv, HardSwish": (IMAGE, W + "c = Conv(x, k) y = HardSwish(c)", ["FusedConv"]),
    "Conv, Tanh": (IMAGE, W + "c = Conv(x, k) y = Tanh(c)", ["FusedConv"]),
    "Conv, Add, Relu": (IMAGE, W + "c = Conv(x, k) a = Add(z, c) y = Relu(a)", ["FusedConv"]),
    "Conv, Add": (IMAGE, W + "c = Conv(x, k) y = Add(z, c)", ["FusedConv"]),
    "Conv whose activation's shape is asked": (
        (IMAGE[0].replace("5,5", "h,h"), "float[1,2,h,h] y, int64[4] n"),
        W + "c = Conv(x, k) n = Shape(c) y = Relu(c)", ["FusedConv", "Shape"]),
    "Gemm, Relu": (FLAT, "m = Gemm(x, w) y = Relu(m)", ["FusedGemm"]),
    "Gemm, LeakyRelu": (FLAT, "m = Gemm<transB=1>(x, w) y = LeakyRelu<alpha=0.3>(m)", ["FusedGemm"]),
    "Gemm, HardSigmoid": (FLAT, "m = Gemm(x, w) y = HardSigmoid<alpha=0.3, beta=0.4>(m)", ["FusedGemm"]),
    "Gemm, Elu": (FLAT, "m = Gemm(x, w) y = Elu<alpha=0.7>(m)", ["FusedGemm"]),
    "Gemm, Selu": (FLAT, "m = Gemm(x, w) y = Selu(m)", ["FusedGemm"]),
    "Gemm, ThresholdedRelu": (FLAT, "m = Gemm(x, w) y = ThresholdedRelu<alpha=0.7>(m)", ["FusedGemm"]),
    "MatMul, transposed": (BATCH, "t = Transpose<perm=[0,2,1]>(w) y = MatMul(x, t)", ["FusedMatMul"]),
    "MatMul, scaled": (BATCH, TRANSPOSED + "m = MatMul(x, t) y = Div(m, s)", ["FusedMatMul"]),
    "MatMul, scaled before": (BATCH, TRANSPOSED + "u = Mul(s, x) y = MatMul(u, t)", ["FusedMatMul"]),
    "embedding of BERT": (IDS, G + TABLES + PLACES + "d = Gather(e0, x) f = Gather(e1, z) s = Add(d, f) "
                          "h = Gather(e2, p) t = Add(s, h) y = LayerNormalization(t, g, b)",
                          ["Cast", "Cast", "EmbedLayerNormalization"]),
    "embedding of given places": (PLACED, G + TABLES + "d = Gather(e0, x) h = Gather(e2, p) t = Add(d, h) "
                                  "y = LayerNormalization(t, g, b)", ["Cast", "Cast", "EmbedLayerNormalization"]),
    "embedding of DistilBERT": (IDS, G + TABLES + PLACES + "d = Gather(e0, x) h = Gather(e2, p) t = Add(d, h) "
                                "y = LayerNormalization(t, g, b)", ["Cast", "EmbedLayerNormalization"]),
    "embedding of GPT-2, whose sum is read": (
        PLACED_EACH, G + LOOKED_UP + "t = Add(d, h) n = LayerNormalization(t, g, b) y = Sub(n, t)",
        ["Cast", "Cast", "EmbedLayerNormalization", "Sub"]),
    "embedding whose shape is asked": (
        PLACED_EACH, G + LOOKED_UP + "n = Shape(d) t = Add(d, h) u = LayerNormalization(t, g, b) "
        "f = Constant<value_ints=[-1,4]>() v = Reshape(u, f) m = Relu(v) y = Reshape(m, n)",
        ["Cast", "Cast", "EmbedLayerNormalization", "Shape", "Reshape", "Relu", "Reshape"]),
    "embedding of Whisper's decoder": (
        IDS, G + TABLES + "d = Gather(e0, x) n = Shape(d) at = Constant<value_int=1>() zero = Constant<value_int=0>() "
        "s = Gather(n, at) r = Range(zero, s, at) o = Constant<value_ints=[0]>() p0 = Unsqueeze(r, o) "
        "i = Constant<value_ints=[1]>() c = Shape<end=1>(x) k = Concat<axis=0>(c, i) p = Tile(p0, k) "
        "h = Gather(e2, p) t = Add(d, h) y = LayerNormalization(t, g, b)", ["Cast", "EmbedLayerNormalization"]),
}  # fmt: skip


@pytest.mark.parametrize(("types", "body", "expected"), CASES.values(), ids=CASES.keys())
def test_spelled_models_agree_here_and_in_onnxruntime(types: tuple[str, str], body: str, expected: list[str]) -> None:
    ort = pytest.importorskip("onnxruntime")
    source = parse(body, inputs=types[0], outputs=types[1])
    given = feeds.generate(source.graph, seed=5, size=lambda dim, i, rank: 3)
    want = answers(clone(source), given)
    result = optimize_model(source, "extended")
    assert sorted(n.op_type for n in result.model.graph.nodes) == sorted(expected)
    data = result.to_proto().SerializeToString()
    there = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, given)
    here = sardonyx.InferenceSession(data).run(None, given)
    for w, a, b in zip(want, there, here, strict=True):
        np.testing.assert_allclose(a, w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(b, w, rtol=1e-4, atol=1e-5)


EMBEDDED = G + LOOKED_UP + "t = Add(d, h) "
NOT_EMBEDDINGS = {
    "positions may be of another length": (("int64[B,S] x, int64[1,P] p", "float[B,S,4] y"),
                                           EMBEDDED + "y = LayerNormalization(t, g, b)"),
    "a look-up is also read by Relu": (PLACED, EMBEDDED + "r = Relu(d) u = LayerNormalization(t, g, b) y = Add(u, r)"),
    "a look-up is a graph output": (("int64[B,S] x, int64[1,S] p", "float[B,S,4] y, float[B,S,4] d"),
                                    EMBEDDED + "y = LayerNormalization(t, g, b)"),
    "a table is not a constant matrix": (("int64[B,S] x, int64[1,S] p, float[9,4] e0", "float[B,S,4] y"),
                                         EMBEDDED.replace("e0 = Reshape", "unread = Reshape")
                                         + "y = LayerNormalization(t, g, b)"),
}  # fmt: skip


@pytest.mark.parametrize(("reason", "case"), NOT_EMBEDDINGS.items())
def test_near_embedding_layers_are_reported_with_a_reason(reason: str, case: tuple[tuple[str, str], str]) -> None:
    (inputs, outputs), body = case
    result = optimize_model(parse(body, inputs=inputs, outputs=outputs), "extended")
    assert "EmbedLayerNormalization" not in [n.op_type for n in result.model.graph.nodes]
    assert any(reason in d.reason for d in result.report.declined), result.report.declined


def test_rms_norm_with_a_skip_loads_at_a_low_opset() -> None:
    ort = pytest.importorskip("onnxruntime")
    body = (
        G + "two = Constant<value_float=2.0>() a = Constant<value_ints=[-1]>() e = Constant<value_float=1e-6>() "
        "s = Add(x, z) q = Pow(s, two) v = ReduceMean(q, a) p = Add(v, e) r = Sqrt(p) n = Div(s, r) y = Mul(n, g)"
    )
    source = parse(body, inputs=THREE[0], outputs=THREE[1])
    given = feeds.generate(source.graph, seed=5)
    want = answers(clone(source), given)
    result = optimize_model(source, "extended")
    assert [n.op_type for n in result.model.graph.nodes] == ["SkipSimplifiedLayerNormalization"]
    got = ort.InferenceSession(result.to_proto().SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, given
    )
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-5)


LEFT_ALONE = {
    "a skip of four axes": ("float[2,2,3,4] x, float[2,2,3,4] z", "float[2,2,3,4] y",
                            G + "s = Add(x, z) y = LayerNormalization(s, g, b)", "dimensions"),
    "a skip that broadcasts": ("float[2,3,4] x, float[2,1,4] z", "float[2,3,4] y",
                               G + "s = Add(x, z) y = LayerNormalization(s, g, b)", "different shapes"),
    "an addend that broadcasts": ("float[1,2,5,5] x, float[1,2,1,1] z", "float[1,2,5,5] y",
                                  W + "c = Conv(x, k) a = Add(c, z) y = Abs(a)", "shape"),
    "a convolution that others read": (IMAGE[0], "float[1,2,5,5] y, float[1,2,5,5] v",
                                       W + "c = Conv(x, k) v = Abs(c) y = Relu(c)", "also read"),
    "doubles": ("double[2,3,4] x", "double[2,3,4] y", "y = Gelu(x)", "element type"),
}  # fmt: skip


@pytest.mark.parametrize(("inputs", "outputs", "body", "reason"), LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_unsupported_forms_are_reported_with_a_reason(inputs: str, outputs: str, body: str, reason: str) -> None:
    result = optimize_model(parse(body, inputs=inputs, outputs=outputs), "extended")
    assert not any(node.domain for node in result.model.graph.nodes)
    assert any(reason in d.reason for d in result.report.declined), result.report.declined


def test_the_portable_spelling_has_onnx_operators_alone() -> None:
    types, body, _ = CASES["skip and bias"]
    result = optimize_model(parse(body, inputs=types[0], outputs=types[1]), "extended", spelling="portable")
    assert [n.op_type for n in result.model.graph.nodes] == ["Add", "Add", "LayerNormalization"]
    assert set(result.model.opsets) == {""}


@pytest.mark.parametrize(("level", "op_type"), [("ORT_ENABLE_BASIC", "Relu"), ("ORT_ENABLE_EXTENDED", "FusedConv")])
def test_a_session_saves_the_spelling_of_its_level(level: str, op_type: str, tmp_path: Path) -> None:
    types, body, _ = CASES["Conv, Relu"]
    options, path = sardonyx.SessionOptions(), str(tmp_path / "saved.onnx")
    options.graph_optimization_level = getattr(sardonyx.GraphOptimizationLevel, level)
    options.optimized_model_filepath = path
    sardonyx.InferenceSession(
        model_to_proto(parse(body, inputs=types[0], outputs=types[1])).SerializeToString(), options
    )
    saved = onnx.load(path)
    assert op_type in [node.op_type for node in saved.graph.node]
    done = json.loads({p.key: p.value for p in saved.metadata_props}["sardonyx.optimized"])
    assert done["spelling"] == ("contrib" if op_type == "FusedConv" else "portable")
