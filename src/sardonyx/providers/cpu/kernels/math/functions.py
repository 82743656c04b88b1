"""Elementary functions of vectors, without library calls, and without branches except for huge angles and ``fmod``.

Arguments and results are f32 or f64. NaN, infinities, -0.0, denormals and overflow are handled as in the C library.
``benchmarks/ulp.py`` measures their errors.
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
