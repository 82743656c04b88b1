"""Static quantization in steps: settings, calibration, rewriting. ``quantize_static`` puts them together."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from sardonyx import dtypes
from sardonyx.ir.graph import Model
from sardonyx.quantization import arguments
from sardonyx.quantization.calibrate.cache import read_table, save_tensors_data
from sardonyx.quantization.calibrate.calibraters import create_calibrator
from sardonyx.quantization.calibrate.tensors import TensorsData
from sardonyx.quantization.kinds import NARROW, WIDE, CalibrationMethod, QuantFormat, QuantType
from sardonyx.quantization.misuse import Misuse
from sardonyx.quantization.options import ExtraOptions
from sardonyx.quantization.overrides import Overrides
from sardonyx.quantization.progress import length_of
from sardonyx.quantization.qdq import quantize_qdq
from sardonyx.quantization.qoperator import quantize_qoperator
from sardonyx.quantization.registry import STATIC_OPERATORS
from sardonyx.quantization.settings import Settings
from sardonyx.quantization.smooth import muls_of, smooth
from sardonyx.quantization.source import (
    assume_types,
    forget_types,
    lift_constants,
    opset_of,
    raise_opset,
    warn_of_unknown_nodes,
)

logger = logging.getLogger("sardonyx.quantization")

PRODUCER = "sardonyx.quantization"
_CALIBRATION_OPTIONS = (
    ("symmetric", "calib_tensor_range_symmetric"),
    ("moving_average", "calib_moving_average"),
    ("averaging_constant", "calib_moving_average_constant"),
    ("max_intermediate_outputs", "calib_max_intermediate_outputs"),
    ("percentile", "calib_percentile"),
)


def static_settings(
    model: Model,
    *,
    activation_type: QuantType = QuantType.QInt8,
    weight_type: QuantType = QuantType.QInt8,
    per_channel: bool = False,
    reduce_range: bool = False,
    op_types: Iterable[str] | None = None,
    nodes_to_quantize: Collection[str] | None = None,
    nodes_to_exclude: Collection[str] | None = None,
    options: ExtraOptions | None = None,
) -> Settings:
    """Settings for a model, with everything checked that does not need calibration."""
    options = ExtraOptions.of(None) if options is None else options
    chosen = arguments.names(op_types, "op_types_to_quantize")
    arguments.check_operators(model, chosen)
    included = arguments.names(nodes_to_quantize, "nodes_to_quantize")
    excluded = arguments.names(nodes_to_exclude, "nodes_to_exclude")
    warn_of_unknown_nodes(model, included, "nodes_to_quantize")
    warn_of_unknown_nodes(model, excluded, "nodes_to_exclude")
    return Settings(
        op_types=frozenset(chosen or STATIC_OPERATORS),
        activation_type=activation_type,
        weight_type=weight_type,
        per_channel=bool(per_channel),
        reduce_range=bool(reduce_range),
        nodes_to_quantize=frozenset(included),
        nodes_to_exclude=frozenset(excluded),
        options=options,
        overrides=Overrides.of(options.tensor_quant_overrides, model, activation_type),
    )


def prepare(model: Model, settings: Settings, quant_format: QuantFormat = QuantFormat.QDQ) -> None:
    """Bring a model into the form that is calibrated and quantized: constants as initializers, the opset that the
    types need.
    """
    lift_constants(model.graph)
    raise_opset(model, required_opset(model, settings, quant_format))
    settings.assumed_types |= assume_types(model, settings.options.default_tensor_type)


def required_opset(model: Model, settings: Settings, quant_format: QuantFormat) -> int:
    """The lowest opset that has the operators and types of the quantized model."""
    kinds = {settings.activation_type, settings.weight_type, *settings.overrides.types()}
    needed = 11 if opset_of(model) < 10 else 0
    if settings.options.block_size or not kinds.isdisjoint(WIDE):
        needed = 21
    elif any(kind.is_float8 for kind in kinds):
        needed = 19
    elif quant_format is QuantFormat.QDQ and not settings.options.use_qdq_contrib_ops and kinds.isdisjoint(NARROW):
        if any(out.dtype is dtypes.f16 for node in model.graph.nodes for out in node.outputs):
            needed = 19
        elif settings.per_channel:
            needed = 13
    return needed


def smoothed(model: Model, settings: Settings, reader: object, *, providers: Sequence[Any] | None = None) -> None:
    """Apply SmoothQuant in place. It reads a copy of the reader: the same data calibrates the result."""
    try:
        data = copy.deepcopy(reader)
    except Exception as error:  # readers are the user's
        raise Misuse(
            "SmoothQuant reads the calibration data before it is read for calibration, but the reader cannot be copied",
            got=f"{type(error).__name__}: {error}",
            hint="keep the data in a list, or open files and generators in get_next",
        ) from None
    options = settings.options
    done = smooth(
        model,
        settings,
        data,
        alpha=options.smooth_quant_alpha,
        folding=options.smooth_quant_folding,
        providers=providers,
    )
    settings.nodes_to_exclude = frozenset({*settings.nodes_to_exclude, *muls_of(done)})


def calibrated(
    model: Model,
    settings: Settings,
    reader: object,
    *,
    method: CalibrationMethod = CalibrationMethod.MinMax,
    providers: Sequence[Any] | None = None,
) -> TensorsData:
    """The ranges of the tensors that the operators of the settings read and write."""
    options = settings.options
    chosen = {key: getattr(options, name) for key, name in _CALIBRATION_OPTIONS}
    if chosen["symmetric"] is None:
        del chosen["symmetric"]
    calibrater = create_calibrator(
        model, sorted(settings.op_types), calibrate_method=method, providers=providers, extra_options=chosen
    )
    stride = options.calib_strided_min_max
    if stride is None:
        calibrater.collect_data(reader)
    else:
        for start in range(0, _samples(reader, stride), stride):
            reader.set_range(start_index=start, end_index=start + stride)  # type: ignore[attr-defined]
            calibrater.collect_data(reader)
    found: TensorsData = calibrater.compute_data()
    return found


def _samples(reader: object, stride: int) -> int:
    total = length_of(reader)
    if total is None:
        raise Misuse(
            "CalibStridedMinMax needs a reader that knows its length",
            got=type(reader).__name__,
            hint="give it __len__ and set_range(start_index, end_index)",
        )
    if total % stride:
        raise Misuse("the number of samples is not a multiple of CalibStridedMinMax", expected=stride, got=total)
    return total


def stored_ranges(
    path: str | os.PathLike[str] | None, method: CalibrationMethod, *, smoothed: bool
) -> TensorsData | None:
    """The ranges of a calibration table; None if it has to be computed."""
    if path is None or not Path(path).exists():
        return None
    found, was_smoothed = read_table(path)
    if was_smoothed != smoothed:
        logger.warning("%s was made with smooth_quant=%s: it is computed again", path, was_smoothed)
        return None
    if found.calibration_method is not method:
        raise Misuse(
            "the calibration table was made by another method",
            where=str(path),
            expected=method.name,
            got=found.calibration_method.name,
            hint="delete it, or pass its method as calibrate_method",
        )
    return found


def keep_ranges(ranges: TensorsData, path: str | os.PathLike[str] | None, *, smoothed: bool) -> None:
    if path is not None:
        save_tensors_data(ranges, path, smooth_quant=smoothed)


def rewrite(model: Model, settings: Settings, quant_format: QuantFormat) -> None:
    """Quantize a prepared model in place by the ranges of its settings."""
    warn_unless_wanted(model, settings)
    (quantize_qdq if quant_format is QuantFormat.QDQ else quantize_qoperator)(model, settings)
    finish(model, settings)


def warn_unless_wanted(model: Model, settings: Settings) -> None:
    if not any(settings.wants(node) for node in model.graph.all_nodes()):
        logger.warning("nothing is quantized: no node has one of the chosen operator types and names")


def finish(model: Model, settings: Settings) -> None:
    """Sign a quantized model, with the IR version that its types need and without types that were assumed."""
    kinds = {settings.activation_type, settings.weight_type, *settings.overrides.types()}
    needed = 10 if not kinds.isdisjoint(NARROW) else 9 if any(kind.is_float8 for kind in kinds) else 0
    model.ir_version = max(model.ir_version, needed)
    model.producer_name, model.producer_version = PRODUCER, _version()
    model.stated_shapes = {}
    forget_types(model, settings.assumed_types)


def _version() -> str:
    import sardonyx

    return sardonyx.__version__
