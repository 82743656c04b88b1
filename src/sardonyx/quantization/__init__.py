"""Quantization of models, with onnxruntime.quantization's names.

    from sardonyx.quantization import quantize_dynamic
    quantize_dynamic("model.onnx", "model.int8.onnx")

Names are imported when they are first used. ``quantize`` is imported at once: it is a function and a module, and the
function must be what the package's attribute is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.lazy import attributes
from sardonyx.quantization.quantize import quantize as quantize

_HOMES: dict[str, str] = {
    **dict.fromkeys(("CalibrationMethod", "QuantFormat", "QuantType", "QuantizationMode"), "kinds"),
    "CalibrationDataReader": "data",
    **dict.fromkeys(
        (
            "CalibraterBase",
            "MinMaxCalibrater",
            "TensorData",
            "TensorsData",
            "create_calibrator",
            "load_tensors_data",
            "save_tensors_data",
        ),
        "calibrate",
    ),
    **dict.fromkeys(("DynamicQuantConfig", "QuantConfig", "StaticQuantConfig"), "configs"),
    **dict.fromkeys(("quantize_dynamic", "quantize_static"), "quantize"),
    "QDQQuantizer": "qdq_quantizer",
    "get_qdq_config": "qdq_config",
    "write_calibration_table": "calibrate.table",
    "Budget": "budget.goal",
    "SessionMetric": "budget.damage",
    **dict.fromkeys(
        (
            "DefaultWeightOnlyQuantConfig", "GPTQWeightOnlyQuantConfig", "HQQWeightOnlyQuantConfig",
            "KQuantWeightOnlyQuantConfig", "MatMulNBitsQuantizer", "RTNWeightOnlyQuantConfig",
        ),
        "matmul_nbits_quantizer",
    ),
    **dict.fromkeys(
        ("auto_convert_mixed_precision", "auto_convert_mixed_precision_model_path", "mixed_precision"),
        "auto_mixed_precision",
    ),
    "correct_biases": "bias_correction",
    "debug": "diagnosis.debug",
    "equalize_layers": "equalize",
    "quant_pre_process": "shape_inference",
}  # fmt: skip
"""Public name to the module of this package that has it."""
_MODULES = (
    "base_quantizer", "calibrate", "matmul_nbits_quantizer", "onnx_model", "onnx_quantizer", "preprocess",
    "qdq_loss_debug", "qdq_quantizer", "quant_utils", "registry", "shape_inference", "tensor_quant_overrides",
)  # fmt: skip
"""Modules that programs reach as attributes of the package."""

__all__ = ["quantize", *_HOMES]  # noqa: PLE0604

if TYPE_CHECKING:
    from sardonyx.quantization.auto_mixed_precision import auto_convert_mixed_precision as auto_convert_mixed_precision
    from sardonyx.quantization.auto_mixed_precision import (
        auto_convert_mixed_precision_model_path as auto_convert_mixed_precision_model_path,
    )
    from sardonyx.quantization.auto_mixed_precision import mixed_precision as mixed_precision
    from sardonyx.quantization.bias_correction import correct_biases as correct_biases
    from sardonyx.quantization.budget.damage import SessionMetric as SessionMetric
    from sardonyx.quantization.budget.goal import Budget as Budget
    from sardonyx.quantization.calibrate import CalibraterBase as CalibraterBase
    from sardonyx.quantization.calibrate import MinMaxCalibrater as MinMaxCalibrater
    from sardonyx.quantization.calibrate import TensorData as TensorData
    from sardonyx.quantization.calibrate import TensorsData as TensorsData
    from sardonyx.quantization.calibrate import create_calibrator as create_calibrator
    from sardonyx.quantization.calibrate import load_tensors_data as load_tensors_data
    from sardonyx.quantization.calibrate import save_tensors_data as save_tensors_data
    from sardonyx.quantization.calibrate.table import write_calibration_table as write_calibration_table
    from sardonyx.quantization.configs import DynamicQuantConfig as DynamicQuantConfig
    from sardonyx.quantization.configs import QuantConfig as QuantConfig
    from sardonyx.quantization.configs import StaticQuantConfig as StaticQuantConfig
    from sardonyx.quantization.data import CalibrationDataReader as CalibrationDataReader
    from sardonyx.quantization.equalize import equalize_layers as equalize_layers
    from sardonyx.quantization.kinds import CalibrationMethod as CalibrationMethod
    from sardonyx.quantization.kinds import QuantFormat as QuantFormat
    from sardonyx.quantization.kinds import QuantizationMode as QuantizationMode
    from sardonyx.quantization.kinds import QuantType as QuantType
    from sardonyx.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig as DefaultWeightOnlyQuantConfig,
    )
    from sardonyx.quantization.matmul_nbits_quantizer import GPTQWeightOnlyQuantConfig as GPTQWeightOnlyQuantConfig
    from sardonyx.quantization.matmul_nbits_quantizer import HQQWeightOnlyQuantConfig as HQQWeightOnlyQuantConfig
    from sardonyx.quantization.matmul_nbits_quantizer import KQuantWeightOnlyQuantConfig as KQuantWeightOnlyQuantConfig
    from sardonyx.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer as MatMulNBitsQuantizer
    from sardonyx.quantization.matmul_nbits_quantizer import RTNWeightOnlyQuantConfig as RTNWeightOnlyQuantConfig
    from sardonyx.quantization.qdq_config import get_qdq_config as get_qdq_config
    from sardonyx.quantization.qdq_quantizer import QDQQuantizer as QDQQuantizer
    from sardonyx.quantization.quantize import quantize_dynamic as quantize_dynamic
    from sardonyx.quantization.quantize import quantize_static as quantize_static
    from sardonyx.quantization.shape_inference import quant_pre_process as quant_pre_process

__getattr__, __dir__ = attributes(__name__, _HOMES, _MODULES)
