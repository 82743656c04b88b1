"""Models with one planted problem each, and healthy ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

Feeds = dict[str, Any]
HEAD = '<ir_version: 10, opset_import: ["" : 21]>'


def built(text: str, weights: Mapping[str, tuple[int, ...]], dtype: Any = np.float32, seed: int = 0) -> bytes:
    """A model of ONNX's text, with random weights of these shapes."""
    model = parser.parse_model(f"{HEAD} {text}")
    rng = np.random.default_rng(seed)
    for name, shape in weights.items():
        fan_in = max(int(np.prod(shape[1:])) if len(shape) == 4 else shape[0], 1)
        weight = (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(dtype)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.checker.check_model(model)
    return model.SerializeToString()


def random_feed(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


def convnet() -> tuple[bytes, Feeds]:
    """Healthy: a small image classifier."""
    text = """net (float[batch, 3, 32, 32] x) => (float[batch, 10] y) {
        a = Conv<pads = [1, 1, 1, 1]>(x, w0) b = Relu(a) c = Conv<pads = [1, 1, 1, 1]>(b, w1) d = Add(c, b) e = Relu(d)
        f = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(e) g = Conv<pads = [1, 1, 1, 1]>(f, w2) h = Relu(g)
        i = GlobalAveragePool(h) j = Flatten(i) y = Gemm(j, w3) }"""
    weights = {"w0": (16, 3, 3, 3), "w1": (16, 16, 3, 3), "w2": (32, 16, 3, 3), "w3": (32, 10)}
    return built(text, weights), {"x": random_feed(4, 3, 32, 32)}


def transformer() -> tuple[bytes, Feeds]:
    """Healthy: a block of a transformer, its normalizations written out as exporters do."""
    norm = """{0}m = ReduceMean<keepdims = 1>({0}, last) {0}c = Sub({0}, {0}m) {0}s = Pow({0}c, two)
        {0}v = ReduceMean<keepdims = 1>({0}s, last) {0}e = Add({0}v, eps) {0}r = Sqrt({0}e) {0}n = Div({0}c, {0}r)
        {0}g = Mul({0}n, {0}w) {0}o = Add({0}g, {0}b)"""
    text = f"""net (float[batch, sequence, 64] x) => (float[batch, sequence, 64] y) {{
        last = Constant<value_ints = [-1]>() two = Constant<value_float = 2.0>() eps = Constant<value_float = 1e-5>()
        heads = Constant<value_ints = [0, 0, 4, 16]>() whole = Constant<value_ints = [0, 0, 64]>()
        scale = Constant<value_float = 0.25>()
        q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)
        q4 = Reshape(q, heads) k4 = Reshape(k, heads) v4 = Reshape(v, heads)
        qt = Transpose<perm = [0, 2, 1, 3]>(q4) kt = Transpose<perm = [0, 2, 3, 1]>(k4)
        vt = Transpose<perm = [0, 2, 1, 3]>(v4)
        s = MatMul(qt, kt) ss = Mul(s, scale) p = Softmax(ss) c = MatMul(p, vt)
        ct = Transpose<perm = [0, 2, 1, 3]>(c) cr = Reshape(ct, whole) a0 = MatMul(cr, wo) a = Add(a0, x)
        {norm.format("a")}
        f = MatMul(ao, w1) fr = Relu(f) f2 = MatMul(fr, w2) z = Add(f2, ao)
        {norm.format("z")} y = Identity(zo) }}"""
    names = ("wq", "wk", "wv", "wo")
    weights = {**dict.fromkeys(names, (64, 64)), "w1": (64, 256), "w2": (256, 64)}
    weights |= dict.fromkeys(("aw", "ab", "zw", "zb"), (64,))  # type: ignore[arg-type]
    return built(text, weights), {"x": random_feed(2, 48, 64)}


def classifier() -> tuple[bytes, Feeds]:
    """Healthy: a linear classifier as scikit-learn's converter writes it, with probabilities in dictionaries."""
    rng = np.random.default_rng(2)
    weights = {"coefficients": rng.standard_normal(3 * 16).tolist(), "intercepts": [0.1, 0.2, 0.3]}
    nodes = [
        helper.make_node(
            "LinearClassifier", ["x"], ["label", "scores"], "linear", domain="ai.onnx.ml", **weights,
            classlabels_ints=[0, 1, 2], multi_class=1, post_transform="SOFTMAX",
        ),
        helper.make_node("ZipMap", ["scores"], ["p"], "zip", domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
    ]  # fmt: skip
    scores = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, scores))
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"]), helper.make_value_info("p", maps)],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(), {"x": random_feed(64, 16)}


def fallback() -> tuple[bytes, Feeds]:
    """An operator that is not compiled between two that are."""
    text = """net (float[1, 8, 16, 16] x) => (float[1, 8, 16, 16] y) {
        a = Conv<pads = [1, 1, 1, 1]>(x, w0) b = Relu(a) o = Conv<pads = [1, 1, 1, 1]>(b, w1)
        c = DeformConv<pads = [1, 1, 1, 1], kernel_shape = [3, 3]>(b, w2, o)
        d = Conv<pads = [1, 1, 1, 1]>(c, w3) y = Relu(d) }"""
    weights = {"w0": (8, 8, 3, 3), "w1": (18, 8, 3, 3), "w2": (8, 8, 3, 3), "w3": (8, 8, 3, 3)}
    return built(text, weights), {"x": random_feed(1, 8, 16, 16)}


def slices(length: int = 50_000) -> tuple[bytes, list[Feeds]]:
    """A window that is elsewhere in every run."""
    text = "net (float[n] x, int64[1] s, int64[1] e) => (float[m] y) { t = Slice(x, s, e) y = Sqrt(t) }"
    x = np.abs(random_feed(length))
    return built(text, {}), [{"x": x, "s": np.array([i]), "e": np.array([length - 80 + i])} for i in range(80)]


def unfused_norm() -> tuple[bytes, Feeds]:
    """A layer normalization whose variance is the difference of the mean square and the squared mean."""
    text = """net (float[batch, 32, 64] x) => (float[batch, 32, 64] y) {
        last = Constant<value_ints = [-1]>() eps = Constant<value_float = 1e-5>()
        h = MatMul(x, w0)
        m = ReduceMean<keepdims = 1>(h, last) q = Mul(h, h) mq = ReduceMean<keepdims = 1>(q, last)
        mm = Mul(m, m) v = Sub(mq, mm) e = Add(v, eps) r = Sqrt(e) c = Sub(h, m) n = Div(c, r)
        g = Mul(n, gamma) o = Add(g, beta) y = MatMul(o, w1) }"""
    weights = {"w0": (64, 64), "w1": (64, 64), "gamma": (64,), "beta": (64,)}
    return built(text, weights), {"x": random_feed(2, 32, 64)}


def small_norm() -> tuple[bytes, Feeds]:
    """Nearly healthy: the same normalization of a short row, beside a large product."""
    text = """net (float[batch, 64] x) => (float[batch, 4096] y) {
        last = Constant<value_ints = [-1]>() eps = Constant<value_float = 1e-5>()
        m = ReduceMean<keepdims = 1>(x, last) q = Mul(x, x) mq = ReduceMean<keepdims = 1>(q, last)
        mm = Mul(m, m) v = Sub(mq, mm) e = Add(v, eps) r = Sqrt(e) c = Sub(x, m) n = Div(c, r)
        g = Mul(n, gamma) o = Add(g, beta) y = MatMul(o, w1) }"""
    return built(text, {"w1": (64, 4096), "gamma": (64,), "beta": (64,)}), {"x": random_feed(2, 64)}


def ping_pong(count: int = 3) -> tuple[bytes, Feeds]:
    """Convolutions, and between them a softmax over channels and columns, which needs another order of axes."""
    body, x = [], "x"
    for i in range(count):
        body.append(
            f"""c{i} = Conv<pads = [1, 1, 1, 1]>({x}, w{i}) t{i} = Transpose<perm = [0, 2, 1, 3]>(c{i})
            f{i} = Reshape(t{i}, flat) s{i} = Softmax(f{i}) u{i} = Reshape(s{i}, image)
            x{i} = Transpose<perm = [0, 2, 1, 3]>(u{i})"""
        )
        x = f"x{i}"
    text = f"""net (float[1, 16, 64, 64] x) => (float[1, 16, 64, 64] {x}) {{
        flat = Constant<value_ints = [64, 1024]>() image = Constant<value_ints = [1, 64, 16, 64]>()
        {" ".join(body)} }}"""
    return built(text, {f"w{i}": (16, 16, 3, 3) for i in range(count)}), {"x": random_feed(1, 16, 64, 64)}


def huge_copy() -> tuple[bytes, Feeds]:
    """A decoder's step that copies its whole cache to append one row."""
    text = """net (float[1, 8, past, 64] cache, float[1, 8, 1, 64] k, float[1, 8, 1, 64] q)
        => (float[1, 8, 1, total] y, float[1, 8, total, 64] present) {
        present = Concat<axis = 2>(cache, k) t = Transpose<perm = [0, 1, 3, 2]>(present) s = MatMul(q, t)
        y = Softmax(s) }"""
    row = random_feed(1, 8, 1, 64)
    return built(text, {}), {"cache": random_feed(1, 8, 4096, 64), "k": row, "q": row}


def doubles() -> tuple[bytes, Feeds]:
    """A perceptron in float64."""
    text = """net (double[batch, 256] x) => (double[batch, 16] y) {
        a = MatMul(x, w0) b = Add(a, b0) c = Tanh(b) d = MatMul(c, w1) e = Relu(d) y = MatMul(e, w2) }"""
    weights = {"w0": (256, 512), "b0": (512,), "w1": (512, 512), "w2": (512, 16)}
    return built(text, weights, np.float64), {"x": random_feed(64, 256, dtype=np.float64)}


def perceptron() -> tuple[bytes, Feeds]:
    """Healthy, if it is not called with one row at a time."""
    text = """net (float[batch, 128] x) => (float[batch, 10] y) {
        a = Gemm(x, w0, b0) b = Relu(a) c = Gemm(b, w1) d = Relu(c) e = Gemm(d, w2) y = Softmax(e) }"""
    weights = {"w0": (128, 256), "b0": (256,), "w1": (256, 256), "w2": (256, 10)}
    return built(text, weights), {"x": random_feed(32, 128)}
