"""Names that programs import from ``onnxruntime.quantization.quant_utils``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import onnx

from sardonyx.quantization import names
from sardonyx.quantization.calibrate.methods import smooth_distribution
from sardonyx.quantization.calibrate.table import write_calibration_table
from sardonyx.quantization.kinds import Named, QuantFormat, QuantizationMode, QuantType, quant_type_of
from sardonyx.quantization.parameters import (
    Array,
    Parameters,
    block_parameters,
    float8_numbers,
    float8_scale_and_zero_point,
    limits,
    parameters_of_data,
    quantize_array,
    restricted_scale_and_zero_point,
)
from sardonyx.quantization.protos import (
    attribute_to_kwarg,
    find_by_name,
    generate_identified_filename,
    get_elem_index,
    get_mul_node,
    load_model_with_shape_infer,
    model_has_external_data,
    optimize_model,
    pack_bytes_to_4bit,
    quantize_onnx_initializer,
    save_and_reload_model_with_shape_infer,
    tensor_proto_to_array,
    update_opset_version,
)

__all__ = [
    "DEQUANT_OP_NAME",
    "DEQUANT_OUTPUT_SUFFIX",
    "FLOAT8_DISTRIBUTIONS",
    "FLOAT8_TYPES",
    "MODEL_SIZE_THRESHOLD",
    "ONNX_INT_TYPE_RANGE",
    "ONNX_INT_TYPE_REDUCED_RANGE",
    "ONNX_INT_TYPE_SYMMETRIC_RANGE",
    "ONNX_TYPE_TO_NP_TYPE",
    "QUANT_INPUT_SUFFIX",
    "QUANT_OP_NAME",
    "TENSOR_NAME_QUANT_SUFFIX",
    "BiasToQuantize",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "QuantizedInitializer",
    "QuantizedValue",
    "QuantizedValueType",
    "add_dequant_input_suffix",
    "add_dequant_output_suffix",
    "add_dequant_suffix",
    "add_infer_metadata",
    "add_pre_process_metadata",
    "add_quant_input_suffix",
    "add_quant_output_suffix",
    "add_quant_suffix",
    "apply_plot",
    "attribute_to_kwarg",
    "compute_data_quant_params",
    "compute_scale_zp",
    "compute_scale_zp_blocked",
    "compute_scale_zp_float8",
    "find_by_name",
    "generate_identified_filename",
    "get_elem_index",
    "get_mul_node",
    "get_opset_version",
    "get_qmin_qmax_for_qType",
    "get_qrange_for_qType",
    "load_model_with_shape_infer",
    "model_has_external_data",
    "model_has_infer_metadata",
    "model_has_pre_process_metadata",
    "ms_domain",
    "normalize_axis",
    "onnx_domain",
    "optimize_model",
    "pack_bytes_to_4bit",
    "quantize_data",
    "quantize_nparray",
    "quantize_onnx_initializer",
    "save_and_reload_model_with_shape_infer",
    "smooth_distribution",
    "snap_zero_point_to_uint8",
    "tensor_proto_to_array",
    "type_to_name",
    "update_opset_version",
    "write_calibration_table",
]

QUANT_OP_NAME, DEQUANT_OP_NAME = "QuantizeLinear", "DequantizeLinear"
QUANT_INPUT_SUFFIX, DEQUANT_OUTPUT_SUFFIX = names.quantize_input(""), names.dequantize_output("")
TENSOR_NAME_QUANT_SUFFIX = names.quantized("")
MODEL_SIZE_THRESHOLD = 2**31
onnx_domain, ms_domain = "ai.onnx", "com.microsoft"
_PREPROCESSED, _INFERRED = "onnx.quant.pre_process", "onnx.infer"
_BY = "onnxruntime.quant"

type_to_name: dict[int, str] = {code: name for name, code in onnx.TensorProto.DataType.items()}
"""The code of an element type to onnx's name of it."""
ONNX_TYPE_TO_NP_TYPE = {kind.tensor_type: kind.dtype.numpy for kind in QuantType}
FLOAT8_TYPES = tuple(type_code for type_code, name in type_to_name.items() if name.startswith(("FLOAT8E4", "FLOAT8E5")))
FLOAT8_DISTRIBUTIONS = {QuantType.QFLOAT8E4M3FN.tensor_type: float8_numbers()}
"""All finite numbers of a float8 type, by its code."""


def _ranges(**choice: bool) -> dict[int, tuple[Array, Array]]:
    return {
        kind.tensor_type: get_qmin_qmax_for_qType(kind.tensor_type, **choice)
        for kind in QuantType
        if not kind.is_float8
    }


class QuantizedValueType(Named):
    """Where a quantized value comes from."""

    Input = 0
    Initializer = 1


@dataclass(eq=False)
class QuantizedInitializer:
    """A constant, its ranges and parameters, and its integers."""

    name: str
    initializer: onnx.TensorProto
    rmins: Any
    rmaxs: Any
    zero_points: Any
    scales: Any
    data: Any = ()
    quantized_data: Any = ()
    axis: int | None = None


class QuantizedValue:
    """The names of a quantized value, its scale and its zero point."""

    def __init__(
        self,
        name: str,
        new_quantized_name: str,
        scale_name: str,
        zero_point_name: str,
        quantized_value_type: QuantizedValueType,
        axis: int | None = None,
        node_type: str | None = None,
        node_qtype: int | None = None,
        scale_type: int | None = None,
    ) -> None:
        self.original_name, self.q_name = name, new_quantized_name
        self.scale_name, self.zp_name = scale_name, zero_point_name
        self.value_type, self.axis = quantized_value_type, axis
        self.node_type, self.node_qtype, self.scale_type = node_type, node_qtype, scale_type


@dataclass(eq=False)
class BiasToQuantize:
    """A bias and the operands whose scales give its own."""

    bias_name: str
    input_name: str
    weight_name: str


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


def get_qrange_for_qType(qType: int, reduce_range: bool = False, symmetric: bool = False) -> Array:
    """How many integers of a type are used, less one. It may not fit the type: the result is an int64."""
    low, high = limits(quant_type_of(qType), symmetric=symmetric, reduce_range=reduce_range)
    return np.array(high - low)


def compute_scale_zp_float8(element_type: int, std: Any) -> list[Array]:
    """Zero point and scale for numbers of this standard deviation in float8e4m3fn."""
    if not quant_type_of(element_type).is_float8:
        raise ValueError(f"{element_type} is not the code of float8e4m3fn")
    scale, zero = float8_scale_and_zero_point(np.asarray(std))
    return [zero, scale]


def compute_scale_zp_blocked(
    weight: Array, quant_type: int, axis: int, block_size: int, symmetric: bool
) -> tuple[Array, Array]:
    """Zero points and scales of blocks along an axis."""
    found = block_parameters(weight, quant_type_of(quant_type), axis % weight.ndim, block_size, symmetric=symmetric)
    return found.zero_point, found.scale


def snap_zero_point_to_uint8(
    rmin: Any, rmax: Any, qmin: int = 0, qmax: int = 255, min_real_range: float | None = None
) -> tuple[Array, Array]:
    """Zero point and scale for uint8 that clip nothing: the zero point is the smallest integer if no value is negative,
    else the middle one.
    """
    low, high = (float(np.squeeze(each)) for each in (rmin, rmax))
    scale, zero = restricted_scale_and_zero_point(low, high, minimum_range=min_real_range, ends=(int(qmin), int(qmax)))
    return zero, scale


def normalize_axis(axis: int, rank: int) -> tuple[bool, int]:
    """Whether a tensor of this rank has the axis, and the axis counted from the front."""
    found = axis + rank if axis < 0 else axis
    return 0 <= found < rank, found


def add_quant_suffix(tensor_name: str) -> str:
    return names.quantize_node(tensor_name)


def add_quant_input_suffix(tensor_name: str) -> str:
    return names.quantize_input(tensor_name)


def add_quant_output_suffix(tensor_name: str) -> str:
    return names.quantize_output(tensor_name)


def add_dequant_suffix(tensor_name: str) -> str:
    return names.dequantize_node(tensor_name)


def add_dequant_input_suffix(tensor_name: str) -> str:
    return f"{tensor_name}_DequantizeLinear_Input"


def add_dequant_output_suffix(tensor_name: str) -> str:
    return names.dequantize_output(tensor_name)


def apply_plot(hist: Array, hist_edges: Array) -> None:
    """Print a histogram and draw it, by matplotlib."""
    pyplot: Any = import_module("matplotlib.pyplot")

    for low, high, count in zip(hist_edges, hist_edges[1:], hist, strict=False):
        print(f"{low:12.6g} .. {high:12.6g}  {count}")
    pyplot.stairs(hist, hist_edges, fill=True)
    pyplot.xlabel("value")
    pyplot.ylabel("count")
    pyplot.show()


ONNX_INT_TYPE_RANGE = _ranges()
ONNX_INT_TYPE_REDUCED_RANGE = _ranges(reduce_range=True)
ONNX_INT_TYPE_SYMMETRIC_RANGE = {
    code: found for code, found in _ranges(symmetric=True).items() if found != ONNX_INT_TYPE_RANGE[code]
}
"""By the code of an element type its smallest and its largest integer."""
