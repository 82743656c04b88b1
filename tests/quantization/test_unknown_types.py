"""DefaultTensorType: results of operators that nobody knows are quantized as tensors of that type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx.errors import InvalidArgument
from sardonyx.quantization import QuantFormat, quantize_dynamic, quantize_static
from sardonyx.quantization.calibrate.cache import save_tensors_data
from sardonyx.quantization.calibrate.tensors import TensorData, TensorsData
from sardonyx.quantization.kinds import CalibrationMethod
from tests.quantization.graphs import Network
from tests.quantization.oracle import operators

theirs = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime comes with the test extra")
FLOAT = {"DefaultTensorType": onnx.TensorProto.FLOAT}


def network() -> Network:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "some.where": 1]>
        g (float[4, 8] x) => (float[4, 8] y) {
            [strange] t = some.where.Strange (x)
            [product] y = MatMul (t, w)
        }"""
    )
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return Network(model, [])


def test_dynamic(tmp_path: Path) -> None:
    onnx.save(network().model, tmp_path / "m.onnx")
    theirs.quantize_dynamic(tmp_path / "m.onnx", tmp_path / "other.onnx", extra_options=FLOAT)
    quantize_dynamic(network().model, tmp_path / "mine.onnx", extra_options=FLOAT)
    mine, other = (onnx.load(tmp_path / f"{name}.onnx") for name in ("mine", "other"))
    assert operators(mine) == operators(other) and ("", "MatMulInteger") in operators(mine)
    assert "t" not in {v.name for v in mine.graph.value_info}, "a type is stated that nobody knows"


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_static(form: QuantFormat, tmp_path: Path) -> None:
    ends = (np.float32(-1), np.float32(1))
    ranges = TensorsData(CalibrationMethod.MinMax, {n: TensorData(lowest=ends[0], highest=ends[1]) for n in "xty"})
    save_tensors_data(ranges, tmp_path / "ranges.json")
    found = []
    for options in ({}, FLOAT):
        quantize_static(
            network().model, tmp_path / "q.onnx", None, quant_format=form, extra_options=options,
            calibration_cache_path=tmp_path / "ranges.json",
        )  # fmt: skip
        found.append(onnx.load(tmp_path / "q.onnx"))
    without, made = map(operators, found)
    assert ("", "QuantizeLinear") not in without
    assert ("", "QuantizeLinear") in made and "t" not in {v.name for v in found[1].graph.value_info}


def test_a_number_that_is_no_type(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"DefaultTensorType.*TensorProto.DataType.*got: 99"):
        quantize_dynamic(network().model, tmp_path / "q.onnx", extra_options={"DefaultTensorType": 99})
