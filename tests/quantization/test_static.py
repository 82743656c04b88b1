"""quantize_static beside onnxruntime's: the same nodes, scales and integers, and models that run in both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx.quantization import QuantFormat, QuantType, quantize_static
from tests.quantization.budget_nets import Net
from tests.quantization.graphs import NETWORKS
from tests.quantization.oracle import Both

pytest.importorskip("onnxruntime", reason="onnxruntime comes with the test extra")
QDQ, QOperator = QuantFormat.QDQ, QuantFormat.QOperator
PAIRS = [(QuantType.QUInt8, QuantType.QInt8), (QuantType.QInt8, QuantType.QInt8), (QuantType.QUInt8, QuantType.QUInt8)]


@pytest.mark.sliced(3)
@pytest.mark.parametrize("activation_type, weight_type", PAIRS, ids=str)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per_tensor", "per_channel"])
@pytest.mark.parametrize("quant_format", [QDQ, QOperator], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_bytes(
    name: str,
    quant_format: QuantFormat,
    per_channel: bool,
    activation_type: QuantType,
    weight_type: QuantType,
    tmp_path: Path,
) -> None:
    Both(
        NETWORKS[name](),
        tmp_path,
        quant_format=quant_format,
        per_channel=per_channel,
        activation_type=activation_type,
        weight_type=weight_type,
    ).check()


@pytest.mark.parametrize(
    "activation_type, weight_type",
    [
        (QuantType.QUInt16, QuantType.QInt8),
        (QuantType.QInt16, QuantType.QInt16),
        (QuantType.QUInt8, QuantType.QInt4),
        (QuantType.QInt16, QuantType.QUInt4),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["convnet", "perceptron"])
def test_wide_and_narrow_types(name: str, activation_type: QuantType, weight_type: QuantType, tmp_path: Path) -> None:
    Both(NETWORKS[name](), tmp_path, per_channel=True, activation_type=activation_type, weight_type=weight_type).check()


@pytest.mark.parametrize("quant_format", [QDQ, QOperator], ids=str)
def test_reduced_range(quant_format: QuantFormat, tmp_path: Path) -> None:
    network = NETWORKS["convnet"]()
    Both(network, tmp_path, quant_format=quant_format, reduce_range=True, activation_type=QuantType.QUInt8).check(
        tolerance=0.04
    )


def test_a_model_of_halves_makes_no_warnings(tmp_path: Path) -> None:
    """The ranges of halves are compared with limits that no half can have."""
    weight = np.linspace(-1, 1, 32 * 8).astype(np.float16).reshape(32, 8)
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 19]> g (float16[n, 32] x) => (float16[n, 8] y) { y = MatMul(x, w) }"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    feeds = [{"x": f["x"].astype(np.float16)} for f in Net(["n", 32]).feeds(4)]
    quantize_static(model, tmp_path / "q.onnx", feeds)
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}
