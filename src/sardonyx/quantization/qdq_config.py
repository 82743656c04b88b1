"""``get_qdq_config``: a configuration that quantizes all operators of a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.quantization.configs import StaticQuantConfig
from sardonyx.quantization.kinds import NARROW, WIDE, CalibrationMethod, QuantFormat, QuantType

if TYPE_CHECKING:
    import onnx

_NEVER = frozenset({"Cast", "DequantizeLinear", "QuantizeLinear"})
_CALIBRATION = {
    "symmetric": "CalibTensorRangeSymmetric",
    "moving_average": "CalibMovingAverage",
    "averaging_constant": "CalibMovingAverageConstant",
    "max_intermediate_outputs": "CalibMaxIntermediateOutputs",
    "percentile": "CalibPercentile",
}
_PROTO_LIMIT = 2**31


def get_qdq_config(
    model_input: str | os.PathLike[str] | onnx.ModelProto,
    calibration_data_reader: object,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    calibrate_args: Mapping[str, Any] | None = None,
    activation_type: QuantType = QuantType.QUInt8,
    weight_type: QuantType = QuantType.QInt8,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    keep_removable_activations: bool = False,
    min_real_range: float | None = None,
    tensor_quant_overrides: Mapping[str, list[dict[str, Any]]] | None = None,
    calibration_providers: Sequence[Any] | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | Callable[[onnx.ModelProto, onnx.NodeProto], bool] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> StaticQuantConfig:
    """A configuration for ``quantize`` that quantizes every operator but Cast, in QDQ format.

    ``nodes_to_exclude`` may be a function of the model and a node. ``extra_options`` go before the other arguments.
    """
    import onnx

    from sardonyx.quantization.overrides import types_in

    model = (
        model_input if isinstance(model_input, onnx.ModelProto) else onnx.load(model_input, load_external_data=False)
    )
    op_types, excluded = _choice(model, op_types_to_quantize, nodes_to_exclude)
    options: dict[str, Any] = {
        "MinimumRealRange": min_real_range,
        "QDQKeepRemovableActivations": keep_removable_activations,
        "ActivationSymmetric": activation_symmetric,
        "WeightSymmetric": weight_symmetric,
        "ForceQuantizeNoInputCheck": True,
        "TensorQuantOverrides": {
            name: [dict(each) for each in v] for name, v in (tensor_quant_overrides or {}).items()
        },
    }
    options.update({_CALIBRATION[key]: value for key, value in (calibrate_args or {}).items() if key in _CALIBRATION})
    kinds = {activation_type, weight_type, *types_in(tensor_quant_overrides)}
    if _opset(model) < 21 and kinds & NARROW and not kinds & WIDE:  # 16 bits raise the model to opset 21
        options["UseQDQContribOps"] = True
    return StaticQuantConfig(
        calibration_data_reader,
        calibrate_method=calibrate_method,
        quant_format=QuantFormat.QDQ,
        activation_type=activation_type,
        weight_type=weight_type,
        op_types_to_quantize=op_types,
        nodes_to_exclude=excluded,
        per_channel=per_channel,
        reduce_range=reduce_range,
        use_external_data_format=_is_large(model_input, model),
        calibration_providers=calibration_providers,
        extra_options={**options, **(extra_options or {})},
    )


def _choice(
    model: onnx.ModelProto,
    op_types: Sequence[str] | None,
    nodes_to_exclude: Sequence[str] | Callable[[onnx.ModelProto, onnx.NodeProto], bool] | None,
) -> tuple[list[str], list[str]]:
    """Operator types to quantize, and names of nodes not to."""
    excluded = set() if nodes_to_exclude is None or callable(nodes_to_exclude) else set(nodes_to_exclude)
    found = set()
    for node in model.graph.node:
        if (op_types and node.op_type not in op_types) or node.name in excluded:
            continue
        if callable(nodes_to_exclude) and nodes_to_exclude(model, node):
            excluded.add(node.name)
        else:
            found.add(node.op_type)
    return list(op_types) if op_types else sorted(found - _NEVER), sorted(excluded)


def _opset(model: onnx.ModelProto) -> int:
    return next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)


def _is_large(source: Any, model: onnx.ModelProto) -> bool:
    """Whether weights lie in other files, or are too large for one."""
    if any(t.HasField("data_location") and t.data_location == t.EXTERNAL for t in model.graph.initializer):
        return True
    size = os.path.getsize(source) if isinstance(source, (str, os.PathLike)) else model.ByteSize()
    return size >= _PROTO_LIMIT
