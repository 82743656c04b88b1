"""MoE and QMoE of com.microsoft."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx import errors
from tests.normalize.contrib import agree, fresh_numbers, integers, model, normal, ours, scales  # noqa: F401

TOKENS, HIDDEN, INNER, EXPERTS = 6, 32, 32, 4


def options(kind, fusion):
    swiglu = {"swiglu_fusion": fusion, "activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 0.8}
    return {"activation_type": kind, **(swiglu if kind == "swiglu" else {})}


@pytest.mark.parametrize("kind", ["relu", "silu", "gelu", "identity", "swiglu"])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("normalized", [0, 1])
def test_experts(kind, k, normalized):
    wide = INNER * (2 if kind == "swiglu" else 1)
    weights = (
        normal(EXPERTS, wide, HIDDEN),
        normal(EXPERTS, wide),
        normal(EXPERTS, HIDDEN, INNER),
        normal(EXPERTS, HIDDEN),
    )
    for x in (normal(TOKENS, HIDDEN), normal(2, TOKENS // 2, HIDDEN)):
        flags = {"k": k, "normalize_routing_weights": normalized, **options(kind, 1)}
        agree("MoE", x, normal(TOKENS, EXPERTS), *weights, tolerance=1e-4, **flags)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("pointed", [False, True])
@pytest.mark.parametrize("kind", ["silu", "swiglu"])
def test_quantized_experts(bits, block, pointed, kind):
    """onnxruntime rounds activations to 8 bits where the weights are blocks of 8 bits."""
    tolerance = 4e-2 if bits == 8 and block else 1e-4
    wide = INNER * (2 if kind == "swiglu" else 1)

    def quantized(rows, columns):
        blocks = (columns // block,) if block else ()
        packed = (-(-blocks[0] * bits // 8),) if block else ()
        points = integers(np.uint8, EXPERTS, rows, *packed) if block else integers(np.uint8, EXPERTS, rows * bits // 8)
        return integers(np.uint8, EXPERTS, rows, columns * bits // 8), scales(EXPERTS, rows, *blocks) / 10, points

    (w1, s1, z1), (w2, s2, z2) = quantized(wide, HIDDEN), quantized(HIDDEN, INNER)
    biases = normal(EXPERTS, wide), normal(EXPERTS, HIDDEN)
    points = (z1, z2) if pointed else (None, None)
    inputs = (
        normal(TOKENS, HIDDEN),
        normal(TOKENS, EXPERTS),
        w1,
        s1,
        biases[0],
        w2,
        s2,
        biases[1],
        None,
        None,
        None,
        *points,
    )
    flags = {"k": 2, "normalize_routing_weights": 1, "expert_weight_bits": bits, **options(kind, 1)}
    agree(
        "QMoE",
        *inputs,
        const=(2, 3, 5, 6, 11, 12),
        tolerance=tolerance,
        **flags,
        **({"block_size": block} if block else {}),
    )


def test_other_quantizations_are_refused():
    inputs = (
        normal(2, 4),
        normal(2, 2),
        integers(np.uint8, 2, 4, 2),
        scales(2, 4),
        None,
        integers(np.uint8, 2, 4, 2),
        scales(2, 4),
    )
    with pytest.raises(errors.NotImplemented, match="quant_type"):
        ours(model("QMoE", inputs, {"quant_type": "fp4"}), {})
