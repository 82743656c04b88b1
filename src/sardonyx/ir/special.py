"""Special functions that numpy lacks, vectorised, to about one unit in the last place."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Minimax fits, in rising powers.
#   |x| < 1:  erf(x) = x + x * near(x * x)
#   else:     erf(x) = sign(x) * (1 - exp(far(|x| - 2) - x * x)), which is 1 to the last bit from ``end`` on
_NEAR_F32 = (
    0.12837916591336368, -0.37612627133161464, 0.11283600143338395, -0.02685444318090545, 0.005189532608437669,
    -0.000802081693617262, 7.889038198615119e-05,
)  # fmt: skip
_FAR_F32 = (
    -1.3649410544193137, -0.41815936033756235, 0.07624691879814306, -0.016487274350410246, 0.0035437205698113515,
    -0.0007126698737623447, 0.00018559401807774617,
)  # fmt: skip
_NEAR_F64 = (
    0.1283791670955126, -0.3761263890318375, 0.11283791670954885, -0.026866170645077864, 0.005223977624828325,
    -0.0008548326981419936, 0.00012055331132766884, -1.4925595767979397e-05, 1.6461008415308224e-06,
    -1.6350395607283968e-07, 1.4660324868086386e-08, -1.137494183919923e-09, 5.960663374281812e-11,
)  # fmt: skip
_FAR_F64 = (
    -1.3649412646166375, -0.41816080599441724, 0.07624915817619535, -0.016465118136869437, 0.0035707563461484814,
    -0.0007323993857051792, 0.0001353093347945637, -2.0706432692887082e-05, 1.952193572949789e-06,
    2.0364274937484425e-07, -1.732045115746751e-07, 5.779695198573729e-08, -1.3950945991048512e-08,
    2.5393103572209336e-09, -2.741911722991511e-10, -4.317553109828398e-11, 3.735005268625274e-11,
    -1.009220086776083e-11, 1.035805254634859e-12,
)  # fmt: skip


def erf(x: Array) -> Array:
    """The error function, in the type of ``x`` (float32 or float64; anything else in float64)."""
    if x.dtype == np.float32:
        return _erf(x, _NEAR_F32, _FAR_F32, 4.0)
    return _erf(x, _NEAR_F64, _FAR_F64, 6.0)


def _erf(x: Array, near: tuple[float, ...], far: tuple[float, ...], end: float) -> Array:
    size = np.minimum(np.abs(x), end)
    square = size * size
    inner = x + x * _horner(near, np.minimum(square, 1.0))
    outer = 1.0 - np.exp(_horner(far, size - 2.0) - square)
    value: Array = np.where(size < 1.0, inner, np.copysign(outer, x))
    return value


def _horner(coefficients: tuple[float, ...], x: Array) -> Array:
    value: Array = x * coefficients[-1]
    for c in coefficients[-2:0:-1]:
        value = (value + c) * x
    return value + coefficients[0]
