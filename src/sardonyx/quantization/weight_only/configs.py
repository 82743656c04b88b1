"""What each algorithm can be told, with onnxruntime's names, defaults and positions of arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sardonyx.errors import InvalidArgument, NotImplemented
from sardonyx.quantization.kinds import QuantFormat

OP_TYPES = ("MatMul", "Gather")
BITS = {"DEFAULT": (2, 4, 8), "RTN": (4, 8), "k_quant": (4, 8), "HQQ": (2, 4, 8), "GPTQ": (4, 8)}
"""The widths of codes that each algorithm writes."""


class WeightOnlyQuantConfig:
    """What all algorithms have in common."""

    bits: int
    block_size: int

    def __init__(
        self,
        algorithm: str,
        quant_format: QuantFormat,
        op_types_to_quantize: Iterable[str] | None = None,
        quant_axes: Iterable[tuple[str, int]] | Mapping[str, int] | None = None,
        customized_weight_config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if algorithm not in BITS:
            raise InvalidArgument("unknown algorithm", expected=", ".join(BITS), got=repr(algorithm))
        self.algorithm = algorithm
        self.quant_format = _format(quant_format)
        self.op_types_to_quantize = set(op_types_to_quantize) if op_types_to_quantize else {"MatMul"}
        unknown = self.op_types_to_quantize - set(OP_TYPES)
        if unknown:
            raise InvalidArgument(
                "weights of this operator type cannot be quantized", expected=" or ".join(OP_TYPES), got=sorted(unknown)
            )
        self.quant_axes = dict(quant_axes) if quant_axes else {"MatMul": 0, "Gather": 1}
        self.customized_weight_config = customized_weight_config


class DefaultWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Round to nearest as onnxruntime's kernels do."""

    def __init__(
        self,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Iterable[str] | None = None,
        quant_axes: Iterable[tuple[str, int]] | Mapping[str, int] | None = None,
        bits: int = 4,
        channel_wised_quantize: bool = False,
    ) -> None:
        """``channel_wised_quantize``: one block for each column, in QDQ format."""
        super().__init__("DEFAULT", quant_format, op_types_to_quantize, quant_axes)
        self.block_size, self.bits, self.is_symmetric = block_size, bits, is_symmetric
        self.accuracy_level, self.channel_wised_quantize = accuracy_level, channel_wised_quantize
        if channel_wised_quantize and self.quant_format is QuantFormat.QOperator:
            raise NotImplemented("MatMulNBits has blocks of a power of two: channel_wised_quantize is for QDQ format")


class RTNWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Round to nearest. ``ratios``: by name of the weight, which share of its range is kept."""

    def __init__(
        self,
        ratios: Mapping[str, float] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Iterable[str] | None = None,
        customized_weight_config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """``customized_weight_config``: by name of the node, its ``bits``, ``group_size`` and ``scheme``."""
        super().__init__("RTN", quant_format, op_types_to_quantize, customized_weight_config=customized_weight_config)
        self.ratios = dict(ratios or {})


class KQuantWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Round to nearest with a search of scales. ``ratios`` has no effect: the search finds ranges."""

    def __init__(
        self,
        ratios: Mapping[str, float] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Iterable[str] | None = None,
        customized_weight_config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            "k_quant", quant_format, op_types_to_quantize, customized_weight_config=customized_weight_config
        )
        self.ratios = dict(ratios or {})


class GPTQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Errors compensated on calibration data."""

    def __init__(
        self,
        calibration_data_reader: Any = None,
        percdamp: float = 0.01,
        block_size: int = 128,
        actorder: bool = False,
        mse: bool = False,
        perchannel: bool = True,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Iterable[str] | None = None,
    ) -> None:
        """``block_size`` is how many rows are rounded before the rest is corrected; the size of a block with one scale
        is the quantizer's.
        """
        super().__init__("GPTQ", quant_format, op_types_to_quantize)
        if not 0 <= percdamp < 1:
            raise InvalidArgument("percdamp is a share of the Hessian's diagonal", expected="from 0 to 1", got=percdamp)
        self.calibration_data_reader, self.percdamp, self.block_size = calibration_data_reader, percdamp, block_size
        self.actorder, self.mse, self.perchannel = actorder, mse, perchannel


class HQQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Zero points that are reals, chosen against outliers, without data."""

    def __init__(
        self,
        block_size: int = 128,
        bits: int = 4,
        axis: int = 1,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Iterable[str] | None = None,
        quant_axes: Iterable[tuple[str, int]] | Mapping[str, int] | None = None,
    ) -> None:
        """``axis`` has no effect, as in onnxruntime: MatMulNBits has blocks along the columns."""
        super().__init__("HQQ", quant_format, op_types_to_quantize, quant_axes)
        if self.quant_format is not QuantFormat.QOperator:
            raise NotImplemented("HQQ has zero points that are reals, which DequantizeLinear has not: use QOperator")
        if "Gather" in self.op_types_to_quantize:
            raise NotImplemented("HQQ has zero points that are reals, which GatherBlockQuantized has not")
        self.block_size, self.bits, self.axis = block_size, bits, axis


def _format(given: Any) -> QuantFormat:
    """The format; that of another package by its name."""
    try:
        return QuantFormat[getattr(given, "name", given)]
    except (KeyError, TypeError):
        raise InvalidArgument("quant_format is QuantFormat.QOperator or QuantFormat.QDQ", got=repr(given)) from None
