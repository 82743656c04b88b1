"""quantize_dynamic beside onnxruntime's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
from tests.quantization.graphs import NETWORKS
from tests.quantization.oracle import Both

pytest.importorskip("onnxruntime", reason="onnxruntime comes with the test extra")


@pytest.mark.sliced(3)
@pytest.mark.parametrize("weight_type", [QuantType.QInt8, QuantType.QUInt8], ids=str)
@pytest.mark.parametrize("reduce_range", [False, True], ids=["whole", "reduced"])
@pytest.mark.parametrize("per_channel", [False, True], ids=["per_tensor", "per_channel"])
@pytest.mark.parametrize("name", NETWORKS)
def test_same_model(name: str, per_channel: bool, reduce_range: bool, weight_type: QuantType, tmp_path: Path) -> None:
    Both(
        NETWORKS[name](),
        tmp_path,
        static=False,
        per_channel=per_channel,
        reduce_range=reduce_range,
        weight_type=weight_type,
    ).check()


FUSED = """
<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float[n, m, 16] x) => (float[n, m, 16] y) {
    attended = com.microsoft.Attention <num_heads = 2> (x, wqkv, bqkv)
    out = MatMul(attended, wo)
    normal, mean, deviation, sum = com.microsoft.SkipLayerNormalization(out, x, gain, shift)
    up = MatMul(normal, wup)
    active = com.microsoft.BiasGelu(up, bup)
    y = MatMul(active, wdown)
}
"""
"""onnx infers no types after operators of com.microsoft, and their results have none here."""


def fused_layer() -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    model = onnx.parser.parse_model(FUSED)
    shapes = {"wqkv": (16, 48), "bqkv": (48,), "wo": (16, 16), "gain": (16,), "shift": (16,), "wup": (16, 64)}
    for name, shape in {**shapes, "bup": (64,), "wdown": (64, 16)}.items():
        array = (rng.standard_normal(shape) / 4).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def test_products_behind_fused_operators(tmp_path: Path) -> None:
    import onnxruntime

    model = fused_layer()
    quantize_dynamic(model, tmp_path / "q.onnx", op_types_to_quantize=["MatMul"])
    counts = Counter(node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node)
    assert counts["MatMulInteger"] == 3 and counts["MatMul"] == 0
    x = np.random.default_rng(4).standard_normal((2, 5, 16)).astype(np.float32)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    for session in (onnxruntime.InferenceSession(tmp_path / "q.onnx"), sardonyx.InferenceSession(tmp_path / "q.onnx")):
        found = session.run(None, {"x": x})[0]
        assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


@pytest.mark.parametrize("quant_format", [QuantFormat.QDQ, QuantFormat.QOperator], ids=str)
def test_values_behind_fused_operators_are_calibrated(quant_format: QuantFormat, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    feeds = [{"x": rng.standard_normal((2, 5, 16)).astype(np.float32)} for _ in range(4)]
    quantize_static(
        fused_layer(), tmp_path / "q.onnx", feeds, quant_format=quant_format, op_types_to_quantize=["MatMul"]
    )
    inits = {each.name for each in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert {"attended_scale", "normal_scale", "active_scale"} <= inits
