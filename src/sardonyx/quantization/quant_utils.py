"""Names that programs import from ``onnxruntime.quantization.quant_utils``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.quantization.calibrate.table import write_calibration_table
from sardonyx.quantization.kinds import QuantFormat, QuantizationMode, QuantType, quant_type_of
from sardonyx.quantization.parameters import (
    Array,
    Parameters,
    limits,
    parameters_of_data,
    quantize_array,
)

if TYPE_CHECKING:
    import onnx

__all__ = [
    "DEQUANT_OP_NAME",
    "MODEL_SIZE_THRESHOLD",
    "QUANT_OP_NAME",
    "TENSOR_NAME_QUANT_SUFFIX",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "add_infer_metadata",
    "add_pre_process_metadata",
    "compute_data_quant_params",
    "compute_scale_zp",
    "get_opset_version",
    "get_qmin_qmax_for_qType",
    "model_has_infer_metadata",
    "model_has_pre_process_metadata",
    "ms_domain",
    "onnx_domain",
    "quantize_data",
    "quantize_nparray",
    "write_calibration_table",
]

QUANT_OP_NAME, DEQUANT_OP_NAME = "QuantizeLinear", "DequantizeLinear"
TENSOR_NAME_QUANT_SUFFIX = "_quantized"
MODEL_SIZE_THRESHOLD = 2**31
onnx_domain, ms_domain = "ai.onnx", "com.microsoft"
_PREPROCESSED, _INFERRED = "onnx.quant.pre_process", "onnx.infer"
_BY = "onnxruntime.quant"


def compute_scale_zp(
    rmin: Any, rmax: Any, qmin: Any, qmax: Any, symmetric: bool = False, min_real_range: float | None = None
) -> list[Array]:
    """Zero point and scale that map the reals from ``rmin`` to ``rmax`` to the integers from ``qmin`` to ``qmax``."""
    if qmin > 0 or qmax < 0:
        raise ValueError(f"the integers must contain 0, not only {qmin}..{qmax}")
    low, high = np.minimum(rmin, np.zeros((), rmin.dtype)), np.maximum(rmax, np.zeros((), rmax.dtype))
    if min_real_range is not None:
        high = np.maximum(high, low + low.dtype.type(min_real_range))
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    exact = (np.float64(high) - np.float64(low)) / (np.float64(qmax) - np.float64(qmin))
    if exact < np.finfo(high.dtype).tiny:
        return [np.array(0, qmin.dtype), np.array(1.0, high.dtype)]
    zero = (float(qmin) + float(qmax)) / 2 if symmetric else float(qmin) - float(low) / exact
    return [np.array(np.round(zero), qmin.dtype), np.array(exact, high.dtype)]


def compute_data_quant_params(
    data: Array,
    quant_type: int,
    symmetric: bool,
    reduce_range: bool = False,
    min_real_range: float | None = None,
    rmin_override: float | None = None,
    rmax_override: float | None = None,
) -> tuple[Array, Array]:
    """Zero point and scale of a constant."""
    found = _parameters(data, quant_type, symmetric, reduce_range, min_real_range, rmin_override, rmax_override)
    return found.zero_point, found.scale


def quantize_data(
    data: Array,
    qType: int,
    symmetric: bool,
    reduce_range: bool = False,
    min_real_range: float | None = None,
    rmin_override: float | None = None,
    rmax_override: float | None = None,
) -> tuple[Array, Array, Array]:
    """Zero point and scale of a constant, and its integers."""
    found = _parameters(data, qType, symmetric, reduce_range, min_real_range, rmin_override, rmax_override)
    return found.zero_point, found.scale, quantize_array(np.asarray(data), found)


def _parameters(data: Any, code: int, symmetric: bool, reduce_range: bool, minimum: Any, low: Any, high: Any) -> Any:
    return parameters_of_data(
        np.asarray(data),
        quant_type_of(code),
        symmetric=symmetric,
        reduce_range=reduce_range,
        minimum_range=minimum,
        low=low,
        high=high,
    )


def quantize_nparray(
    qType: int,
    arr: Array,
    scale: Any,
    zero_point: Any,
    low: int | None = None,
    high: int | None = None,
) -> Array:
    """The integers of an array, clipped to ``low`` and ``high`` too."""
    kind = quant_type_of(qType)
    made = quantize_array(np.asarray(arr), Parameters(kind, np.asarray(scale), np.asarray(zero_point)))
    if low is None and high is None:
        return made
    return np.clip(made.astype(np.int32), low, high).astype(made.dtype)


def get_qmin_qmax_for_qType(
    qType: int,
    reduce_range: bool = False,
    symmetric: bool = False,
) -> tuple[Array, Array]:
    """The smallest and the largest integer of a type."""
    kind = quant_type_of(qType)
    low, high = limits(kind, symmetric=symmetric, reduce_range=reduce_range)
    return np.array(low, kind.dtype.numpy), np.array(high, kind.dtype.numpy)


def get_opset_version(model: onnx.ModelProto) -> int:
    """The opset of ai.onnx that a model imports."""
    found = [each.version for each in model.opset_import if each.domain in ("", onnx_domain)]
    if len(found) != 1:
        raise ValueError("the model imports no opset of ai.onnx, or several")
    return int(found[0])


def model_has_pre_process_metadata(model: onnx.ModelProto) -> bool:
    return _has(model, _PREPROCESSED)


def model_has_infer_metadata(model: onnx.ModelProto) -> bool:
    return _has(model, _INFERRED)


def add_pre_process_metadata(model: onnx.ModelProto) -> None:
    """Note in a model that it went through ``quant_pre_process``."""
    _add(model, _PREPROCESSED)


def add_infer_metadata(model: onnx.ModelProto) -> None:
    """Note in a model that its types were inferred."""
    _add(model, _INFERRED)


def _has(model: onnx.ModelProto, key: str) -> bool:
    props: Sequence[Any] = model.metadata_props
    return any(each.key == key and each.value == _BY for each in props)


def _add(model: onnx.ModelProto, key: str) -> None:
    if not _has(model, key):
        model.metadata_props.add(key=key, value=_BY)
