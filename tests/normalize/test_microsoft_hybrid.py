"""Linear attention, causal convolution, gates and three-way rotation of com.microsoft."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx import errors
from tests.normalize.contrib import agree, fresh_numbers, model, normal, ours, rng  # noqa: F401


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("past", [False, True])
def test_linear_attention(rule, past):
    batch, length, heads, kv, size = 2, 5, 4, 2, 8
    q, k, v = (normal(batch, length, n * size) / 3 for n in (heads, kv, kv))
    state = normal(batch, kv, size, size) if past else None
    decay = -np.abs(normal(batch, length, kv)) if "gated" in rule else None
    beta = rng.uniform(0, 1, (batch, length, kv)).astype(np.float32) if "delta" in rule else None
    flags = {"update_rule": rule, "q_num_heads": heads, "kv_num_heads": kv}
    agree("LinearAttention", q, k, v, state, decay, beta, outputs=2, tolerance=1e-4, **flags)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_causal_conv(activation, past, biased):
    bias, state = normal(6) if biased else None, normal(2, 6, 3) if past else None
    agree("CausalConvWithState", normal(2, 6, 5), normal(6, 1, 4), bias, state, outputs=2, activation=activation)


def test_features_that_ai_onnx_lacks_are_refused():
    with pytest.raises(errors.NotImplemented, match="dilation=2"):
        ours(model("CausalConvWithState", (normal(2, 6, 5), normal(6, 1, 4)), {"dilation": 2}, outputs=2), {})


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-5), (np.float16, 4e-3)])
def test_gates(dtype, tolerance):
    x, y, gate, scale = (normal(*s, dtype=dtype) for s in ((2, 3, 16), (2, 3, 16), (2, 3, 1), (8,)))
    agree("GatedAdd", x, y, gate, tolerance=tolerance)
    for activation in ("silu", "sigmoid"):
        agree("GatedRMSNorm", x, scale, y, activation=activation, epsilon=1e-3, tolerance=tolerance)
    agree("ScaledSiLU", x, alpha=1.7, tolerance=tolerance)
    agree("ScaledSiLU", x, np.array(0.7, dtype), tolerance=tolerance)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_three_way_rotation(layout, interleaved):
    cos, sin, positions = normal(10, 8), normal(10, 8), rng.integers(0, 10, (3, 2, 5))
    flags = {"mrope_section": [4, 2, 2], "mrope_layout": layout, "interleaved": interleaved}
    agree("MRotaryEmbedding", normal(2, 5, 32), positions, cos, sin, num_heads=2, **flags)
    agree("MRotaryEmbedding", normal(2, 2, 5, 16), positions, cos, sin, **flags)
    agree("MRotaryEmbedding", normal(2, 5, 48), positions, cos, sin, num_heads=2, rotary_embedding_dim=16, **flags)
