"""Fusions of written-out activations: Gelu, Swish, Mish, HardSigmoid, LeakyRelu and others."""

from __future__ import annotations

import math
from typing import Any

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.checks import number, require_float, require_shape_of, root
from sardonyx.optimize.pattern import Match

ROOT_HALF = math.sqrt(0.5)
ROOT_2_OVER_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715
"""The tanh formula's coefficient of x^3."""


def scaled(op: Any, x: Any, factor: float) -> Any:
    """x * factor, or x / (1 / factor)."""
    return op.either(x * factor, x / (1 / factor))


def half_product(op: Any, x: Any, y: Any) -> tuple[Any, ...]:
    """x * y / 2 in any association."""
    return (scaled(op, x, 0.5) * y, x * scaled(op, y, 0.5), (x * y) * 0.5, (x * y) / 2.0)


@fusion
class FuseGelu(Fusion):
    """x * (1 + erf(x / sqrt 2)) / 2  ->  Gelu(x)."""

    def pattern(self, op: Any, x: Any) -> Any:
        negated = op.either(x * -ROOT_HALF, x / -(1 / ROOT_HALF), scaled(op, op.Neg(x), ROOT_HALF))
        sign = op.Erf(scaled(op, x, ROOT_HALF))
        twice = op.either(sign + 1.0, 1.0 - op.Erf(op.either(negated, op.Neg(scaled(op, x, ROOT_HALF)))))
        return (*half_product(op, x, twice), x * (scaled(op, sign, 0.5) + 0.5))

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_float(m.x)
        require_shape_of(m, m.x)
        return op.Gelu(m.x)


@fusion
class FuseTanhGelu(Fusion):
    """x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) / 2  ->  Gelu(x, approximate="tanh")."""

    def pattern(self, op: Any, x: Any) -> Any:
        squared = op.either(x * x, op.Pow(x, 2.0))
        cubed = op.either(op.Pow(x, 3.0), squared * x)
        cubic = op.either(cubed * CUBIC, (squared * CUBIC) * x, (x * CUBIC) * squared, ((x * CUBIC) * x) * x)
        growth = op.either(squared * CUBIC, (x * CUBIC) * x) + 1.0
        inner = op.either(
            (x + cubic) * ROOT_2_OVER_PI,
            (x * ROOT_2_OVER_PI) * growth,
            (x * growth) * ROOT_2_OVER_PI,
            x * (growth * ROOT_2_OVER_PI),
            x * ROOT_2_OVER_PI + cubed * (CUBIC * ROOT_2_OVER_PI),
            x * (squared * (CUBIC * ROOT_2_OVER_PI) + ROOT_2_OVER_PI),
        )
        bent = op.Tanh(inner)
        return (*half_product(op, x, bent + 1.0), x * (scaled(op, bent, 0.5) + 0.5))

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_float(m.x)
        require_shape_of(m, m.x)
        return op.Gelu(m.x, approximate="tanh")


@fusion
class FuseSwish(Fusion):
    """x * sigmoid(alpha * x)  ->  Swish(x); alpha is 1 in SiLU and 1.702 in the sigmoid form of Gelu."""

    def pattern(self, op: Any, x: Any, alpha: Any) -> Any:
        return x * op.either(op.Sigmoid(x), op.Sigmoid(x * alpha)), x / (op.Exp(op.Neg(x)) + 1.0)

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_float(m.x)
        alpha = m.values.get("alpha")
        factor = 1.0 if alpha is None else number(alpha, "alpha")
        require_shape_of(m, m.x)
        return op.Swish(m.x, alpha=factor)


@fusion
class FuseSoftplus(Fusion):
    """log(1 + exp(x))  ->  Softplus(x), which does not overflow."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Log(op.Exp(x) + 1.0)

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_float(m.x, double=False)
        require_shape_of(m, m.x)
        return op.Softplus(m.x)


@fusion
class FuseMish(Fusion):
    """x * tanh(softplus(x))  ->  Mish(x)."""

    def pattern(self, op: Any, x: Any) -> Any:
        return x * op.Tanh(op.Softplus(x))

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_float(m.x, double=False)
        return op.Mish(m.x)


def clamped(op: Any, x: Any, low: Any, high: Any) -> Any:
    return op.either(op.Clip(x, low, high), op.Min(op.Max(x, low), high), op.Min(op.Relu(x), high))


@fusion
class FuseHardSigmoid(Fusion):
    """clip(x + 3, 0, 6) / 6, clip(alpha * x + beta, 0, 1)  ->  HardSigmoid(x)."""

    def pattern(self, op: Any, x: Any, alpha: Any, beta: Any) -> Any:
        return scaled(op, clamped(op, x + 3.0, 0.0, 6.0), 1 / 6), op.Clip(x * alpha + beta, 0.0, 1.0)

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_float(m.x, double=False)
        general = "alpha" in m.values
        slope, offset = (number(m.alpha, "alpha"), number(m.beta, "beta")) if general else (1 / 6, 0.5)
        require_shape_of(m, m.x)
        return op.HardSigmoid(m.x, alpha=slope, beta=offset)


@fusion
class FuseHardSwish(Fusion):
    """x * HardSigmoid(x, 1/6, 1/2), x * clip(x + 3, 0, 6) / 6  ->  HardSwish(x)."""

    def pattern(self, op: Any, x: Any) -> Any:
        gate = op.HardSigmoid(x, alpha=1 / 6, beta=0.5)
        ramp = clamped(op, x + 3.0, 0.0, 6.0)
        return x * gate, scaled(op, x * ramp, 1 / 6), scaled(op, x, 1 / 6) * ramp

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_float(m.x, double=False)
        require_shape_of(m, m.x)
        return op.HardSwish(m.x)


@fusion
class FuseLeakyRelu(Fusion):
    """max(x, alpha * x), 0 < alpha < 1; where(x > 0, x, alpha * x)  ->  LeakyRelu(x)."""

    def pattern(self, op: Any, x: Any, alpha: Any) -> Any:
        bent = x * alpha
        return (
            op.Max(x, bent),
            op.Where(op.call("", ("Greater", "GreaterOrEqual"), x, 0.0), x, bent),
            op.Where(op.call("", ("Less", "LessOrEqual"), x, 0.0), bent, x),
        )

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_float(m.x)
        alpha = number(m.alpha, "alpha")
        require(0 <= alpha <= 1 or root(m).onnx_op == "Where", "alpha is not between 0 and 1", m.alpha)
        require_shape_of(m, m.x)
        return op.LeakyRelu(m.x, alpha=alpha)


@fusion
class FusePRelu(Fusion):
    """relu(x) - slope * relu(-x), relu(x) + slope * (x - |x|) / 2  ->  PRelu(x, slope)."""

    def pattern(self, op: Any, x: Any, slope: Any, opposite: Any) -> Any:
        below = op.Relu(op.Neg(x))
        least = op.either(op.Neg(below), op.Min(x, 0.0))
        twice = x - op.Abs(x)
        return (
            op.Relu(x) + op.either(least * slope, op.Neg(below * slope), below * opposite),
            op.Relu(x) - below * slope,
            op.Relu(x) + op.either((twice * slope) * 0.5, (twice * 0.5) * slope),
        )

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_float(m.x)
        if "slope" in m.values:
            return op.PRelu(m.x, _fitting(m.slope, m.x))
        require(m.opposite.is_const, "the slope is not constant", m.opposite)
        return op.PRelu(m.x, _fitting(op.const(-m.opposite.numpy()), m.x))


def _fitting(slope: Value, x: Value) -> Value:
    """A slope that broadcasts to ``x`` without enlarging it."""
    known = slope.shape is not None and x.shape is not None and len(slope.shape) <= len(x.shape)
    require(known, "the slope is not known to broadcast to the input", slope)
    pairs = zip(reversed(slope.shape or ()), reversed(x.shape or ()), strict=False)
    require(all(d == 1 or (d is not None and d == e) for d, e in pairs), "the slope is not known to broadcast", slope)
    return slope
