"""Bias correction: mean errors of quantized layers fall, in files that onnxruntime's quantizer made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.errors import InvalidArgument
from sardonyx.quantization.bias_correction import correct_biases
from tests.quantization.budget_nets import Feeds, Net, Readings, copied, mobilenet_like, sqnr_db

ort = pytest.importorskip("onnxruntime", reason="onnxruntime comes with the test extra")
quantization = pytest.importorskip("onnxruntime.quantization")


def quantized(model: onnx.ModelProto, feeds: list[Feeds], path: Path, **options: Any) -> onnx.ModelProto:
    """Weights in four bits: their rounding shifts means far more than that of eight-bit activations."""
    weights = quantization.QuantType.QInt4
    quantization.quantize_static(copied(model), path, Readings(feeds), weight_type=weights, **options)
    return onnx.load(path)


def outputs(model: onnx.ModelProto, feeds: list[Feeds]) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, each)[0].reshape(1, -1) for each in feeds])


def convolutions(bias: bool = True) -> Net:
    net = Net(["n", 6, 12, 12])
    net.conv("a", 6, 12, bias=bias).add("Relu").conv("b", 12, 12, group=12, bias=bias).add("Relu")
    return net.conv("c", 12, 8, kernel=1, bias=bias).add("GlobalAveragePool").add("Flatten").gemm("d", 8, 5)


def perceptron() -> Net:
    net = Net(["n", 6, 16])
    for i, (ins, outs) in enumerate(((16, 32), (32, 32), (32, 4))):
        bias = net.rng.standard_normal(outs)
        net.matmul(f"m{i}", ins, outs).add("Add", net.constant(f"m{i}.b", bias), name=f"add{i}").add("Relu")
    return net


@pytest.mark.parametrize("per_channel", [False, True], ids=["per-tensor", "per-channel"])
@pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
def test_mean_errors_of_convolutions_fall(tmp_path: Path, bias: bool, per_channel: bool) -> None:
    net = convolutions(bias)
    model = net.model(21)
    feeds, fresh = net.feeds(16), net.feeds(16, seed=2)
    plain = quantized(model, feeds, tmp_path / "q.onnx", per_channel=per_channel)
    result = correct_biases(model, plain, feeds)
    onnx.checker.check_model(result.model, full_check=True)
    assert [layer.name for layer in result.layers] == ["a", "b", "c", "d"] and not result.skipped
    expected = outputs(model, fresh)
    before, after = outputs(plain, fresh), outputs(result.model, fresh)
    means = [float(np.abs((expected - got).mean(axis=0)).max()) for got in (before, after)]
    assert means[1] < 0.6 * means[0], means
    assert sqnr_db(expected, after) > sqnr_db(expected, before) + 1
    if bias:
        assert {n.op_type for n in result.model.graph.node} == {n.op_type for n in plain.graph.node}
        assert len(result.model.graph.node) == len(plain.graph.node), "the old biases are gone"


def test_biases_that_an_add_adds_in_eight_bits_are_corrected(tmp_path: Path) -> None:
    net = perceptron()
    model = net.model(21)
    feeds, fresh = net.feeds(16), net.feeds(16, seed=2)
    plain = quantized(model, feeds, tmp_path / "q.onnx")
    result = correct_biases(model, plain, feeds, tmp_path / "corrected.onnx")
    assert [layer.name for layer in result.layers] == ["m0", "m1", "m2"] and "m1: 32 channels" in str(result)
    np.testing.assert_array_equal(outputs(onnx.load(tmp_path / "corrected.onnx"), fresh), outputs(result.model, fresh))
    expected = outputs(model, fresh)
    assert sqnr_db(expected, outputs(result.model, fresh)) > sqnr_db(expected, outputs(plain, fresh)) + 1


def test_layers_kept_in_float_are_left_alone(tmp_path: Path) -> None:
    net = convolutions()
    model, feeds = net.model(21), net.feeds(8)
    plain = quantized(model, feeds, tmp_path / "q.onnx", nodes_to_exclude=["b"])
    assert [layer.name for layer in correct_biases(model, plain, Readings(feeds)).layers] == ["a", "c", "d"]


def test_a_bias_that_cannot_be_corrected_is_named(tmp_path: Path) -> None:
    net = Net(["n", 6, 16])
    net.matmul("m", 16, 8).add("Softmax")
    model, feeds = net.model(21), net.feeds(4)
    result = correct_biases(model, quantized(model, feeds, tmp_path / "q.onnx"), feeds)
    assert not result.layers and "no bias is added" in result.skipped["m"] and "m: not corrected" in str(result)


def test_bad_input_is_named(tmp_path: Path) -> None:
    net = mobilenet_like()
    model, feeds = net.model(21), net.feeds(2)
    plain = quantized(model, feeds, tmp_path / "q.onnx")
    with pytest.raises(InvalidArgument, match="no layer with quantized weights"):
        correct_biases(model, model, feeds)
    with pytest.raises(InvalidArgument, match="no calibration data"):
        correct_biases(model, plain, [])
    with pytest.raises(InvalidArgument, match="lacks inputs"):
        correct_biases(model, plain, [{"z": feeds[0]["x"]}])
    with pytest.raises(InvalidArgument, match="NaN"):
        correct_biases(model, plain, [{"x": np.full_like(feeds[0]["x"], np.nan)}])
