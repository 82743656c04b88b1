"""Calibraters: they run a model over data and find the range of each tensor. Names are onnxruntime's.

Each sample is reduced to what its method needs as soon as it has run, so memory does not depend on how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.ir.graph import Model
from sardonyx.model.save import model_to_proto
from sardonyx.quantization.calibrate import methods
from sardonyx.quantization.calibrate.augment import tensors_to_calibrate, with_extremes, with_tensors
from sardonyx.quantization.calibrate.histogram import Histogram
from sardonyx.quantization.calibrate.runner import Providers, Runner, found_nan
from sardonyx.quantization.calibrate.tensors import TensorData, TensorsData
from sardonyx.quantization.kinds import CalibrationMethod
from sardonyx.quantization.misuse import Misuse
from sardonyx.quantization.shape_inference import infer_shapes
from sardonyx.quantization.source import read_model

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]
NO_DATA = "No data is collected: the calibration data reader gave nothing, or was read to its end before"


class CalibraterBase:
    """``augment_graph`` makes the tensors to calibrate outputs, ``collect_data`` runs the samples of a reader, once or
    more often, ``compute_data`` returns what was found.
    """

    method = CalibrationMethod.MinMax

    def __init__(
        self,
        model_path: str | os.PathLike[str] | Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        per_channel: bool = False,
    ) -> None:
        """``augmented_model_path`` and ``use_external_data_format`` have no effect: nothing is written."""
        self.source = read_model(model_path)
        self.op_types_to_calibrate = op_types_to_calibrate
        self.augmented_model_path = augmented_model_path
        self.symmetric = symmetric
        self.use_external_data_format = use_external_data_format
        self.per_channel = per_channel
        self.execution_providers: Providers = ["CPUExecutionProvider"]
        self.names: list[str] = []
        """The tensors to calibrate."""
        self.augmented: Model | None = None
        self.runner: Runner | None = None

    @property
    def model(self) -> onnx.ModelProto:
        return model_to_proto(self.augmented or self.source)

    @property
    def infer_session(self) -> Any:
        return None if self.runner is None else self.runner.session

    def select_tensors_to_calibrate(self, model: Any = None) -> tuple[set[str], dict[str, Any]]:
        """The names of the tensors to calibrate, and the types of all of them."""
        source = self.source if model is None else read_model(model)
        values = tensors_to_calibrate(source.graph, self.op_types_to_calibrate)
        return {value.name for value in values}, {value.name: value.type for value in values}

    def set_execution_providers(self, execution_providers: Providers = ("CPUExecutionProvider",)) -> None:
        """Run on other providers from now on."""
        self.execution_providers = execution_providers
        self.create_inference_session()

    def create_inference_session(self) -> None:
        if self.augmented is None:
            self.augment_graph()
        assert self.augmented is not None
        self.runner = Runner(self.augmented, self.execution_providers)

    def get_augment_model(self) -> onnx.ModelProto:
        return self.model

    def augment_graph(self) -> None:
        self.names = [value.name for value in tensors_to_calibrate(self.source.graph, self.op_types_to_calibrate)]
        self.augmented = self._augmented()

    def _augmented(self) -> Model:
        raise NotImplementedError

    def collect_data(self, data_reader: object) -> None:
        """Run the samples of a reader and take them into account."""
        if self.runner is None:
            self.create_inference_session()
        assert self.runner is not None
        if self.runner.run_all(data_reader, self._take) == 0 and not self._has_data:
            raise Misuse(NO_DATA)
        self._finish()

    @property
    def _has_data(self) -> bool:
        raise NotImplementedError

    @property
    def _expects_data(self) -> bool:
        """Whether the model has tensors to calibrate, or was not looked at yet."""
        return self.runner is None or bool(self.names)

    def _take(self, number: int, outputs: list[Any]) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        """Called when a reader has been read to its end."""

    def compute_data(self) -> TensorsData:
        raise NotImplementedError


class MinMaxCalibrater(CalibraterBase):
    """The range is that of the data."""

    def __init__(
        self,
        model_path: str | os.PathLike[str] | Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        moving_average: bool = False,
        averaging_constant: float = 0.01,
        max_intermediate_outputs: int | None = None,
        per_channel: bool = False,
    ) -> None:
        """With ``moving_average``, the ends of the range are the means over the samples of a reader; a further reader
        moves them by ``averaging_constant`` of the difference.
        """
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, symmetric, use_external_data_format, per_channel
        )
        if moving_average and not 0 <= averaging_constant <= 1:
            raise Misuse("the averaging constant lies between 0 and 1", got=averaging_constant)
        self.moving_average, self.averaging_constant = moving_average, averaging_constant
        self.max_intermediate_outputs = max_intermediate_outputs
        self._samples = 0
        self._current: dict[str, tuple[Array, Array]] = {}
        """Of the reader at hand: extremes, or their sums for a moving average."""
        self._ranges: dict[str, tuple[Array, Array]] = {}
        """Of all readers before."""
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def _augmented(self) -> Model:
        if self.per_channel:
            infer_shapes(self.source)
        return with_extremes(self.source, self.names, per_channel=self.per_channel)

    @property
    def _has_data(self) -> bool:
        return bool(self._ranges)

    def _take(self, number: int, outputs: list[Any]) -> None:
        self._samples += 1
        for i, name in enumerate(self.names):
            low, high = outputs[2 * i], outputs[2 * i + 1]
            if np.isnan(low).any() or np.isnan(high).any():
                raise found_nan(name, number)
            self._dtypes[name] = low.dtype
            if self.moving_average:
                low, high = low.astype(np.float64), high.astype(np.float64)
            old = self._current.get(name)
            if old is None:
                self._current[name] = low, high
            elif self.moving_average:
                self._current[name] = old[0] + low, old[1] + high
            else:
                self._current[name] = np.minimum(old[0], low), np.maximum(old[1], high)

    def _finish(self) -> None:
        for name, (low, high) in self._current.items():
            if self.moving_average:
                low, high = low / self._samples, high / self._samples
            if self.symmetric:
                high = np.maximum(np.abs(low), np.abs(high))
                low = -high
            if name in self._ranges:
                low, high = self._merged(self._ranges[name], (low, high))
            self._ranges[name] = low, high
        self._current, self._samples = {}, 0

    def _merged(self, old: tuple[Array, Array], new: tuple[Array, Array]) -> tuple[Array, Array]:
        if not self.moving_average:
            return np.minimum(old[0], new[0]), np.maximum(old[1], new[1])
        share = self.averaging_constant
        return old[0] + share * (new[0] - old[0]), old[1] + share * (new[1] - old[1])

    def compute_data(self) -> TensorsData:
        if not self._ranges and self._expects_data:
            raise Misuse(NO_DATA)
        return TensorsData(
            self.method,
            {
                name: TensorData(lowest=self._ended(name, low), highest=self._ended(name, high))
                for name, (low, high) in self._ranges.items()
            },
        )

    def _ended(self, name: str, end: Array) -> Array:
        """An end of a range as onnxruntime has it: an array of one dimension."""
        return np.asarray(end, self._dtypes[name]).reshape(-1)


class HistogramCalibrater(CalibraterBase):
    """The range is chosen from a histogram of the data."""

    def __init__(
        self,
        model_path: str | os.PathLike[str] | Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 2048,
        percentile: float = 99.999,
        scenario: str = "same",
    ) -> None:
        super().__init__(model_path, op_types_to_calibrate, augmented_model_path, symmetric, use_external_data_format)
        self.method = methods.histogram_method(method)
        self.num_bins, self.num_quantized_bins = num_bins, num_quantized_bins
        self.percentile, self.scenario = percentile, scenario
        self.histograms: dict[str, Histogram] = {}

    def _augmented(self) -> Model:
        return with_tensors(self.source, self.names)

    @property
    def _has_data(self) -> bool:
        return bool(self.histograms)

    def _take(self, number: int, outputs: list[Any]) -> None:
        for i, name in enumerate(self.names):
            values, outputs[i] = outputs[i], None
            if not self.histograms.setdefault(name, Histogram()).add(values):
                raise found_nan(name, number)

    def compute_data(self) -> TensorsData:
        if not self.histograms and self._expects_data:
            raise Misuse(NO_DATA)
        return TensorsData(self.method, {name: self._chosen(each) for name, each in self.histograms.items()})

    def _chosen(self, histogram: Histogram) -> TensorData:
        return methods.chosen(
            histogram,
            self.method,
            bins=self.num_bins,
            quantized_bins=self.num_quantized_bins,
            percentile=self.percentile,
            symmetric=self.symmetric,
            scenario=self.scenario,
        )


class EntropyCalibrater(HistogramCalibrater):
    """The range that changes the distribution of the values least when it is quantized."""

    def __init__(
        self,
        model_path: str | os.PathLike[str] | Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "entropy",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 128,
    ) -> None:
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format, method, symmetric,
            num_bins, num_quantized_bins,
        )  # fmt: skip


class PercentileCalibrater(HistogramCalibrater):
    """The range that this share of the values lies in."""

    def __init__(
        self,
        model_path: str | os.PathLike[str] | Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 2048,
        percentile: float = 99.999,
    ) -> None:
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format, method, symmetric,
            num_bins, percentile=percentile,
        )  # fmt: skip


class DistributionCalibrater(HistogramCalibrater):
    """Mean and deviation of the values, for float8."""

    def __init__(
        self,
        model_path: str | os.PathLike[str] | Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "distribution",
        num_bins: int = 128,
        scenario: str = "same",
    ) -> None:
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format, method, False,
            num_bins, scenario=scenario,
        )  # fmt: skip


_OPTIONS: dict[CalibrationMethod, dict[str, Any]] = {
    CalibrationMethod.MinMax: {
        "symmetric": False,
        "moving_average": False,
        "averaging_constant": 0.01,
        "max_intermediate_outputs": None,
        "per_channel": False,
    },
    CalibrationMethod.Entropy: {"num_bins": 128, "num_quantized_bins": 128, "symmetric": False},
    CalibrationMethod.Percentile: {"num_bins": 2048, "percentile": 99.999, "symmetric": True},
    CalibrationMethod.Distribution: {"num_bins": 2048, "scenario": "same"},
}
_CLASSES: dict[CalibrationMethod, Any] = {
    CalibrationMethod.MinMax: MinMaxCalibrater,
    CalibrationMethod.Entropy: EntropyCalibrater,
    CalibrationMethod.Percentile: PercentileCalibrater,
    CalibrationMethod.Distribution: DistributionCalibrater,
}


def create_calibrator(
    model: str | os.PathLike[str] | Model,
    op_types_to_calibrate: Sequence[str] | None = None,
    augmented_model_path: str | os.PathLike[str] = "augmented_model.onnx",
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    use_external_data_format: bool = False,
    providers: Providers | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> Any:
    """A calibrater that is ready to collect data; options that another method has are ignored."""
    if calibrate_method not in _CLASSES:
        raise Misuse("unknown calibration method", expected=", ".join(m.name for m in _CLASSES), got=calibrate_method)
    known = set().union(*_OPTIONS.values())
    given = dict(extra_options or {})
    unknown = [key for key in given if key not in known]
    if unknown:
        raise Misuse("unknown option of a calibrater", expected=", ".join(sorted(known)), got=unknown[0])
    options = {key: given.get(key, default) for key, default in _OPTIONS[calibrate_method].items()}
    made = _CLASSES[calibrate_method](
        model, op_types_to_calibrate, augmented_model_path,
        use_external_data_format=use_external_data_format, **options,
    )  # fmt: skip
    if providers:
        made.execution_providers = providers
    made.augment_graph()
    made.create_inference_session()
    return made
