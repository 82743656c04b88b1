"""``BaseQuantizer``: what onnxruntime's quantizer classes have in common, and the parameters that they speak of."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.quantization import static
from sardonyx.quantization.arguments import check_types
from sardonyx.quantization.calibrate.tensors import TensorsData
from sardonyx.quantization.companions import companions
from sardonyx.quantization.kinds import CalibrationMethod, QuantFormat, quant_type_of
from sardonyx.quantization.misuse import Misuse
from sardonyx.quantization.onnx_model import ONNXModel
from sardonyx.quantization.options import ExtraOptions
from sardonyx.quantization.source import read_model, refuse_quantized

if TYPE_CHECKING:
    import onnx

__all__ = ["BaseQuantizer", "QuantizationParams"]


class QuantizationParams:
    """Scale, zero point, axis and type of a tensor, by name."""

    def __init__(self, **data: Any) -> None:
        for key, value in data.items():
            if key == "axis":
                if value is not None and not isinstance(value, int):
                    raise TypeError(f"an axis is a number or None, not {value!r}")
            elif not isinstance(value, (int, str, np.ndarray, float)):
                raise TypeError(f"{key} is an array, a number or a text, not {type(value).__name__}")
            if key == "scale" and getattr(value, "dtype", None) not in (np.float32, np.float16):
                raise ValueError(f"a scale is an array of float32 or float16, not {value!r}")
        self.data = data

    def get(self, key: str, default_value: Any = None) -> Any:
        return self.data.get(key, default_value)

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.data[key] = value

    def __len__(self) -> int:
        return len(self.data)


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
        self.model = ONNXModel(model)
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
        check_types(self.quant_format, self.activation_type, self.weight_type)
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

        made = model_to_proto(self._source)
        self.model = ONNXModel(made)
        return made


__getattr__ = companions(__name__)
