"""Configurations: the arguments of ``quantize_static`` and ``quantize_dynamic`` as objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.quantization.kinds import CalibrationMethod, QuantFormat, QuantType


class QuantConfig:
    """What static and dynamic quantization have in common."""

    def __init__(
        self,
        activation_type: QuantType = QuantType.QUInt8,
        weight_type: QuantType = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
    ) -> None:
        self.activation_type, self.weight_type = activation_type, weight_type
        self.op_types_to_quantize = op_types_to_quantize or []
        self.nodes_to_quantize = nodes_to_quantize or []
        self.nodes_to_exclude = nodes_to_exclude or []
        self.per_channel, self.reduce_range = per_channel, reduce_range
        self.use_external_data_format = use_external_data_format


class StaticQuantConfig(QuantConfig):
    """The arguments of ``quantize_static``."""

    def __init__(
        self,
        calibration_data_reader: object,
        calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
        quant_format: QuantFormat = QuantFormat.QDQ,
        activation_type: QuantType = QuantType.QInt8,
        weight_type: QuantType = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
        calibration_providers: Sequence[Any] | None = None,
        extra_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            activation_type,
            weight_type,
            op_types_to_quantize,
            nodes_to_quantize,
            nodes_to_exclude,
            per_channel,
            reduce_range,
            use_external_data_format,
        )
        self.calibration_data_reader = calibration_data_reader
        self.calibrate_method, self.quant_format = calibrate_method, quant_format
        self.calibration_providers = calibration_providers
        self.extra_options = extra_options or {}


class DynamicQuantConfig(QuantConfig):
    """The arguments of ``quantize_dynamic``."""

    def __init__(
        self,
        weight_type: QuantType = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
        extra_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            weight_type=weight_type,
            op_types_to_quantize=op_types_to_quantize,
            nodes_to_quantize=nodes_to_quantize,
            nodes_to_exclude=nodes_to_exclude,
            per_channel=per_channel,
            reduce_range=reduce_range,
            use_external_data_format=use_external_data_format,
        )
        self.extra_options = extra_options or {}
