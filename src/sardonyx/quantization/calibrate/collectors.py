"""Ranges of arrays that a program collects itself, without a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.quantization.calibrate import methods
from sardonyx.quantization.calibrate.histogram import Array, Histogram
from sardonyx.quantization.kinds import CalibrationMethod
from sardonyx.quantization.misuse import Misuse


class CalibrationDataCollector(ABC):
    """Takes arrays by name of the tensor, and tells of each what was made of them."""

    @abstractmethod
    def collect(self, name_to_arr: Mapping[str, Any]) -> None:
        """Add arrays, or lists of them."""

    @abstractmethod
    def compute_collection_result(self) -> Mapping[str, Any]:
        """What was found, by name of the tensor."""


class HistogramCollector(CalibrationDataCollector):
    """Ranges by the entropy, percentile or distribution method, in memory that does not grow with the data."""

    def __init__(
        self,
        method: str,
        symmetric: bool,
        num_bins: int,
        num_quantized_bins: int,
        percentile: float,
        scenario: str,
    ) -> None:
        self.method, self.symmetric, self.num_bins = method, symmetric, num_bins
        self.num_quantized_bins, self.percentile, self.scenario = num_quantized_bins, percentile, scenario
        self._method = methods.histogram_method(method)
        self._histograms: dict[str, Histogram] = {}

    def collect(self, name_to_arr: Mapping[str, Any]) -> None:
        for name, arrays in name_to_arr.items():
            for array in arrays if isinstance(arrays, list) else [arrays]:
                if not self._histograms.setdefault(name, Histogram()).add(np.asarray(array)):
                    raise Misuse("an array to collect contains NaN", where=f"tensor {name!r}")

    def get_histogram_dict(self) -> dict[str, tuple[Any, ...]]:
        """By name of the tensor: counts, edges, the smallest and the largest value."""
        return {name: (*self._binned(each), *each.range) for name, each in self._histograms.items()}

    def _binned(self, histogram: Histogram) -> tuple[Array, Array]:
        if self.symmetric and self._method is CalibrationMethod.Percentile:
            return histogram.rebinned_magnitudes(self.num_bins)
        return histogram.rebinned(self.num_bins)

    def compute_collection_result(self) -> dict[str, Any]:
        """By name of the tensor its range, counts and edges; a ``TensorData`` by the distribution method."""
        if not self._histograms:
            raise Misuse("nothing was collected", hint="call collect() first")
        found = {
            name: methods.chosen(
                each,
                self._method,
                bins=self.num_bins,
                quantized_bins=self.num_quantized_bins,
                percentile=self.percentile,
                symmetric=self.symmetric,
                scenario=self.scenario,
            )
            for name, each in self._histograms.items()
        }
        if self._method is CalibrationMethod.Distribution:
            return dict(found)
        return {name: (each.lowest, each.highest, each.hist, each.bins) for name, each in found.items()}
