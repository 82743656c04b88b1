"""``extra_options``: onnxruntime's keys, typed and checked.

An unknown key is an error, where onnxruntime ignores it: a misspelt option would otherwise change nothing, silently.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from sardonyx import dtypes
from sardonyx.quantization.misuse import Misuse

Check = Callable[[Any], bool]


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, int) and value in (0, 1))


def _is_optional_flag(value: Any) -> bool:
    return value is None or _is_flag(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def _is_optional_number(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_fraction(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _is_percentile(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 100


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_optional_count(value: Any) -> bool:
    return value is None or (_is_count(value) and value > 0)


def _is_optional_type(value: Any) -> bool:
    return value is None or (_is_count(value) and value in {dtype.onnx for dtype in dtypes.every()})


def _are_names(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, str) for each in value)


def _are_axes(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(k, str) and isinstance(v, int) for k, v in value.items())


def _is_mapping(value: Any) -> bool:
    return value is None or isinstance(value, Mapping)


def _option(key: str, default: Any, check: Check, expected: str) -> Any:
    told = {"key": key, "check": check, "expected": expected}
    if callable(default):
        return field(default_factory=default, metadata=told)
    return field(default=default, metadata=told)


def _flag(key: str, default: bool = False) -> Any:
    return _option(key, default, _is_flag, "True or False")


@dataclass(frozen=True)
class ExtraOptions:
    """All options, with their defaults where the caller gave none."""

    activation_symmetric: bool = _flag("ActivationSymmetric")
    """Ranges of activations are made symmetric around 0."""
    activation_restricted_asymmetric: bool = _flag("ActivationRestrictedAsymmetric")
    """Zero points of uint8 activations are 0 or 128: the scale is enlarged for it."""
    force_symmetric: bool = _flag("ForceSymmetric")
    """Both of activation_symmetric and weight_symmetric; an old option that optimum still passes."""
    weight_symmetric: bool | None = _option("WeightSymmetric", None, _is_optional_flag, "True, False or None")
    """Ranges of weights are made symmetric; None: those of signed types."""
    enable_subgraph: bool = _flag("EnableSubgraph")
    """The bodies of If, Loop and Scan are quantized too."""
    force_quantize_no_input_check: bool = _flag("ForceQuantizeNoInputCheck")
    """MaxPool, Transpose and their like are quantized even if their input is not quantized already."""
    matmul_const_b_only: bool | None = _option("MatMulConstBOnly", None, _is_optional_flag, "True, False or None")
    """Only products with a constant right operand are quantized; None: in dynamic quantization."""
    add_qdq_pair_to_weight: bool = _flag("AddQDQPairToWeight")
    """Weights stay reals, followed by a QuantizeLinear and a DequantizeLinear."""
    op_types_to_exclude_output_quantization: tuple[str, ...] = _option(
        "OpTypesToExcludeOutputQuantization", (), _are_names, "a list of operator types"
    )
    """Results of these operators are not quantized."""
    dedicated_qdq_pair: bool = _flag("DedicatedQDQPair")
    """Every reader of a tensor gets a QuantizeLinear and a DequantizeLinear of its own."""
    per_channel_axes: Mapping[str, int] = _option(
        "QDQOpTypePerChannelSupportToAxis", dict, _are_axes, "a dictionary from operator types to axes"
    )
    """The channel axis of the weights of an operator type."""
    calib_tensor_range_symmetric: bool | None = _option(
        "CalibTensorRangeSymmetric", None, _is_optional_flag, "True or False"
    )
    """Ranges that calibration finds are made symmetric; None: by the Percentile method only."""
    calib_moving_average: bool = _flag("CalibMovingAverage")
    """MinMax averages the smallest and the largest values of runs."""
    calib_moving_average_constant: float = _option(
        "CalibMovingAverageConstant", 0.01, _is_fraction, "a number between 0 and 1"
    )
    """The weight of the newest data in that average."""
    calib_strided_min_max: int | None = _option(
        "CalibStridedMinMax", None, _is_optional_count, "a positive number of samples, or None"
    )
    """Data is read in ranges of this many samples, by ``set_range`` of the reader."""
    calib_max_intermediate_outputs: int | None = _option(
        "CalibMaxIntermediateOutputs", None, _is_optional_count, "a positive number, or None"
    )
    """Accepted for onnxruntime's sake: results of runs are never kept here."""
    calib_percentile: float = _option("CalibPercentile", 99.999, _is_percentile, "a number between 0 and 100")
    """The share of values that the range of the Percentile method covers."""
    quantize_bias: bool = _flag("QuantizeBias", True)
    """Biases become int32 (QDQ format)."""
    smooth_quant: bool = _flag("SmoothQuant")
    """Outliers of activations are moved into the weights before quantization."""
    smooth_quant_alpha: float = _option("SmoothQuantAlpha", 0.5, _is_fraction, "a number between 0 and 1")
    """How much of an outlier is moved; 1 is all of it."""
    smooth_quant_folding: bool = _flag("SmoothQuantFolding", True)
    """The factors of SmoothQuant are folded into the operators before, where those can take them."""
    use_qdq_contrib_ops: bool = _flag("UseQDQContribOps")
    """QuantizeLinear and DequantizeLinear are written in the domain com.microsoft."""
    minimum_real_range: float | None = _option("MinimumRealRange", None, _is_optional_number, "a number, or None")
    """The smallest distance between the ends of a range."""
    tensor_quant_overrides: Mapping[str, Any] = _option(
        "TensorQuantOverrides", dict, _is_mapping, "a dictionary from tensor names to lists of dictionaries"
    )
    """Type, scale, range ... of single tensors."""
    qdq_keep_removable_activations: bool = _flag("QDQKeepRemovableActivations")
    """Relu and Clip stay where the range of the quantized type would do their work."""
    qdq_disable_weight_adjust_for_int32_bias: bool = _flag("QDQDisableWeightAdjustForInt32Bias")
    """Scales of weights are not enlarged where the bias would not fit int32 otherwise."""
    block_size: int = _option("BlockSize", 0, _is_count, "a number of elements, 0 for none")
    """Weights are quantized in blocks of this many elements (QDQ format, opset 21)."""
    default_tensor_type: int | None = _option("DefaultTensorType", None, _is_optional_type, "a TensorProto.DataType")
    """Element type of activations whose type cannot be inferred."""
    accuracy_guard: float = _option("AccuracyGuard", 15.0, _is_number, "a number of decibels, 0 for none")
    """Not onnxruntime's: the signal to noise of outputs below which ``guard`` has a model quantized with more care."""
    nnapi_sigmoid: bool = _flag("extra.Sigmoid.nnapi")
    """Results of Sigmoid get the scale and zero point that Android's NNAPI prescribes."""

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> ExtraOptions:
        """Read ``extra_options``."""
        if isinstance(given, ExtraOptions):
            return given
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise Misuse("extra_options is a dictionary", got=type(given).__name__)
        by_key = {each.metadata["key"]: each for each in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in given.items():
            if key not in by_key:
                raise _unknown(key, by_key)
            each = by_key[key]
            if not each.metadata["check"](value):
                raise Misuse(
                    "the value of an extra option is wrong", where=key, expected=each.metadata["expected"], got=value
                )
            values[each.name] = _normal(value)
        if values.get("force_symmetric"):
            values["activation_symmetric"] = values["weight_symmetric"] = True
        return cls(**values)


def keys() -> tuple[str, ...]:
    """The keys that ``extra_options`` may have."""
    return tuple(each.metadata["key"] for each in fields(ExtraOptions))


def _normal(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _unknown(key: object, known: Mapping[str, object]) -> Misuse:
    near = difflib.get_close_matches(str(key), known, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "see sardonyx.quantization.options"
    return Misuse("no extra option has this name", got=repr(key), hint=hint)
