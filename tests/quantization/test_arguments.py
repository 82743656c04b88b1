"""Wrong arguments and bad data: one line that says what is wrong, and no file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx.quantization as quantization
from sardonyx.errors import SardonyxError
from tests.quantization.graphs import perceptron
from tests.quantization.oracle import Reader

GOOD = perceptron().data


def filled(number: float, *shape: int) -> list[dict[str, Any]]:
    return [{"x": np.full(shape or (3, 12), number, np.float32)}]


def exhausted() -> Reader:
    reader = Reader(GOOD)
    while reader.get_next() is not None:
        pass
    return reader


READERS: dict[str, tuple[Callable[[], Any], str]] = {
    "empty": (lambda: Reader([]), "No data is collected"),
    "exhausted": (exhausted, "No data is collected: .* read to its end before"),
    "none": (lambda: None, "calibration_data_reader"),
    "no reader": (lambda: 5, "get_next"),
    "NaN": (lambda: Reader(filled(np.nan)), "calibration data has NaN; at sample 1 .*'x'"),
    "NaN in the second sample": (lambda: Reader(GOOD[:1] + filled(np.nan)), "sample 2 .*'x'"),
    "infinite": (lambda: Reader(filled(np.inf)), "computes NaN .* tensor 'h0', sample 1"),
    "another name": (lambda: Reader([{"xx": GOOD[0]["x"]}]), "no input of this name.*did you mean 'x'"),
    "another size": (lambda: Reader(filled(0.5, 3, 13)), "Got: 13 Expected: 12.*sample 1"),
    "another rank": (lambda: Reader(filled(0.5, 12)), "rank.*sample 1"),
    "another type": (lambda: Reader([{"x": np.zeros((3, 12))}]), "double.*sample 1"),
    "a list": (lambda: Reader([[GOOD[0]["x"]]]), "dictionary.*sample 1"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("method", quantization.CalibrationMethod)
@pytest.mark.parametrize("name", READERS)
@pytest.mark.sliced(4)
def test_readers(name: str, method: quantization.CalibrationMethod, tmp_path: Path) -> None:
    make, message = READERS[name]
    with pytest.raises(ValueError, match=message) as caught:
        quantization.quantize_static(perceptron().model, tmp_path / "out.onnx", make(), calibrate_method=method)
    assert isinstance(caught.value, SardonyxError) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "format as text": ({"quant_format": "QDQ"}, "quant_format is a QuantFormat; expected: .*QuantFormat.QDQ"),
    "type as text": ({"activation_type": "int8"}, "activation_type is a QuantType"),
    "method as text": ({"calibrate_method": "MinMax"}, "calibrate_method is a CalibrationMethod"),
    "one operator as text": ({"op_types_to_quantize": "Gemm"}, r"list of names; got: 'Gemm'; write \['Gemm'\]"),
    "misspelt operator": ({"op_types_to_quantize": ["Gem", "MatMul"]}, "got: Gem; did you mean Gemm"),
    "nodes that are no names": ({"nodes_to_exclude": [1]}, "nodes_to_exclude is a list of names"),
    "signed by unsigned": ({"weight_type": quantization.QuantType.QUInt8}, "signed activations need signed weights"),
    "misspelt option": ({"extra_options": {"SmothQuant": True}}, "did you mean SmoothQuant"),
    "float8 by its range": (
        dict.fromkeys(("activation_type", "weight_type"), quantization.QuantType.QFLOAT8E4M3FN),
        "CalibrationMethod.Distribution",
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name: str, tmp_path: Path) -> None:
    arguments, message = ARGUMENTS[name]
    with pytest.raises(ValueError, match=message) as caught:
        quantization.quantize_static(perceptron().model, tmp_path / "out.onnx", Reader(GOOD), **arguments)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


class Unread:
    """A reader that must not be read."""

    def get_next(self) -> None:
        raise AssertionError("the model is calibrated before the arguments are checked")


def test_output_is_checked_before_calibration(tmp_path: Path) -> None:
    for output, message in (
        (tmp_path / "no" / "out.onnx", "does not exist"),
        (tmp_path, "is a folder"),
        (None, "the path of the file"),
    ):
        with pytest.raises(ValueError, match=message):
            quantization.quantize_static(perceptron().model, output, Unread())  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=message):
            quantization.quantize_dynamic(perceptron().model, output)  # type: ignore[arg-type]


def test_quantized_models_are_refused(tmp_path: Path) -> None:
    made = tmp_path / "made.onnx"
    quantizers: list[Callable[[Any, Path], None]] = [
        lambda source, path: quantization.quantize_dynamic(source, path),
        lambda source, path: quantization.quantize_static(source, path, Reader(GOOD)),
        lambda source, path: quantization.quantize_static(
            source, path, Reader(GOOD), quant_format=quantization.QuantFormat.QOperator
        ),
    ]
    for first in quantizers:
        first(perceptron().model, made)
        for again in quantizers:
            with pytest.raises(ValueError, match=r"quantized already; at .* node .*; quantize the float model"):
                again(str(made), tmp_path / "again.onnx")
    assert not (tmp_path / "again.onnx").exists()


def test_nothing_to_quantize_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        quantization.quantize_dynamic(perceptron().model, tmp_path / "out.onnx", op_types_to_quantize=["LSTM"])
    assert "nothing is quantized" in caplog.text
    assert [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node].count("MatMulInteger") == 0


def test_a_model_may_be_quantized_onto_itself(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(perceptron().model, path)
    quantization.quantize_dynamic(path, path)
    assert "MatMulInteger" in {n.op_type for n in onnx.load(path).graph.node}


def test_onnxruntimes_enumerations_stand_for_ours(tmp_path: Path) -> None:
    theirs = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime comes with the test extra")
    quantization.quantize_static(
        perceptron().model,
        tmp_path / "out.onnx",
        Reader(GOOD),
        quant_format=theirs.QuantFormat.QOperator,
        weight_type=theirs.QuantType.QInt8,
        calibrate_method=theirs.CalibrationMethod.Percentile,
    )
    assert "QGemm" in {n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node}


def test_codes_of_element_types_stand_for_types(tmp_path: Path) -> None:
    """Programs pass ``onnx.TensorProto.UINT8``, which onnxruntime's quantizer takes."""
    model = perceptron()
    for name, kinds in {
        "types": (quantization.QuantType.QUInt8, quantization.QuantType.QInt8),
        "codes": (onnx.TensorProto.UINT8, onnx.TensorProto.INT8),
    }.items():
        path = tmp_path / f"{name}.onnx"
        quantization.quantize_static(model.model, path, model.data, activation_type=kinds[0], weight_type=kinds[1])
    assert (tmp_path / "types.onnx").read_bytes() == (tmp_path / "codes.onnx").read_bytes()
    with pytest.raises(ValueError, match="activation_type is a QuantType"):
        quantization.quantize_static(model.model, path, model.data, activation_type=onnx.TensorProto.STRING)
