"""Names that programs import from other modules than those that define them.

onnxruntime's modules have, besides what they define, what they import from each other. Ours of the same names find it
here, when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sardonyx.lazy import names_from

_PACKAGE = "sardonyx.quantization"
_HOMES = {
    "ONNXModel": "onnx_model",
    "ONNXQuantizer": "onnx_quantizer",
    "QDQQuantizer": "qdq_quantizer",
    "QuantizationParams": "base_quantizer",
    "TensorQuantOverridesHelper": "tensor_quant_overrides",
    **dict.fromkeys(("IntegerOpsRegistry", "QDQRegistry", "QLinearOpsRegistry"), "registry"),
    **dict.fromkeys(
        (
            "CalibraterBase", "CalibrationDataReader", "CalibrationMethod", "TensorData", "TensorsData",
            "create_calibrator", "load_tensors_data", "save_tensors_data",
        ),
        "calibrate",
    ),
    **dict.fromkeys(
        (
            "DEQUANT_OP_NAME", "DEQUANT_OUTPUT_SUFFIX", "MODEL_SIZE_THRESHOLD", "ONNX_TYPE_TO_NP_TYPE",
            "QUANT_INPUT_SUFFIX", "QUANT_OP_NAME", "TENSOR_NAME_QUANT_SUFFIX", "ms_domain",
            "QuantFormat", "QuantType", "QuantizationMode", "QuantizedValue", "QuantizedValueType",
            "add_dequant_output_suffix", "add_dequant_suffix", "add_infer_metadata", "add_pre_process_metadata",
            "add_quant_input_suffix", "add_quant_output_suffix", "add_quant_suffix", "apply_plot", "attribute_to_kwarg",
            "compute_data_quant_params", "compute_scale_zp", "compute_scale_zp_blocked", "compute_scale_zp_float8",
            "find_by_name", "get_opset_version", "get_qmin_qmax_for_qType", "get_qrange_for_qType",
            "load_model_with_shape_infer", "model_has_infer_metadata", "model_has_pre_process_metadata",
            "normalize_axis", "pack_bytes_to_4bit", "quantize_data", "quantize_nparray", "quantize_onnx_initializer",
            "save_and_reload_model_with_shape_infer", "smooth_distribution", "snap_zero_point_to_uint8",
            "tensor_proto_to_array", "update_opset_version",
        ),
        "quant_utils",
    ),
}  # fmt: skip
"""Name to the module that has it."""


def companions(module: str) -> Callable[[str], Any]:
    """``__getattr__`` for a module of this package."""
    return names_from(module, _PACKAGE, _HOMES)
