"""How ranges are chosen from histograms: the entropy, percentile and distribution methods."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.quantization.calibrate.histogram import Histogram
from sardonyx.quantization.calibrate.tensors import TensorData
from sardonyx.quantization.kinds import CalibrationMethod
from sardonyx.quantization.misuse import Misuse

Array = np.ndarray[Any, Any]

_EPSILON = 1e-4
"""The share that empty bins get, so that logarithms are finite."""


_METHODS = {
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
    "distribution": CalibrationMethod.Distribution,
}


def histogram_method(name: str) -> CalibrationMethod:
    """The method of this name that chooses ranges from histograms."""
    if name not in _METHODS:
        raise Misuse("this method has no histogram", expected=", ".join(_METHODS), got=name)
    return _METHODS[name]


def chosen(
    histogram: Histogram,
    method: CalibrationMethod,
    *,
    bins: int,
    quantized_bins: int,
    percentile: float,
    symmetric: bool,
    scenario: str,
) -> TensorData:
    """The range that a method chooses."""
    if method is CalibrationMethod.Entropy:
        return entropy_range(histogram, bins, quantized_bins)
    if method is CalibrationMethod.Percentile:
        return percentile_range(histogram, bins, percentile, symmetric=symmetric)
    return distribution(histogram, bins, scenario)


def percentile_range(histogram: Histogram, bins: int, percentile: float, *, symmetric: bool) -> TensorData:
    """The range that ``percentile`` percent of the values lie in."""
    if not 0 <= percentile <= 100:
        raise Misuse("a percentile lies between 0 and 100", got=percentile)
    if symmetric:
        counts, edges = histogram.rebinned_magnitudes(bins)
        high = edges[_rank(counts, percentile / 100)]
        return _within(histogram, -high, high, counts, edges)
    counts, edges = histogram.rebinned(bins)
    cut = (100.0 - percentile) / 200
    return _within(histogram, edges[_rank(counts, cut)], edges[_rank(counts, 1.0 - cut)], counts, edges)


def _within(histogram: Histogram, low: Any, high: Any, counts: Array, edges: Array) -> TensorData:
    """A range, cut to that of the data."""
    lowest, highest = histogram.range
    return TensorData(
        lowest=np.maximum(np.asarray(low), lowest),
        highest=np.minimum(np.asarray(high), highest),
        hist=counts,
        bins=edges,
    )


def _rank(counts: Array, share: float) -> int:
    """The first bin up to which this share of the values lies."""
    total = counts.sum()
    if not total:
        return 0
    return int(np.searchsorted(np.cumsum(counts / total), share))


def entropy_range(histogram: Histogram, bins: int, quantized_bins: int) -> TensorData:
    """The range whose quantized distribution has the smallest Kullback-Leibler divergence from the data's.

    Candidates are ranges symmetric around 0, of at least ``quantized_bins`` bins.
    """
    counts, edges = histogram.rebinned(bins)
    middle, half = bins // 2, quantized_bins // 2
    if middle < half:
        raise Misuse("the entropy method needs at least as many bins as quantized bins", got=(bins, quantized_bins))
    best, lowest_divergence = (edges[0], edges[-1]), np.inf
    below = np.concatenate(([0], np.cumsum(counts)))
    for reach in range(half, middle + 1):
        start, stop = middle - reach, min(middle + reach + 1, bins)
        found = _divergence(counts[start:stop], below[start], below[-1] - below[stop], quantized_bins)
        if found < lowest_divergence:
            best, lowest_divergence = (edges[start], edges[stop]), found
    low, high = histogram.range
    return TensorData(
        lowest=np.maximum(np.asarray(best[0]), low),
        highest=np.minimum(np.asarray(best[1]), high),
        hist=counts,
        bins=edges,
    )


def _divergence(inside: Array, left: int, right: int, quantized_bins: int) -> float:
    """Of a clipped distribution from the same with fewer bins; infinite if all bins are empty."""
    clipped = inside.copy()
    clipped[0] += left
    clipped[-1] += right
    is_used = clipped != 0
    width = len(inside) // quantized_bins
    whole = width * quantized_bins
    sums = inside[:whole].reshape(quantized_bins, width).sum(axis=1)
    sums[-1] += inside[whole:].sum()
    used = is_used[:whole].reshape(quantized_bins, width).sum(axis=1)
    each = np.divide(sums, used, out=np.zeros(quantized_bins), where=used != 0).astype(np.int64)
    coarse = np.zeros(len(inside), np.int64)
    coarse[:whole] = np.repeat(each, width)
    p, q = smooth_distribution(clipped), smooth_distribution(coarse)
    if p is None or q is None:
        return float("inf")
    p, q = p / p.sum(), q / q.sum()
    return float(np.sum(p * np.log(p / q)))


def smooth_distribution(p: Array, eps: float = _EPSILON) -> Array | None:
    """Empty bins get a small count, taken from the others; None if all are empty."""
    is_empty = p == 0
    empty = int(is_empty.sum())
    if empty == p.size:
        return None
    taken = eps * empty / (p.size - empty)
    return np.where(is_empty, eps, p - taken).astype(np.float32)


def rel_entr(pk: Array, qk: Array) -> Array:
    """``pk * log(pk / qk)`` by element: 0 where both shares may be 0, infinite where only ``qk`` is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        each = pk * np.log(pk / qk)
    each = np.where((pk > 0) & (qk > 0), each, np.asarray(np.inf, each.dtype))
    return np.where((pk == 0) & (qk >= 0), np.asarray(0, each.dtype), each)


def entropy(pk: Array, qk: Array, base: float | None = None, axis: int = 0) -> Array:
    """The Kullback-Leibler divergence of ``pk`` from ``qk``, both scaled to sums of 1."""
    shares = [np.asarray(each, np.float32) for each in np.broadcast_arrays(pk, qk)]
    p, q = (each / each.sum(axis=axis, keepdims=True) for each in shares)
    found = rel_entr(p, q).sum(axis=axis)
    return np.asarray(found if base is None else found / np.log(base), np.float32)


def distribution(histogram: Histogram, bins: int, scenario: str) -> TensorData:
    """Mean and deviation: of the values (``same``), or of their cube roots (``p3``), for float8."""
    if bins < 512:
        raise Misuse("the distribution method needs at least 512 bins", got=bins)
    if scenario not in ("same", "p3"):
        raise Misuse("the scenario of the distribution method is same or p3", got=scenario)
    counts, edges = histogram.rebinned(bins)
    values = (edges[:-1].astype(np.float64) + edges[1:]) / 2
    if scenario == "p3":
        values = np.cbrt(values)
    total = max(int(counts.sum()), 1)
    mean = (counts * values).sum() / total
    deviation = np.sqrt(max((counts * values**2).sum() / total - mean**2, 0.0))
    return TensorData(
        avg=np.array(mean, edges.dtype),
        std=np.array(deviation, edges.dtype),
        hist=counts,
        hist_edges=edges,
        lowest=edges.min(),
        highest=edges.max(),
    )
