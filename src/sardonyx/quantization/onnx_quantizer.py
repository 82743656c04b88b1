"""onnxruntime's quantizer classes, which optimum uses: a model and all settings in, a quantized model out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from sardonyx.quantization import static
from sardonyx.quantization.calibrate.tensors import TensorsData
from sardonyx.quantization.dynamic import quantize_dynamically
from sardonyx.quantization.kinds import CalibrationMethod, QuantFormat, QuantizationMode, quant_type_of
from sardonyx.quantization.misuse import Misuse
from sardonyx.quantization.options import ExtraOptions
from sardonyx.quantization.source import read_model, refuse_quantized
from sardonyx.transformers.onnx_model import OnnxModel

if TYPE_CHECKING:
    import onnx

__all__ = ["BaseQuantizer", "ONNXQuantizer"]


class BaseQuantizer:
    """What both formats have in common. ``quantize_model`` quantizes ``model``, which can then be saved."""

    quant_format = QuantFormat.QDQ

    def __init__(
        self,
        model: onnx.ModelProto,
        per_channel: bool,
        reduce_range: bool,
        weight_qType: Any,
        activation_qType: Any,
        tensors_range: TensorsData | Mapping[str, Any] | None,
        nodes_to_quantize: Collection[str] | None,
        nodes_to_exclude: Collection[str] | None,
        op_types_to_quantize: Collection[str] | None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.model: Any = OnnxModel(model)
        self.per_channel, self.reduce_range = per_channel, reduce_range
        self.weight_type, self.activation_type = quant_type_of(weight_qType), quant_type_of(activation_qType)
        self.nodes_to_quantize, self.nodes_to_exclude = nodes_to_quantize or (), nodes_to_exclude or ()
        self.op_types_to_quantize = op_types_to_quantize
        self.extra_options = ExtraOptions.of(extra_options)
        if tensors_range is not None and not isinstance(tensors_range, TensorsData):
            tensors_range = TensorsData(CalibrationMethod.MinMax, dict(tensors_range.items()))
        self.tensors_range = tensors_range
        self._source = read_model(model)
        refuse_quantized(self._source)

    def quantize_model(self) -> onnx.ModelProto:
        """Quantize with known ranges."""
        if self.tensors_range is None:
            raise Misuse("static quantization needs tensors_range", hint="calibrate with create_calibrator")
        static.check_types(self.quant_format, self.activation_type, self.weight_type)
        settings = static.static_settings(
            self._source,
            activation_type=self.activation_type,
            weight_type=self.weight_type,
            per_channel=self.per_channel,
            reduce_range=self.reduce_range,
            op_types=self.op_types_to_quantize,
            nodes_to_quantize=self.nodes_to_quantize,
            nodes_to_exclude=self.nodes_to_exclude,
            options=self.extra_options,
        )
        static.prepare(self._source, settings, self.quant_format)
        settings.ranges = self.tensors_range
        static.rewrite(self._source, settings, self.quant_format)
        return self._finished()

    def _finished(self) -> onnx.ModelProto:
        from sardonyx.model.save import model_to_proto

        self.model = OnnxModel(self._source)
        return model_to_proto(self._source)


class ONNXQuantizer(BaseQuantizer):
    """Static quantization in QOperator format, or dynamic quantization."""

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
        quantize_dynamically(
            self._source,
            weight_type=self.weight_type,
            per_channel=self.per_channel,
            reduce_range=self.reduce_range,
            op_types=self.op_types_to_quantize,
            nodes_to_quantize=self.nodes_to_quantize,
            nodes_to_exclude=self.nodes_to_exclude,
            options=self.extra_options,
        )
        return self._finished()
