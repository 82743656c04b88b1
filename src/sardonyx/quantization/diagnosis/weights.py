"""What is wrong with quantized weights and biases."""

from __future__ import annotations

import math

import numpy as np

from sardonyx.quantization.diagnosis.grids import Array, Grid
from sardonyx.quantization.diagnosis.layers import Constant, Layer
from sardonyx.quantization.diagnosis.match import oriented
from sardonyx.quantization.diagnosis.measure import ratio_db
from sardonyx.quantization.diagnosis.operators import WEIGHTED
from sardonyx.quantization.diagnosis.report import ERROR, WARNING, Finding
from sardonyx.records import Record

GAP_DB, POOR_DB = 6.0, 30.0
"""A weight is at fault if it is that much worse than its type allows, and worse than this."""
LOST_DB = 12.0
"""A channel below is as good as lost."""
LOST_SHARE = 0.1
"""The share of lost channels from which one scale for all of them is an error."""
BIAS_DB, BIAS_RATIO = 20.0, 0.01


class Known(Record, eq=False):
    """Where a weight is, for findings."""

    layer: str
    node: str
    index: int


def check_weight(real: Constant, quantized: Constant, kind: str, at: Known) -> tuple[list[Finding], float]:
    """Findings about a weight, and its ratio of signal to noise."""
    grid = quantized.grid
    exact = oriented(real.array, quantized.array)
    if grid is None or exact is None:
        return [], math.inf
    w, d = exact.astype(np.float64), quantized.array.astype(np.float64)
    found_db, ideal_db = _db(w, d), _db(w, requantized(w, grid))
    numbers = {"sqnr_db": found_db, "sqnr_db_possible": ideal_db, "type": str(grid.dtype)}
    if found_db < POOR_DB and ideal_db - found_db > GAP_DB:
        return [_misfit(w, d, grid, quantized, real.name, at, numbers)], found_db
    if grid.is_per_tensor and w.ndim >= 2 and kind != "Gather":  # the rows of a table have one scale in all formats
        return _uneven(w, d, grid, kind, real.name, at, numbers), found_db
    return [], found_db


def _misfit(
    w: Array, d: Array, grid: Grid, quantized: Constant, name: str, at: Known, numbers: dict[str, object]
) -> Finding:
    """A scale or zero point that does not fit the codes, or the weights."""
    ideal = float(str(numbers["sqnr_db_possible"]))
    factor = _factors(w, d, grid)
    shift = _offsets(w, d, grid)
    wrong = np.abs(factor - 1) > 0.1
    clipped = 0.0
    if quantized.codes is not None:
        low, high = grid.limits
        clipped = float(np.mean((quantized.codes == low) | (quantized.codes == high)))
    rescaled, moved = _db(w, d * _spread(factor, d, grid)), _db(w, d - _spread(shift, d, grid))
    numbers |= {"at_limits": clipped}
    if clipped > 0.05 and rescaled < ideal - GAP_DB and moved < ideal - GAP_DB:
        numbers["largest"] = float(np.abs(w).max())
        what = f"{clipped:.0%} of the codes of {name!r} are at the ends of their range ({_pair(numbers)})"
        change = f"give {name!r} a scale that covers its largest magnitude, {np.abs(w).max():.4g}"
        return Finding(at.layer, name, "clipped range", what, change, ERROR, numbers, at.index, at.node)
    if moved > rescaled:
        typical = float(np.median(np.abs(shift[np.abs(shift) > 0]))) if np.any(shift) else 0.0
        steps = float(np.median(np.abs(shift.reshape(-1) / _flat(grid.scale, shift))))
        numbers |= {"offset": typical, "offset_steps": steps}
        what = f"the values of {name!r} are off by {typical:.4g}, {steps:.3g} steps ({_pair(numbers)})"
        change = f"correct the zero point of {name!r} by {steps:.0f}"
        return Finding(at.layer, name, "wrong zero point", what, change, ERROR, numbers, at.index, at.node)
    typical = float(np.median(factor[wrong])) if wrong.any() else float(np.median(factor))
    numbers |= {
        "factor": typical,
        "channels": np.flatnonzero(wrong.reshape(-1))[:16].tolist() if factor.size > 1 else [],
    }
    many = f" in {int(wrong.sum())} of {factor.size} channels" if factor.size > 1 else ""
    what = f"the values of {name!r} are {1 / typical:.4g} times too large{many} ({_pair(numbers)})"
    scale = float(np.median(grid.scale.astype(np.float64)))
    right = f": {scale * typical:.6g}" if factor.size == 1 else ""
    change = f"multiply the scale of {name!r} by {typical:.4g}{right}"
    return Finding(at.layer, name, "wrong scale", what, change, ERROR, numbers, at.index, at.node)


def _uneven(
    w: Array, d: Array, grid: Grid, kind: str, name: str, at: Known, numbers: dict[str, object]
) -> list[Finding]:
    """Channels that one scale for all of them loses."""
    axis = WEIGHTED.get(kind, -1) % w.ndim
    others = tuple(i for i in range(w.ndim) if i != axis)
    peaks = np.abs(w).max(axis=others)
    alive = peaks > 0
    each = np.array([_db(np.take(w, i, axis), np.take(d, i, axis)) for i in range(w.shape[axis])])
    own = np.array([_db(x, _rounded_alone(x, grid)) for x in (np.take(w, i, axis) for i in range(w.shape[axis]))])
    lost = alive & (each < np.minimum(LOST_DB, own - LOST_DB))
    if not lost.any():
        return []
    largest, typical = int(peaks.argmax()), float(np.median(peaks[alive]))
    share = float(lost.sum() / alive.sum())
    numbers |= {
        "lost_channels": int(lost.sum()), "channels": int(alive.sum()), "largest_channel": largest,
        "largest": float(peaks.max()), "median": typical, "channel_sqnr_db": float(np.median(each[lost])),
        "channel_sqnr_db_possible": float(np.median(own[lost])),
    }  # fmt: skip
    each_db, own_db = float(np.median(each[lost])), float(np.median(own[lost]))
    what = (
        f"{int(lost.sum())} of {int(alive.sum())} channels of {name!r} are lost ({each_db:.1f} dB; {own_db:.1f} dB "
        f"with scales of their own): channel {largest} reaches {peaks.max():.4g}, a typical one {typical:.4g}, and all "
        "have one scale"
    )
    severity = ERROR if share >= LOST_SHARE else WARNING
    change = "quantize with per_channel=True"
    return [Finding(at.layer, name, "per-tensor weight", what, change, severity, numbers, at.index, at.node)]


def check_bias(real: Constant, quantized: Constant, expected: Array | None, at: Known) -> list[Finding]:
    """A bias that is not what it should be, or whose scale is not that of the sums. ``expected`` is their scale."""
    grid = quantized.grid
    if grid is None or real.array.size != quantized.array.size:
        return []
    b, d = (c.array.reshape(-1).astype(np.float64) for c in (real, quantized))
    found, ratio = _db(b, d), 1.0
    if expected is not None and expected.size in (1, grid.scale.size):
        ratio = float(np.median(grid.scale.reshape(-1).astype(np.float64) / expected.reshape(-1)))
    numbers = {"sqnr_db": found, "scale_ratio": ratio}
    name, is_wrong = real.name, found < BIAS_DB and not _is_small(b, grid)
    if abs(ratio - 1) <= BIAS_RATIO and not is_wrong:
        return []
    if abs(ratio - 1) > BIAS_RATIO:
        what = (
            f"the scale of {name!r} is {ratio:.4g} times the product of the scales of input and weight ({found:.1f} dB)"
        )
        change = f"requantize {name!r} as int32 with scale = scale of the input * scale of the weight"
        severity = ERROR if is_wrong else WARNING
        return [Finding(at.layer, name, "bias scale", what, change, severity, numbers, at.index, at.node)]
    factor = float(b @ d / (d @ d)) if d.any() else 0.0
    numbers["factor"] = factor
    times = 1 / factor if factor else math.inf
    what = f"{name!r} was rounded by another scale: it is {times:.4g} times too large ({found:.1f} dB)"
    change = f"requantize {name!r} as int32: round(bias / (scale of the input * scale of the weight))"
    return [Finding(at.layer, name, "bias scale", what, change, ERROR, numbers, at.index, at.node)]


def product_scale(layer: Layer) -> Array | None:
    """The scale of a product's sums: of its input times that of its weight."""
    first = layer.inputs[0] if layer.inputs else None
    if first is None or not first.read_as or layer.weight is None or layer.weight.grid is None:
        return None
    grid = layer.weight.grid
    return None if grid.block else (first.read_as[0].scale.reshape(-1) * grid.scale.reshape(-1)).astype(np.float64)


def requantized(w: Array, like: Grid) -> Array:
    """The weight rounded by the ranges of its groups: what the type and the granularity allow."""
    low, high = (_reduced(w, like, op) for op in (np.minimum, np.maximum))
    least, most = like.limits
    zero = like.zero.astype(np.float64)
    zero = zero.reshape(()) if like.is_per_tensor else zero
    if like.is_symmetric:
        reach = np.maximum(-low, high)
        scale, zeros = 2 * reach / (most - least), np.broadcast_to(zero, reach.shape)
    else:
        scale = (high - low) / (most - least)
        zeros = np.rint(least - low / np.where(scale > 0, scale, 1))
    scale = np.where(scale > 0, scale, 1.0)
    steps, points = _spread(scale, w, like), _spread(zeros, w, like)
    return np.asarray((np.clip(np.rint(w / steps) + points, least, most) - points) * steps)


def _rounded_alone(x: Array, like: Grid) -> Array:
    least, most = like.limits
    scale = 2 * float(np.abs(x).max()) / (most - least)
    return x if scale == 0 else np.asarray(np.rint(x / scale) * scale)


def _reduced(w: Array, grid: Grid, op: np.ufunc) -> Array:
    """Minima or maxima, with zero, of what shares a scale, in the shape of the scales."""
    start = np.zeros(())
    if grid.is_per_tensor:
        return np.asarray(op.reduce(w, axis=None, initial=start))
    axis = grid.axis % w.ndim
    if grid.block:
        at = np.arange(0, w.shape[axis], grid.block)
        return np.asarray(op(op.reduceat(w, at, axis=axis), 0))
    return np.asarray(op.reduce(w, axis=tuple(i for i in range(w.ndim) if i != axis), initial=start))


def _sums(w: Array, grid: Grid) -> Array:
    if grid.is_per_tensor:
        return np.asarray(w.sum())
    axis = grid.axis % w.ndim
    if grid.block:
        return np.asarray(np.add.reduceat(w, np.arange(0, w.shape[axis], grid.block), axis=axis))
    return np.asarray(w.sum(axis=tuple(i for i in range(w.ndim) if i != axis)))


def _spread(values: Array, w: Array, grid: Grid) -> Array:
    """Numbers of groups for every element."""
    if values.size == 1:
        return np.asarray(values.reshape(()))
    axis = grid.axis % w.ndim
    if grid.block:
        return np.take(np.repeat(values, grid.block, axis), np.arange(w.shape[axis]), axis)
    return np.asarray(values.reshape([-1 if i == axis else 1 for i in range(w.ndim)]))


def _factors(w: Array, d: Array, grid: Grid) -> Array:
    """What the dequantized groups would have to be multiplied by."""
    power = _sums(d * d, grid)
    return np.asarray(np.where(power > 0, _sums(w * d, grid) / np.where(power > 0, power, 1), 1.0))


def _offsets(w: Array, d: Array, grid: Grid) -> Array:
    """What would have to be subtracted from the dequantized groups."""
    return np.asarray(_sums(d - w, grid) / _sums(np.ones(w.shape), grid))


def _flat(scale: Array, like: Array) -> Array:
    return np.broadcast_to(np.abs(scale.astype(np.float64)).reshape(-1), like.reshape(-1).shape)


def _is_small(b: Array, grid: Grid) -> bool:
    """Whether a bias is so small that rounding to steps of its scale explains its error."""
    return bool(np.abs(b).max(initial=0) < 8 * float(np.median(grid.scale)))


def _db(x: Array, y: Array) -> float:
    return ratio_db(float(np.square(x).sum()), float(np.square(x - y).sum()))


def _pair(numbers: dict[str, object]) -> str:
    return f"{float(str(numbers['sqnr_db'])):.1f} dB; {float(str(numbers['sqnr_db_possible'])):.1f} dB are possible"
