"""Attention under onnxruntime's names: saved, loaded by onnxruntime and here, and compared with the model as it was."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx.optimize.api import optimize_model

ort = pytest.importorskip("onnxruntime")

BATCH, LENGTH, HEADS, SIZE = 2, 5, 3, 6
WIDTH = HEADS * SIZE
LOWEST = float(np.finfo(np.float32).min)

SPLIT = (
    "a = Reshape(q, split) b = Transpose<perm=[0,2,1,3]>(a) c = Reshape(k, split) d = Transpose<perm=[0,2,3,1]>(c) "
    "e = Reshape(v, split) f = Transpose<perm=[0,2,1,3]>(e) r = MatMul(b, d) t = Mul(r, scale) "
)
END = " p = Softmax(s) z = MatMul(p, f) o = Transpose<perm=[0,2,1,3]>(z) y = Reshape(o, merge)"
PROJECT = (
    "q0 = MatMul(x, wq) q = Add(q0, bq) k0 = MatMul({0}, wk) k = Add(bk, k0) v0 = MatMul({0}, wv) v = Add(v0, bv) "
)
SELF = PROJECT.format("x") + SPLIT
CLASSIC = (
    "one = Constant<value_float=1.0>() u = Unsqueeze(keys, axes) g = Cast<to=1>(u) h = Sub(one, g) m = Mul(h, low) "
)
CHOSEN = "u = Cast<to=9>(keys) g = Unsqueeze(u, axes) zero = Constant<value_float=0.0>() m = Where(g, zero, low) "


@dataclass
class Case:
    body: str
    written: dict[str, int]
    """How often the saved model has each operator."""
    inputs: str = "float[B,S,11] x"
    feeds: dict[str, Any] = field(default_factory=dict)
    outputs: str = "float[B,S,W] y"
    opset: int = 21


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


CONSTANTS: dict[str, Any] = {
    "wq": random(11, WIDTH), "wk": random(11, WIDTH) + 0.1, "wv": random(11, WIDTH) - 0.2,
    "bq": random(WIDTH), "bk": random(WIDTH) + 0.3, "bv": random(WIDTH) - 0.4,
    "packed": random(11, 3 * WIDTH), "term": random(3 * WIDTH), "narrow": random(11, 2 * SIZE),
    "split": np.array([0, 0, -1, SIZE]), "merge": np.array([0, 0, -1]), "scale": np.array(SIZE**-0.5, np.float32),
    "axes": np.array([1, 2]), "low": np.array(LOWEST, np.float32), "inf": np.array(-np.inf, np.float32),
}  # fmt: skip
KEYS = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
EMPTY = np.array([[0, 0, 0, 0, 0], [0, 1, 1, 1, 0]])
ROW = random(BATCH, 1, LENGTH, LENGTH)
MASKED = "float[B,S,11] x, int64[B,S] keys"
LAYER = {"com.microsoft.Attention": 1}

CASES = {
    "three projections of one value": Case(SELF + "s = Identity(t)" + END, LAYER),
    "no bias on the keys": Case(SELF.replace("k = Add(bk, k0)", "k = Identity(k0)") + "s = Identity(t)" + END, LAYER),
    "padding, by arithmetic": Case(
        CLASSIC + SELF + "s = Add(t, m)" + END, {**LAYER, "Cast": 1, "Mul": 0, "Sub": 0}, MASKED, {"keys": KEYS}
    ),
    "padding, chosen": Case(CHOSEN + SELF + "s = Add(t, m)" + END, {**LAYER, "Where": 0}, MASKED, {"keys": KEYS}),
    "padding that leaves no key": Case(CLASSIC + SELF + "s = Add(t, m)" + END, LAYER, MASKED, {"keys": EMPTY}),
    "a mask of its own": Case(
        SELF + "s = Add(t, m)" + END, {**LAYER, "Expand": 0}, "float[B,S,11] x, float[B,1,S,S] m", {"m": ROW}
    ),
    "a mask without rows": Case(
        SELF + "s = Add(t, m)" + END, {**LAYER, "Expand": 1}, "float[B,S,11] x, float[B,1,1,S] m",
        {"m": ROW[:, :, :1]},
    ),
    "a mask of rank 2": Case(
        SELF + "s = Add(t, m)" + END, {**LAYER, "Unsqueeze": 1}, "float[B,S,11] x, float[S,S] m", {"m": ROW[0, 0]}
    ),
    "one product, split": Case(
        "g = MatMul(x, packed) h = Add(g, term) q, k, v = Split<axis=-1, num_outputs=3>(h) "
        + SPLIT + "s = Identity(t)" + END,
        {**LAYER, "Split": 0, "MatMul": 0},
    ),
    "one product of rows, split": Case(
        "rows = Constant<value_ints=[-1, 11]>() wide = Constant<value_ints=[2, 5, 54]>() g = Reshape(x, rows) "
        "h = Gemm(g, packed, term) i = Reshape(h, wide) q, k, v = Split<axis=2, num_outputs=3>(i) "
        + SPLIT + "s = Identity(t)" + END,
        {**LAYER, "Split": 0, "Gemm": 0, "Reshape": 0}, "float[2,5,11] x",
    ),
    "keys of another value": Case(
        PROJECT.format("w") + SPLIT + "s = Identity(t)" + END,
        {"com.microsoft.MultiHeadAttention": 1, "Add": 0, "MatMul": 3},
        "float[B,S,11] x, float[B,T,11] w", {"w": random(BATCH, 7, 11)},
    ),
    "a cache": Case(
        PROJECT.format("x") + "a = Reshape(q, split) b = Transpose<perm=[0,2,1,3]>(a) c = Reshape(k, split) "
        "k1 = Transpose<perm=[0,2,1,3]>(c) e = Reshape(v, split) v1 = Transpose<perm=[0,2,1,3]>(e) "
        "pk1 = Concat<axis=2>(pk, k1) f = Concat<axis=2>(pv, v1) d = Transpose<perm=[0,1,3,2]>(pk1) r = MatMul(b, d) "
        "t = Mul(r, scale) s = Add(t, m)" + END,
        {"com.microsoft.MultiHeadAttention": 1, "Concat": 0, "Add": 0},
        "float[B,S,11] x, float[B,3,P,6] pk, float[B,3,P,6] pv, float[B,1,S,T] m",
        {
            "pk": random(BATCH, HEADS, 2, SIZE), "pv": random(BATCH, HEADS, 2, SIZE) + 1,
            "m": random(BATCH, 1, LENGTH, 7),
        },
        "float[B,S,W] y, float[B,3,T,6] pk1, float[B,3,T,6] f",
    ),
    "causal": Case(
        PROJECT.format("x") + "y = Attention<q_num_heads=3, kv_num_heads=3, is_causal=1>(q, k, v)", LAYER, opset=23
    ),
    "causal, keys of another value": Case(
        PROJECT.format("w") + "y = Attention<q_num_heads=3, kv_num_heads=3, is_causal=1>(q, k, v)",
        {"Attention": 1, "com.microsoft.MultiHeadAttention": 0}, "float[B,S,11] x, float[B,T,11] w",
        {"w": random(BATCH, 7, 11)}, opset=23,
    ),
    "a soft cap": Case(
        PROJECT.format("x") + "y = Attention<q_num_heads=3, kv_num_heads=3, softcap=1.5>(q, k, v)",
        {"Attention": 1, "com.microsoft.Attention": 0}, opset=23,
    ),
    "rows of -inf": Case(
        CHOSEN.replace("low", "inf") + SELF
        + "s = Add(t, m) sm = Softmax(s) nan = IsNaN(sm) p = Where(nan, zero, sm) z = MatMul(p, f) "
        "o = Transpose<perm=[0,2,1,3]>(z) y = Reshape(o, merge)",
        {"Attention": 1, "com.microsoft.Attention": 0}, MASKED, {"keys": EMPTY},
    ),
    "shared key heads": Case(
        "q = MatMul(x, wq) k = MatMul(x, narrow) v = MatMul(x, narrow) split1 = Constant<value_ints=[2, 5, 2, 6]>() "
        "two = Constant<value_ints=[2]>() wide = Constant<value_ints=[2, 2, 2, 5, 6]>() "
        "flat = Constant<value_ints=[2, 4, 5, 6]>() split4 = Constant<value_ints=[2, 5, 4, 6]>() "
        "q4 = MatMul(x, more) a = Reshape(q4, split4) b = Transpose<perm=[0,2,1,3]>(a) c = Reshape(k, split1) "
        "k1 = Transpose<perm=[0,2,1,3]>(c) e = Reshape(v, split1) v1 = Transpose<perm=[0,2,1,3]>(e) "
        "ku = Unsqueeze(k1, two) kw = Expand(ku, wide) kr = Reshape(kw, flat) vu = Unsqueeze(v1, two) "
        "vw = Expand(vu, wide) f = Reshape(vw, flat) d = Transpose<perm=[0,1,3,2]>(kr) r = MatMul(b, d) "
        "t = Mul(r, scale) "
        + CLASSIC + "s = Add(t, m)" + END,
        {"Attention": 1, "Expand": 1}, "float[2,5,11] x, int64[2,5] keys", {"keys": EMPTY}, "float[2,5,24] y",
    ),
}  # fmt: skip
CONSTANTS["more"] = random(11, 4 * SIZE)


def model_of(case: Case) -> onnx.ModelProto:
    body = case.body.replace("s = Identity(t) p = Softmax(s)", "p = Softmax(t)")
    names = {name: value for name, value in CONSTANTS.items() if name in re.findall(r"\w+", body)}
    declared = ", ".join([case.inputs, *(f"float {name}" for name in names)])
    head = f'<ir_version: 10, opset_import: ["" : {case.opset}]> g ({declared}) => ({case.outputs})'
    model = onnx.parser.parse_model(f"{head} {{ {body} }}")
    kept = [i for i in model.graph.input if i.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in names.items())
    return model


def answer(model: bytes, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_saved_models_agree_in_onnxruntime(case: Case) -> None:
    model = model_of(case)
    feeds = {"x": random(BATCH, LENGTH, 11), **case.feeds}
    expected = answer(model.SerializeToString(), feeds)
    result = optimize_model(model, "extended", spelling="contrib")
    counts = result.statistics()
    assert {name: counts.get(name, 0) for name in case.written} == case.written, str(result)
    saved = result.to_proto().SerializeToString()
    for got in (answer(saved, feeds), sardonyx.InferenceSession(saved).run(None, feeds)):
        for one, want in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, want, rtol=2e-5, atol=2e-5)
