"""quantize_static beside onnxruntime's: the same nodes, scales and integers, and models that run in both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.quantization import QuantFormat, QuantType, quantize_static
from sardonyx.quantization.calibrate import TensorData
from sardonyx.quantization.qdq_quantizer import QDQQuantizer
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


def exact_and_found(model: onnx.ModelProto, path: Path, feeds: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    """Results of a model, of its quantized file in onnxruntime, and of that here."""
    import onnxruntime

    sessions = onnxruntime.InferenceSession(model.SerializeToString()), onnxruntime.InferenceSession(path)
    return [session.run(None, feeds[0])[0] for session in (*sessions, sardonyx.InferenceSession(path))]


@pytest.mark.parametrize("per_channel", [False, True], ids=["per_tensor", "per_channel"])
@pytest.mark.parametrize("quant_format", [QDQ, QOperator], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (6,), (1, 6), (3, 1), (3, 6)], ids=str)
def test_biases_that_are_broadcast(
    shape: tuple[int, ...], quant_format: QuantFormat, per_channel: bool, tmp_path: Path
) -> None:
    """onnxruntime's quantizer raises an IndexError or a ValueError for most of them, per channel."""
    rng = np.random.default_rng(6)
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[3, 5] x) => (float[3, 6] y) { y = Gemm(x, w, c) }"""
    )
    for name, size in {"w": (5, 6), "c": shape}.items():
        array = np.asarray(rng.standard_normal(size), np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    feeds = [{"x": rng.standard_normal((3, 5)).astype(np.float32)} for _ in range(3)]
    path = tmp_path / "q.onnx"
    quantize_static(
        model, path, feeds, quant_format, per_channel=per_channel, activation_type=QuantType.QUInt8,
        extra_options={"AccuracyGuard": 0},
    )  # fmt: skip
    onnx.checker.check_model(path, full_check=True)
    exact, there, here = exact_and_found(model, path, feeds)
    for found in (there, here):
        np.testing.assert_allclose(found, exact, atol=0.03 * np.abs(exact).max())


@pytest.mark.parametrize("large_bias", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_of_a_transposed_convolution_share_scales(groups: int, large_bias: bool, tmp_path: Path) -> None:
    """onnxruntime's quantizer raises a ValueError for groups."""
    rng = np.random.default_rng(7)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[1, 8, 4, 5] x) => (float[1, 12, 6, 7] y)
        {{ y = ConvTranspose<group = {groups}>(x, w, c) }}"""
    )
    weight = rng.standard_normal((8, 12 // groups, 3, 3)) * (1e-9 if large_bias else 1)
    for name, array in {"w": weight, "c": rng.standard_normal(12)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    feeds = [{"x": rng.standard_normal((1, 8, 4, 5)).astype(np.float32)} for _ in range(3)]
    path = tmp_path / "q.onnx"
    quantize_static(model, path, feeds, per_channel=True, extra_options={"AccuracyGuard": 0})
    onnx.checker.check_model(path, full_check=True)
    exact, there, here = exact_and_found(model, path, feeds)
    for found in (there, here):
        np.testing.assert_allclose(found, exact, atol=0.03 * np.abs(exact).max())


READ_ELSEWHERE = """
<ir_version: 8, opset_import: ["": 17]>
g (float[n, 8] x, bool c) => (float[n, 8] y, float[n, 8] z)
{
    p = MatMul(x, w)
    r = Relu(p)
    z = MatMul(r, v)
    s = MatMul(r, w)
    READ
}
"""
READERS = {
    "a body": "y = If(c) <then_branch = t () => (float[n, 8] a) { a = Identity(r) }, "
    "else_branch = f () => (float[n, 8] b) { b = Neg(r) }>",
    "an operator that is not quantized": "y = Erf(r)",
}


@pytest.mark.parametrize("options", [{}, {"DedicatedQDQPair": True}], ids=["shared", "dedicated"])
@pytest.mark.parametrize("quant_format", [QDQ, QOperator], ids=str)
@pytest.mark.parametrize("reader", READERS)
def test_a_relu_stays_where_its_result_is_read_as_a_real(
    reader: str, quant_format: QuantFormat, options: dict[str, bool], tmp_path: Path
) -> None:
    """onnxruntime's quantizer removes it, and readers that get no quantized values miss it."""
    rng = np.random.default_rng(8)
    model = onnx.parser.parse_model(READ_ELSEWHERE.replace("READ", READERS[reader]))
    for name in "wv":
        array = rng.standard_normal((8, 8)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    feeds = [{"x": rng.standard_normal((4, 8)).astype(np.float32), "c": np.array(True)} for _ in range(3)]
    if reader != "a body":
        del model.graph.input[1]
        for each in feeds:
            del each["c"]
    path = tmp_path / "q.onnx"
    quantize_static(
        model, path, feeds, quant_format, op_types_to_quantize=["MatMul", "Relu"],
        activation_type=QuantType.QUInt8, extra_options={"AccuracyGuard": 0, **options},
    )  # fmt: skip
    exact, there, here = exact_and_found(model, path, feeds)
    for found in (there, here):
        np.testing.assert_allclose(found, exact, atol=0.05 * np.abs(exact).max())


@pytest.mark.parametrize("domain", ["", "example"])
def test_a_relu_of_another_domain_is_not_removed(domain: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "example" : 1]> g (float[4, 8] x) => (float[4, 8] y)\n'
        f"{{ a = Add(x, x)\n b = {domain + '.' if domain else ''}Relu(a)\n y = Sub(b, x) }}"
    )
    ranges = {name: TensorData(lowest=np.float32(0), highest=np.float32(3)) for name in "xaby"}
    made = QDQQuantizer(
        model, False, False, QuantType.QInt8, QuantType.QUInt8, ranges, [], [], ["Add", "Relu", "Sub"]
    ).quantize_model()
    operators = {(node.domain, node.op_type) for node in made.graph.node}
    assert ((domain, "Relu") in operators) == (domain == "example")
