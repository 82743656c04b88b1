"""Elementary functions of vectors: without library calls, and without branches but for huge angles and remainders.

Each takes and gives f32 or f64, and treats NaN, infinities, -0.0, denormal arguments and results, and overflow as C's
library does. ``benchmarks/ulp.py`` measures their errors.
"""

from sardonyx.providers.cpu.kernels.math.exponentials import (
    acosh,
    asinh,
    atanh,
    cosh,
    erf,
    exp,
    exp_in_sigmoid,
    exp_nonpositive,
    expm1,
    log,
    log1p,
    sinh,
    tanh,
)
from sardonyx.providers.cpu.kernels.math.powers import fmod, pow, pow_constant
from sardonyx.providers.cpu.kernels.math.trigonometry import acos, asin, atan, cos, sin, tan

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "exp_in_sigmoid", "exp_nonpositive",
    "expm1", "fmod", "log", "log1p", "pow", "pow_constant", "sin", "sinh", "tan", "tanh",
]  # fmt: skip
