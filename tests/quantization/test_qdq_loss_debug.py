"""The functions of onnxruntime's ``qdq_loss_debug``, with its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.errors import InvalidArgument, RuntimeException
from sardonyx.quantization import qdq_loss_debug as ours
from tests.quantization.models import image_network, samples, transformer_layer


class Reader:
    def __init__(self, data: Any) -> None:
        self._data = iter(data)

    def get_next(self) -> Any:
        return next(self._data, None)

    def __iter__(self) -> Any:
        return self._data


@pytest.fixture(scope="module")
def theirs() -> Any:
    pytest.importorskip("onnxruntime")
    from onnxruntime.quantization import qdq_loss_debug

    return qdq_loss_debug


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An image network and what onnxruntime's quantizer makes of it."""
    pytest.importorskip("onnxruntime")
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Data(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._data = iter(samples(image_network()))

        def get_next(self) -> Any:
            return next(self._data, None)

    folder = tmp_path_factory.mktemp("qdq")
    onnx.save(image_network(), folder / "m.onnx")
    quantize_static(folder / "m.onnx", folder / "q.onnx", Data(), per_channel=True, weight_type=QuantType.QInt8)
    return folder / "m.onnx", folder / "q.onnx"


@pytest.mark.parametrize("op_types", [None, ["Conv"], ["Gemm", "Relu"]])
def test_outputs_are_onnxruntimes(theirs: Any, files: tuple[Path, Path], op_types: Any, tmp_path: Path) -> None:
    for path in files:
        names = []
        for i, module in enumerate((ours, theirs)):
            module.modify_model_output_intermediate_tensors(str(path), str(tmp_path / f"{i}.onnx"), op_types)
            names.append({o.name for o in onnx.load(tmp_path / f"{i}.onnx").graph.output})
        assert names[0] == names[1]


def test_values_are_onnxruntimes(theirs: Any, files: tuple[Path, Path], tmp_path: Path) -> None:
    found = []
    for module in (ours, theirs):
        collected = []
        for path in files:
            module.modify_model_output_intermediate_tensors(str(path), str(tmp_path / "a.onnx"))
            collected.append(module.collect_activations(str(tmp_path / "a.onnx"), Reader(samples(image_network()))))
        found.append(collected)
    (real, quantized), (their_real, their_quantized) = found
    assert real.keys() == their_real.keys() and quantized.keys() == their_quantized.keys()
    for name, values in real.items():
        for a, b in zip(values, their_real[name], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    mine, other = (m.create_activation_matching(quantized, real) for m in (ours, theirs))
    assert mine.keys() == other.keys()
    errors, their_errors = ours.compute_activation_error(mine), theirs.compute_activation_error(other)
    for name, error in errors.items():
        assert error["xmodel_err"] == pytest.approx(their_errors[name]["xmodel_err"], abs=1)
    mine, other = (m.create_weight_matching(str(files[0]), str(files[1])) for m in (ours, theirs))
    assert mine.keys() == other.keys() == {"w1", "w2", "w3", "w4", *(f"b{i}" for i in range(1, 5))}
    for name, match in mine.items():
        for side, array in match.items():
            np.testing.assert_allclose(array, other[name][side], rtol=1e-6, atol=1e-9)
    assert ours.compute_weight_error(mine) == pytest.approx(theirs.compute_weight_error(other), rel=1e-4)


def test_weights_with_zero_points_and_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((32, 6)).astype(np.float32)
    scale, zero = np.full((2, 6), 0.05, np.float32), np.full((2, 6), 130, np.uint8)
    steps = np.repeat(scale, 16, 0)
    q = np.clip(np.rint(w / steps) + 130, 0, 255).astype(np.uint8)
    nodes = [
        helper.make_node("DequantizeLinear", ["w_quantized", "s", "z"], ["d"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    sides = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in (("x", [1, 32]), ("y", [1, 6]))]
    weights = [numpy_helper.from_array(a, n) for n, a in (("w_quantized", q), ("s", scale), ("z", zero))]
    made = helper.make_model(
        helper.make_graph(nodes, "g", *sides, weights), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    onnx.save(made, tmp_path / "q.onnx")
    plain = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", *sides, [numpy_helper.from_array(w, "w")]
    )
    onnx.save(helper.make_model(plain, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    match = ours.create_weight_matching(tmp_path / "m.onnx", tmp_path / "q.onnx")
    assert np.abs(match["w"]["dequantized"] - w).max() <= 0.0251
    assert ours.compute_weight_error(match)["w"] > 30


def test_models_with_weights_outside(tmp_path: Path) -> None:
    onnx.save(transformer_layer(), tmp_path / "m.onnx")
    ours.modify_model_output_intermediate_tensors(tmp_path / "m.onnx", tmp_path / "a.onnx", save_as_external_data=True)
    assert (tmp_path / "a.onnx.data").exists()
    found = ours.collect_activations(tmp_path / "a.onnx", samples(transformer_layer()))
    assert {"x", "y", "l_up", "shares"} <= found.keys() and len(found["y"]) == 4


def test_ratio_of_signal_to_noise(theirs: Any) -> None:
    rng = np.random.default_rng(0)
    x = [rng.standard_normal(5), rng.standard_normal(7)]
    y = [v + 0.01 for v in x]
    assert ours.compute_signal_to_quantization_noice_ratio(x, y) == pytest.approx(
        theirs.compute_signal_to_quantization_noice_ratio(x, y)
    )
    with pytest.raises(RuntimeError, match="Unequal"):
        ours.compute_signal_to_quantization_noice_ratio(x, y[0])


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    onnx.save(image_network(), tmp_path / "m.onnx")
    ours.modify_model_output_intermediate_tensors(tmp_path / "m.onnx", tmp_path / "a.onnx")
    with pytest.raises(RuntimeException, match="No data"):
        ours.collect_activations(tmp_path / "a.onnx", Reader([]))
    with pytest.raises(InvalidArgument, match="x"):
        ours.collect_activations(tmp_path / "a.onnx", Reader([{"other": np.zeros(3)}]))
