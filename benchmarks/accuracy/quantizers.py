"""Ways to quantize a model, by the package that does it: Sardonyx or onnxruntime."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.task import Readings, Task

METHODS = ("MinMax", "Entropy", "Percentile", "Distribution")
INT4 = ("RTN", "HQQ", "GPTQ")


@dataclass(frozen=True)
class Row:
    """A way to quantize: ``make(quantization package's name, task, path)`` writes the model."""

    name: str
    make: Callable[[str, Task, Path], None]


def rows() -> list[Row]:
    found = [Row(DEFAULT, _default)]
    for method in METHODS:
        for per_channel in (False, True):
            types = "float8 (e4m3fn)" if method == "Distribution" else "int8"
            name = f"{types}, {method}, {'per channel' if per_channel else 'per tensor'}"
            found.append(Row(name, _static(method, per_channel)))
    return [*found, *(Row(f"4-bit weights, {method}", _four_bits(method)) for method in INT4)]


DEFAULT = "int8, default settings"
"""What quantize_static does unless it is told otherwise: MinMax, per tensor, and with Sardonyx the accuracy guard."""


def _default(package: str, task: Task, path: Path) -> None:
    _package(package).quantize_static(str(task.model), str(path), Readings(task.calibration))


def _static(method: str, per_channel: bool) -> Callable[[str, Task, Path], None]:
    def make(package: str, task: Task, path: Path) -> None:
        q = _package(package)
        kind = q.QuantType.QFLOAT8E4M3FN if method == "Distribution" else q.QuantType.QInt8
        q.quantize_static(
            str(task.model),
            str(path),
            Readings(task.calibration),
            per_channel=per_channel,
            calibrate_method=q.CalibrationMethod[method],
            activation_type=kind,
            weight_type=kind,
            extra_options={"AccuracyGuard": 0} if package == "sardonyx" else None,
        )

    return make


def _four_bits(method: str) -> Callable[[str, Task, Path], None]:
    def make(package: str, task: Task, path: Path) -> None:
        import importlib

        import onnx

        module = importlib.import_module(f"{_package(package).__name__}.matmul_nbits_quantizer")
        model = onnx.load(task.model)
        if method == "GPTQ":
            config = module.GPTQWeightOnlyQuantConfig(Readings(task.calibration), block_size=32)
        elif method == "HQQ":
            config = module.HQQWeightOnlyQuantConfig(block_size=32)
        else:
            config = module.DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=True)
        quantizer = module.MatMulNBitsQuantizer(model, block_size=32, is_symmetric=True, algo_config=config)
        quantizer.process()
        quantizer.model.save_model_to_file(str(path), use_external_data_format=False)
        _state_domain(path)

    return make


def _state_domain(path: Path) -> None:
    """Import com.microsoft, which onnxruntime's GPTQ forgets."""
    import onnx

    model = onnx.load(path)
    if not any(each.domain == "com.microsoft" for each in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
        onnx.save(model, path)


def _package(name: str) -> Any:
    logging.getLogger().setLevel(logging.ERROR)
    if name == "onnxruntime":
        from onnxruntime import quantization
    else:
        from sardonyx import quantization
    return quantization
