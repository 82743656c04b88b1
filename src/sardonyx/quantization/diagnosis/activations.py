"""What is wrong with the scales and zero points of activations, and which activations no scale fits."""

from __future__ import annotations

import math

import numpy as np

from sardonyx.quantization.diagnosis.grids import Grid, best, over_range
from sardonyx.quantization.diagnosis.match import Pair
from sardonyx.quantization.diagnosis.measure import Seen, ratio_db
from sardonyx.quantization.diagnosis.report import ERROR, WARNING, Finding

GAP_DB, POOR_DB = 6.0, 30.0
"""A scale is worth a warning if it is that much worse than the best one, and worse than this;"""
BAD_GAP_DB, WORSE_GAP_DB, BAD_DB = 9.0, 20.0, 20.0
"""and an error if it is below the last with the first gap, or has the second."""
OUTLIER = 10.0
"""How many times as large as a typical channel an outlier channel is."""
LOST_DB = 10.0
"""A channel below is as good as lost."""
FITTING = 1.25
"""A range that is no wider than that of the values, times this, fits them; few of them may still be far out."""
SHIFTED = 0.2
"""The share of the range by which a wrong zero point shifts it."""


def check_activation(pair: Pair, seen: Seen, *, is_harmless: bool = False, is_read: bool = True) -> list[Finding]:
    """Findings about one tensor. ``is_harmless``: the model's outputs are so good that a scale that does not fit these
    data, or channels that are lost, are no errors; ``is_read``: another layer reads the tensor.
    """
    tensor = pair.quantized
    grid = tensor.quantize[-1] if tensor.quantize else None
    if seen.count == 0 or (grid is not None and not grid.is_per_tensor):
        return []
    if grid is not None and (mismatch := _mismatch(pair, grid)) is not None:
        return [mismatch]
    found = None if grid is None else _misfit(pair, seen, grid)
    if found is None and is_read:
        found = _outlier(pair, seen)
    if found is None:
        return []
    if is_harmless:
        found.severity = WARNING
    return [found]


def _mismatch(pair: Pair, grid: Grid) -> Finding | None:
    """A reader that takes the integers by another grid than they were made by."""
    for read in pair.quantized.read_as:
        if read.dtype is grid.dtype and read.is_per_tensor and read.differs_from(grid):
            made, taken = (float(g.scale.reshape(-1)[0]) for g in (grid, read))
            zeros = [float(g.zero.reshape(-1)[0]) for g in (grid, read)]
            same = math.isclose(made, taken, rel_tol=1e-3)
            numbers = {"quantized_by": made, "read_by": taken, "zero_points": zeros, "factor": taken / made}
            what = (
                f"{pair.name!r} is quantized with zero point {zeros[0]:g} and read with {zeros[1]:g}"
                if same
                else f"{pair.name!r} is quantized with scale {made:.6g} and read with {taken:.6g}"
            )
            cause = "wrong zero point" if same else "wrong scale"
            return _finding(pair, cause, what, f"read {pair.name!r} by the scale that it was quantized with", numbers)
    return None


def _misfit(pair: Pair, seen: Seen, grid: Grid) -> Finding | None:
    """A range that is not that of the values."""
    x = seen.values
    ideal = best(x, grid)
    possible = ratio_db(
        float(np.square(x, dtype=np.float64).sum()),
        float(np.square(ideal.reals(ideal.codes(x)) - x, dtype=np.float64).sum()),
    )
    found = seen.total.db
    if found >= POOR_DB or possible - found <= GAP_DB:
        return None
    gap = possible - found
    severity = ERROR if gap > (BAD_GAP_DB if found < BAD_DB else WORSE_GAP_DB) else WARNING
    low, high = grid.range
    fit = over_range(seen.low, seen.high, grid)
    scale, zero = float(grid.scale.reshape(-1)[0]), float(grid.zero.reshape(-1)[0])
    needed = fit.range[1] - fit.range[0]
    numbers = {
        "sqnr_db": found, "sqnr_db_possible": possible, "range": [low, high], "values": [seen.low, seen.high],
        "clipped_share": (seen.below + seen.above) / seen.count, "scale": scale, "zero_point": zero,
        "scale_needed": float(fit.scale), "zero_point_needed": float(fit.zero),
        "clipped_noise_share": seen.clipped.noise / seen.total.noise if seen.total.noise else 0.0,
    }  # fmt: skip
    span, shift = high - low, abs((high + low) - (fit.range[1] + fit.range[0])) / 2
    ends = (
        f"the range of {pair.name!r} is {low:.4g} to {high:.4g}, its values go from {seen.low:.4g} to {seen.high:.4g}"
    )
    told = f"({found:.1f} dB; {possible:.1f} dB are possible)"
    right = f"scale {float(fit.scale):.6g}, zero point {float(fit.zero):g}"
    one_sided = (seen.below == 0) != (seen.above == 0)
    if (0.75 <= span / needed <= 1.33 and shift > SHIFTED * needed) or (one_sided and 0.9 <= span / needed <= 1.33):
        cause, what = "wrong zero point", f"{ends} {told}"
        change = f"give {pair.name!r} zero point {float(fit.zero):g} in place of {zero:g}"
    elif seen.clipped.noise > 0.5 * seen.total.noise:
        share = (seen.below + seen.above) / seen.count
        cause, what = "clipped range", f"{share:.1%} of the values are clipped: {ends} {told}"
        change = f"calibrate with data like this, or set {right} for {pair.name!r}"
    elif span < FITTING * needed:
        tight = ideal.range
        cause = "outlier activation"
        what = f"few values of {pair.name!r} take the range of all others: {ends} {told}"
        change = (
            "calibrate with CalibrationMethod.Percentile or Entropy, or give this tensor scale "
            f"{float(ideal.scale):.6g}, zero point {float(ideal.zero):g}, that is {tight[0]:.4g} to {tight[1]:.4g}"
        )
    else:
        numbers["factor"] = span / needed
        cause, what = "wrong scale", f"the scale is {span / needed:.3g} times that of the values: {ends} {told}"
        change = f"set {right} for {pair.name!r}, unless these data are quieter than those of use"
    return _finding(pair, cause, what, change, numbers, severity)


def _outlier(pair: Pair, seen: Seen) -> Finding | None:
    """Channels so large that one scale loses the others."""
    if seen.peaks is None or seen.energy is None or seen.noise is None or len(seen.peaks) < 4:
        return None
    alive = seen.energy > 0
    typical = float(np.median(seen.peaks[alive])) if alive.any() else 0.0
    if not typical or seen.peaks.max() < OUTLIER * typical:
        return None
    with np.errstate(divide="ignore"):
        each = 10 * np.log10(seen.energy[alive] / np.maximum(seen.noise[alive], 1e-300))
    lost = each < LOST_DB
    if lost.mean() < 0.5:
        return None
    channels = np.flatnonzero(seen.peaks >= OUTLIER * typical)
    numbers = {
        "channels": channels[:16].tolist(), "largest": float(seen.peaks.max()), "median": typical,
        "lost_channels": int(lost.sum()), "channel_sqnr_db": float(np.median(each)),
    }  # fmt: skip
    listed = ", ".join(map(str, channels[:4])) + (" ..." if len(channels) > 4 else "")
    what = (
        f"channel {listed} of {pair.name!r} reaches {seen.peaks.max():.4g}, a typical one {typical:.4g}: "
        f"{int(lost.sum())} of {int(alive.sum())} channels are lost at one scale ({float(np.median(each)):.1f} dB)"
    )
    change = (
        "quantize with extra_options={'SmoothQuant': True}, which moves the outliers into the weights, give this "
        f"tensor 16 bits by TensorQuantOverrides, or leave the readers of {pair.name!r} in float"
    )
    return _finding(pair, "outlier activation", what, change, numbers)


def _finding(
    pair: Pair, cause: str, what: str, change: str, numbers: dict[str, object], severity: str = ERROR
) -> Finding:
    node = "" if pair.quantized_layer is None else pair.quantized_layer.label
    return Finding(pair.label, pair.name, cause, what, change, severity, dict(numbers), pair.index, node)
