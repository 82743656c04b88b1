"""``QDQQuantizer``: static quantization in QDQ format, as a class."""

from __future__ import annotations

from sardonyx.quantization.kinds import QuantFormat
from sardonyx.quantization.onnx_quantizer import BaseQuantizer

__all__ = ["QDQQuantizer"]


class QDQQuantizer(BaseQuantizer):
    quant_format = QuantFormat.QDQ
