"""``quantize_static``, ``quantize_dynamic`` and ``quantize``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.quantization.arguments import check_output, member
from sardonyx.quantization.arguments import check_types as check_static_quant_arguments
from sardonyx.quantization.companions import companions
from sardonyx.quantization.configs import DynamicQuantConfig, QuantConfig, StaticQuantConfig
from sardonyx.quantization.kinds import CalibrationMethod, QuantFormat, QuantizationMode, QuantType
from sardonyx.quantization.misuse import Misuse
from sardonyx.quantization.options import ExtraOptions
from sardonyx.quantization.qdq_config import get_qdq_config

__all__ = [
    "DynamicQuantConfig",
    "QuantConfig",
    "QuantizationMode",
    "StaticQuantConfig",
    "check_static_quant_arguments",
    "get_qdq_config",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
]

if TYPE_CHECKING:
    import onnx

    from sardonyx.ir.graph import Model
    from sardonyx.quantization.budget.goal import Budget
    from sardonyx.quantization.budget.report import Report
    from sardonyx.quantization.settings import Settings


def quantize_static(
    model_input: str | os.PathLike[str] | onnx.ModelProto,
    model_output: str | os.PathLike[str],
    calibration_data_reader: object = None,
    quant_format: QuantFormat = QuantFormat.QDQ,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: QuantType = QuantType.QInt8,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    calibration_providers: Sequence[Any] | None = None,
    extra_options: dict[str, Any] | None = None,
    calibration_cache_path: str | os.PathLike[str] | None = None,
    *,
    budget: float | Budget | None = None,
    metric: Any = None,
) -> Report | None:
    """Write a model whose weights and activations are quantized, by scales that are found in advance on data.

    ``calibration_data_reader`` gives feeds, one run after the other; None if ``calibration_cache_path`` names a table
    of ranges. A table that does not exist is written there. Types, formats and methods are those of
    ``sardonyx.quantization.kinds``, ``extra_options`` those of ``sardonyx.quantization.options``. Empty choices of
    operators or nodes mean all that can be quantized.

    A model whose outputs lose too much is quantized with more care, and a warning says how (``guard``). The extra
    option AccuracyGuard, which onnxruntime lacks, sets the limit; 0 turns this off.

    With a ``budget``, which onnxruntime lacks, layers that lose accuracy or time stay in float; the report says which
    and why. It is the largest loss of the ``metric``, or without one the smallest signal to quantization noise ratio in
    dB, or a ``Budget``. ``metric`` is a function of the outputs, a list with a dictionary for each sample in the
    reader's order, or a ``SessionMetric``. If no model meets the budget, nothing is written, and the report says so.
    """
    if budget is not None or metric is not None:
        from sardonyx.quantization.budget.search import search

        return search(
            model_input,
            model_output,
            calibration_data_reader,
            budget=budget,
            metric=metric,
            static=quantize_static,
            quant_format=quant_format,
            op_types_to_quantize=op_types_to_quantize,
            per_channel=per_channel,
            reduce_range=reduce_range,
            activation_type=activation_type,
            weight_type=weight_type,
            nodes_to_quantize=nodes_to_quantize,
            nodes_to_exclude=nodes_to_exclude,
            use_external_data_format=use_external_data_format,
            calibrate_method=calibrate_method,
            calibration_providers=calibration_providers,
            extra_options=extra_options,
            calibration_cache_path=calibration_cache_path,
        )
    from sardonyx.model.save import ExternalData, save
    from sardonyx.quantization import static
    from sardonyx.quantization.guard import Recorded, guarded, is_guarded
    from sardonyx.quantization.source import read_model, refuse_quantized, warn_unless_preprocessed

    quant_format = member(QuantFormat, quant_format, "quant_format")
    activation_type = member(QuantType, activation_type, "activation_type")
    weight_type = member(QuantType, weight_type, "weight_type")
    calibrate_method = member(CalibrationMethod, calibrate_method, "calibrate_method")
    check_output(model_output)
    options = ExtraOptions.of(extra_options)
    check_static_quant_arguments(quant_format, activation_type, weight_type)
    if activation_type.is_float8 and calibrate_method is not CalibrationMethod.Distribution:
        raise Misuse(
            "float8 needs the mean and deviation of tensors", expected="CalibrationMethod.Distribution",
            got=calibrate_method,
        )  # fmt: skip
    model = read_model(model_input)
    refuse_quantized(model)
    warn_unless_preprocessed(model)
    smoothed = options.smooth_quant
    ranges = static.stored_ranges(calibration_cache_path, calibrate_method, smoothed=smoothed)
    if calibration_data_reader is None and (ranges is None or smoothed):
        raise Misuse(
            "SmoothQuant needs a calibration_data_reader: a table has ranges only"
            if smoothed
            else "either calibration_data_reader or the calibration_cache_path of an existing table is needed"
        )
    settings = static.static_settings(
        model,
        activation_type=activation_type,
        weight_type=weight_type,
        per_channel=per_channel,
        reduce_range=reduce_range,
        op_types=op_types_to_quantize,
        nodes_to_quantize=nodes_to_quantize,
        nodes_to_exclude=nodes_to_exclude,
        options=options,
    )
    static.prepare(model, settings, quant_format)
    if smoothed:
        static.smoothed(model, settings, calibration_data_reader, providers=calibration_providers)
    recorded = (
        Recorded(calibration_data_reader) if is_guarded(settings) and calibration_data_reader is not None else None
    )
    if ranges is None:
        reader = calibration_data_reader if recorded is None else recorded
        ranges = static.calibrated(model, settings, reader, method=calibrate_method, providers=calibration_providers)
        static.keep_ranges(ranges, calibration_cache_path, smoothed=smoothed)
    settings.ranges = ranges

    def rewrite(model: Model, settings: Settings) -> None:
        static.prepare(model, settings, quant_format)
        static.rewrite(model, settings, quant_format)

    samples = [] if recorded is None else recorded.first_samples()
    if samples:
        model = guarded(model_input, samples, model, settings, rewrite)
    else:
        rewrite(model, settings)
    save(model, model_output, external=ExternalData() if use_external_data_format else None, scalar_fields=True)
    return None


def quantize_dynamic(
    model_input: str | os.PathLike[str] | onnx.ModelProto,
    model_output: str | os.PathLike[str],
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: dict[str, Any] | None = None,
) -> None:
    """Write a model whose weights are quantized; activations are, to uint8, while it runs."""
    from sardonyx.model.save import ExternalData, save
    from sardonyx.quantization.dynamic import quantize_dynamically
    from sardonyx.quantization.source import read_model, refuse_quantized, warn_unless_preprocessed

    weight_type = member(QuantType, weight_type, "weight_type")
    check_output(model_output)
    options = ExtraOptions.of(extra_options)
    model = read_model(model_input)
    refuse_quantized(model)
    warn_unless_preprocessed(model)
    quantize_dynamically(
        model,
        weight_type=weight_type,
        per_channel=per_channel,
        reduce_range=reduce_range,
        op_types=op_types_to_quantize,
        nodes_to_quantize=nodes_to_quantize,
        nodes_to_exclude=nodes_to_exclude,
        options=options,
    )
    save(model, model_output, external=ExternalData() if use_external_data_format else None, scalar_fields=True)


def quantize(
    model_input: str | os.PathLike[str] | onnx.ModelProto,
    model_output: str | os.PathLike[str],
    quant_config: Any,
) -> None:
    """Quantize as a configuration says: static, dynamic or weight-only."""
    given = {
        name: getattr(quant_config, name)
        for name in (
            "weight_type", "op_types_to_quantize", "nodes_to_quantize", "nodes_to_exclude", "per_channel",
            "reduce_range", "use_external_data_format", "extra_options",
        )
        if hasattr(quant_config, name)
    }  # fmt: skip
    if isinstance(quant_config, StaticQuantConfig):
        quantize_static(
            model_input,
            model_output,
            quant_config.calibration_data_reader,
            calibrate_method=quant_config.calibrate_method,
            quant_format=quant_config.quant_format,
            activation_type=quant_config.activation_type,
            calibration_providers=quant_config.calibration_providers,
            **given,
        )
    elif isinstance(quant_config, DynamicQuantConfig):
        quantize_dynamic(model_input, model_output, **given)
    else:
        _quantize_weights(model_input, model_output, quant_config)


def _quantize_weights(model_input: Any, model_output: str | os.PathLike[str], quant_config: Any) -> None:
    from sardonyx.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer, WeightOnlyQuantConfig

    if not isinstance(quant_config, WeightOnlyQuantConfig):
        raise Misuse(
            "unknown configuration",
            expected="StaticQuantConfig, DynamicQuantConfig or WeightOnlyQuantConfig",
            got=type(quant_config).__name__,
        )
    quantizer = MatMulNBitsQuantizer(model_input, algo_config=quant_config)
    quantizer.process()
    quantizer.model.save_model_to_file(os.fspath(model_output), True)


__getattr__ = companions(__name__)
