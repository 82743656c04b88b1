"""``ONNXQuantizer``, which optimum uses: a model and all settings in, a quantized model out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sardonyx.quantization.base_quantizer import BaseQuantizer
from sardonyx.quantization.calibrate.tensors import TensorsData
from sardonyx.quantization.companions import companions
from sardonyx.quantization.dynamic import quantize_dynamically
from sardonyx.quantization.kinds import QuantFormat, QuantizationMode

if TYPE_CHECKING:
    import onnx

__all__ = ["BaseQuantizer", "ONNXQuantizer"]


class ONNXQuantizer(BaseQuantizer):
    """Static quantization in QOperator format, or dynamic quantization.

    Unlike ``quantize_dynamic`` it also quantizes products of two computed values, unless MatMulConstBOnly is set.
    """

    quant_format = QuantFormat.QOperator

    def __init__(
        self,
        model: onnx.ModelProto,
        per_channel: bool,
        reduce_range: bool,
        mode: QuantizationMode,
        static: bool,
        weight_qType: Any,
        activation_qType: Any,
        tensors_range: TensorsData | Mapping[str, Any] | None,
        nodes_to_quantize: Collection[str] | None,
        nodes_to_exclude: Collection[str] | None,
        op_types_to_quantize: Collection[str] | None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            model,
            per_channel,
            reduce_range,
            weight_qType,
            activation_qType,
            tensors_range,
            nodes_to_quantize,
            nodes_to_exclude,
            op_types_to_quantize,
            extra_options,
        )
        self.mode, self.static = mode, static

    def quantize_model(self) -> onnx.ModelProto:
        if self.static:
            return super().quantize_model()
        options = self.extra_options
        if options.matmul_const_b_only is None:
            options = replace(options, matmul_const_b_only=False)
        quantize_dynamically(
            self._source,
            weight_type=self.weight_type,
            per_channel=self.per_channel,
            reduce_range=self.reduce_range,
            op_types=self.op_types_to_quantize,
            nodes_to_quantize=self.nodes_to_quantize,
            nodes_to_exclude=self.nodes_to_exclude,
            options=options,
        )
        return self._finished()


__getattr__ = companions(__name__)
