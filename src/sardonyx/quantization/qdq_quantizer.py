"""``QDQQuantizer``, which optimum uses: static quantization in QDQ format, as a class."""

from __future__ import annotations

from sardonyx.quantization.base_quantizer import BaseQuantizer
from sardonyx.quantization.companions import companions
from sardonyx.quantization.kinds import QuantFormat

__all__ = ["QDQQuantizer"]


class QDQQuantizer(BaseQuantizer):
    quant_format = QuantFormat.QDQ


__getattr__ = companions(__name__)
