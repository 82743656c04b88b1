"""Activations, products, convolutions, normalizations and embeddings of com.microsoft."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from sardonyx import errors
from tests.normalize.contrib import (  # noqa: F401
    agree,
    fresh_numbers,
    gives,
    integers,
    model,
    normal,
    onnxruntime,
    ours,
    rng,
    scales,
)

I32 = np.int32


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu(x):
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)).astype(x.dtype))


@pytest.mark.parametrize(
    ("name", "shapes", "attributes"),
    [
        ("Gelu", [(3, 5)], {}),
        ("FastGelu", [(3, 5)], {}),
        ("FastGelu", [(3, 5), (5,)], {}),
        ("BiasGelu", [(3, 5), (5,)], {}),
        ("QuickGelu", [(3, 5)], {}),
        ("QuickGelu", [(3, 5)], {"alpha": 1.3}),
    ],
)
def test_gelus(name, shapes, attributes):
    agree(name, *(normal(*s) for s in shapes), **attributes)


def test_fusions_that_only_gpus_have():
    x, b, s = normal(2, 3, 4), normal(4), normal(2, 3, 4)
    gives("BiasAdd", (x, b, s), [x + b + s])
    left, right = np.split(x + b, 2, -1)
    gives("BiasSplitGelu", (x, b), [left * gelu(right)])
    w = normal(4, 5)
    gives("GemmFastGelu", (x, w, normal(5) * 0), [gelu_tanh(x @ w).astype(np.float32)])
    gives("BiasDropout", (x, b, s), [x + b + s, np.ones(x.shape, bool)])
    y = np.exp(normal(2, 3, 4, 5))
    mask = normal(2, 1, 1, 5)
    e = np.exp(y + mask)
    gives("BiasSoftmax", (y, mask), [e / e.sum(-1, keepdims=True)], axis=3, is_inner_broadcast=1)
    gives("BiasSoftmax", (y, mask), [e / e.sum((2, 3), keepdims=True)], axis=2, is_inner_broadcast=1)


@pytest.mark.parametrize("name", ["FusedMatMul", "TransposeMatMul"])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_transposed_products(name, trans_a, trans_b):
    a, b = normal(2, 4, 5), normal(2, 5, 3)
    a, b = a.swapaxes(1, 2).copy() if trans_a else a, b.swapaxes(1, 2).copy() if trans_b else b
    agree(name, a, b, transA=trans_a, transB=trans_b, alpha=0.7)


@pytest.mark.parametrize("batch_a", [0, 1])
@pytest.mark.parametrize("batch_b", [0, 1])
@pytest.mark.parametrize("trans", [0, 1])
def test_products_with_the_matrix_around_the_batch(batch_a, batch_b, trans):
    a, b = normal(2, 6, 4, 5), normal(2, 6, 5, 3)
    a, b = (x.swapaxes(-1, -2) if trans else x for x in (a, b))
    a, b = np.moveaxis(a, -2, 0) if batch_a else a, np.moveaxis(b, -2, 0) if batch_b else b
    flags = {"transA": trans, "transB": trans, "transBatchA": batch_a, "transBatchB": batch_b}
    agree("FusedMatMul", a.copy(), b.copy(), **flags)


def test_products_of_vectors():
    agree("FusedMatMul", normal(5), normal(5, 3))
    agree("FusedMatMul", normal(4, 5), normal(5), alpha=0.5)


@pytest.mark.parametrize(
    "kind",
    ["Relu", "Sigmoid", "Tanh", "Elu", "LeakyRelu", "HardSigmoid", "Softplus", "Softsign", "ThresholdedRelu"],
)
def test_fused_gemm(kind):
    params = {"activation": kind, "activation_alpha": 0.3, "activation_beta": 0.4}
    agree("FusedGemm", normal(4, 5), normal(5, 3), normal(3), alpha=0.5, beta=2.0, **params)
    agree("FusedGemm", normal(5, 4), normal(3, 5), None, transA=1, transB=1, **params)


def test_unknown_activation_is_an_error():
    proto = model("FusedGemm", (normal(2, 2), normal(2, 2)), {"activation": "Nonsense"})
    with pytest.raises(errors.InvalidGraph, match="Nonsense"):
        ours(proto, {})


@pytest.mark.parametrize(
    ("kind", "params"),
    [("Relu", None), ("Tanh", None), ("Sigmoid", None), ("LeakyRelu", [0.2]), ("Clip", [0.0, 1.0]),
     ("HardSigmoid", [0.2, 0.4])],
)  # fmt: skip
@pytest.mark.parametrize("residual", [False, True])
def test_fused_conv(kind, params, residual):
    attributes = {"activation": kind, "pads": [1, 1, 1, 1]} | ({"activation_params": params} if params else {})
    x, w, b, z = normal(1, 4, 6, 6), normal(8, 4, 3, 3), normal(8), normal(1, 8, 6, 6) if residual else None
    agree("FusedConv", x, w, b, z, **attributes)
    given = {f"i{k}": v for k, v in enumerate((x, w, b, z)) if v is not None}
    (want,) = onnxruntime(model("FusedConv", (x, w, b, z), attributes), given)
    x, z, want = (None if v is None else v.transpose(0, 2, 3, 1).copy() for v in (x, z, want))
    gives("NhwcFusedConv", (x, w, b, z), [want], **attributes)  # which onnxruntime has on some chips


def test_channels_last_pool():
    x = integers(np.uint8, 1, 6, 6, 4)
    agree("NhwcMaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])


def test_float8_product():
    kind = ml_dtypes.float8_e4m3fn
    a, b, c, scale = normal(3, 4).astype(kind), normal(5, 4).astype(kind), normal(3, 5), scales(1)
    want = np.maximum(0.5 * (a.astype(np.float32) * scale) @ (b.astype(np.float32) * scale).T + 2 * c, 0) / scale
    attributes = {"transB": 1, "alpha": 0.5, "beta": 2.0, "dtype": 10, "activation": "RELU"}
    gives("GemmFloat8", (a, b, c, scale, scale, scale), [want.astype(np.float16)], tolerance=1e-3, **attributes)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-5), (np.float16, 4e-3)])
def test_normalizations(dtype, tolerance):
    def g(*shape):
        return normal(*shape, dtype=dtype)

    x, skip, gamma, beta, bias = g(2, 3, 8), g(2, 3, 8), g(8), g(8), g(8)
    agree("SkipLayerNormalization", x, skip, gamma, beta, tolerance=tolerance)
    agree("SkipLayerNormalization", x, skip[0], gamma, beta, bias, epsilon=1e-3, tolerance=tolerance)
    agree("SkipLayerNormalization", x, skip[:1], gamma, tolerance=tolerance)
    agree("SkipSimplifiedLayerNormalization", x, skip, gamma, bias, epsilon=1e-3, tolerance=tolerance)
    agree("SimplifiedLayerNormalization", x, gamma, domain="", axis=-1, epsilon=1e-3, tolerance=tolerance)
    agree("SimplifiedLayerNormalization", x, g(3, 8), domain="", axis=1, epsilon=1e-3, tolerance=tolerance)


def test_normalizations_give_the_sum_and_the_statistics():
    x, skip, gamma, bias = normal(2, 3, 8), normal(2, 3, 8), normal(8), normal(8)

    def only_used(k, y):
        return y if k in (0, 3) else np.zeros(0)

    agree("SkipLayerNormalization", x, skip, gamma, bias, bias, outputs=4, select=only_used)
    proto = model("SkipSimplifiedLayerNormalization", (x, skip, gamma), {"epsilon": 1e-3}, outputs=4)
    del proto.graph.output[1]
    y, inverse, summed = ours(proto, {"i0": x, "i1": skip, "i2": gamma})
    s = x + skip
    np.testing.assert_allclose(summed, s, rtol=1e-6)
    np.testing.assert_allclose(inverse, 1 / np.sqrt((s * s).mean(-1, keepdims=True) + 1e-3), rtol=1e-5)
    np.testing.assert_allclose(y, s * inverse * gamma, rtol=1e-5, atol=1e-5)
    agree("SimplifiedLayerNormalization", x, gamma, outputs=2, domain="", epsilon=1e-3)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("silu", [0, 1])
def test_group_norms(last, silu):
    x, skip, bias, gamma, beta = normal(2, 6, 4, 5), normal(2, 6), normal(6), normal(6), normal(6)

    def norm(v):
        groups = v.reshape(2, 3, -1)
        centred = groups - groups.mean(-1, keepdims=True)
        unit = (centred / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)).reshape(v.shape)
        y = unit * gamma[:, None, None] + beta[:, None, None]
        return y / (1 + np.exp(-y)) if silu else y

    def arranged(v):
        return v.transpose(0, 2, 3, 1).copy() if last else v

    attributes = {"groups": 3, "activation": silu, "channels_last": last, "epsilon": 1e-5}
    gives("GroupNorm", (arranged(x), gamma, beta), [arranged(norm(x))], **attributes)
    s = x + skip[:, :, None, None] + bias[:, None, None]
    inputs = (arranged(x), gamma, beta, skip, bias)
    gives("SkipGroupNorm", inputs, [arranged(norm(s)), arranged(s)], **attributes)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("positions", [None, 1, 2])
def test_embedding(segments, masked, positions):
    ids, segment_ids = rng.integers(0, 10, (2, 4)).astype(I32), rng.integers(0, 2, (2, 4)).astype(I32)
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], I32) if masked else None
    places = None if positions is None else rng.integers(0, 6, (positions, 4)).astype(I32)
    segment = (segment_ids, normal(2, 8)) if segments else (None, None)
    tables = normal(10, 8), normal(6, 8), segment[1], normal(8), normal(8)
    agree("EmbedLayerNormalization", ids, segment[0], *tables, mask, places, outputs=3, epsilon=1e-5)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantized_embedding(dtype):
    ids, segment_ids = rng.integers(0, 10, (2, 4)).astype(I32), rng.integers(0, 2, (2, 4)).astype(I32)
    tables = [integers(dtype, *s) for s in ((10, 8), (6, 8), (2, 8), (8,), (8,))]
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], I32)
    steps, zeros = [scales() for _ in range(5)], [integers(dtype) for _ in range(5)]
    agree("QEmbedLayerNormalization", ids, segment_ids, *tables, mask, *steps, *zeros, outputs=2, tolerance=1e-4)


@pytest.mark.parametrize(
    ("name", "shapes", "attributes"),
    [
        ("SkipSimplifiedLayerNormalization", [(2, 3, 8), (2, 3, 8), (8,)], {"epsilon": 1e-5}),
        ("SkipLayerNormalization", [(2, 3, 8), (2, 3, 8), (8,), (8,), (8,)], {}),
        ("BiasGelu", [(3, 8), (8,)], {}),
        ("QuickGelu", [(3, 8)], {}),
        ("FusedMatMul", [(3, 8), (8, 4)], {"alpha": 0.5}),
        ("MultiHeadAttention", [(2, 5, 16), (2, 5, 16), (2, 5, 16), (48,)], {"num_heads": 2, "unidirectional": 1}),
        ("GroupNorm", [(2, 4, 4, 6), (6,), (6,)], {"groups": 3, "activation": 1}),
    ],
)
def test_bodies_hold_in_bf16(name, shapes, attributes):
    narrow = tuple(normal(*s, dtype=ml_dtypes.bfloat16) for s in shapes)
    wide = tuple(x.astype(np.float32) for x in narrow)
    (got,), (want,) = (
        ours(model(name, xs, attributes), {f"i{k}": x for k, x in enumerate(xs)}) for xs in (narrow, wide)
    )
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=0, atol=2e-2 * np.abs(want).max())
