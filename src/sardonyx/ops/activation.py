"""Pointwise activation functions."""

from __future__ import annotations

import math

import numpy as np

from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.ops.pointwise import pointwise


def _f32(value: float) -> float:
    """A default as ONNX stores it."""
    return float(np.float32(value))


@pointwise("Relu")
def relu(e: Emitter, x: Expr) -> Expr:
    return e.maximum(x, 0)


@pointwise("LeakyRelu")
def leaky_relu(e: Emitter, x: Expr, *, alpha: float = _f32(0.01)) -> Expr:
    return e.where(x < 0, x * alpha, x)


@pointwise("PRelu")
def prelu(e: Emitter, x: Expr, slope: Expr) -> Expr:
    return e.where(x < 0, x * slope, x)


@pointwise("ThresholdedRelu")
def thresholded_relu(e: Emitter, x: Expr, *, alpha: float = 1.0) -> Expr:
    return e.where(x > alpha, x, 0)


@pointwise("Elu")
def elu(e: Emitter, x: Expr, *, alpha: float = 1.0) -> Expr:
    return e.where(x < 0, alpha * e.expm1(x), x)


@pointwise("Selu")
def selu(
    e: Emitter, x: Expr, *, alpha: float = _f32(1.6732632423543772), gamma: float = _f32(1.0507009873554805)
) -> Expr:
    return gamma * e.where(x > 0, x, alpha * e.expm1(x))


@pointwise("Celu")
def celu(e: Emitter, x: Expr, *, alpha: float = 1.0) -> Expr:
    return e.maximum(x, 0) + e.minimum(alpha * e.expm1(x / alpha), 0)


@pointwise("HardSigmoid")
def hard_sigmoid(e: Emitter, x: Expr, *, alpha: float = _f32(0.2), beta: float = 0.5) -> Expr:
    return e.clamp(alpha * x + beta, 0, 1)


@pointwise("HardSwish")
def hard_swish(e: Emitter, x: Expr) -> Expr:
    """x * clamp(x/6 + 1/2, 0, 1)."""
    return x * e.clamp(x * (1 / 6) + 0.5, 0, 1)


@pointwise("Sigmoid")
def sigmoid(e: Emitter, x: Expr) -> Expr:
    return e.sigmoid(x)


@pointwise("Swish")
def swish(e: Emitter, x: Expr, *, alpha: float = 1.0) -> Expr:
    return x * e.sigmoid(alpha * x)


@pointwise("SwiGLU")
def swiglu(e: Emitter, gate: Expr, x: Expr, *, alpha: float = 1.0) -> Expr:
    return swish(e, gate, alpha=alpha) * x


@pointwise("Softplus")
def softplus(e: Emitter, x: Expr) -> Expr:
    return e.softplus(x)


@pointwise("Softsign")
def softsign(e: Emitter, x: Expr) -> Expr:
    return x / (1 + e.abs(x))


@pointwise("Mish")
def mish(e: Emitter, x: Expr) -> Expr:
    return x * e.tanh(e.softplus(x))


@pointwise("Gelu")
def gelu(e: Emitter, x: Expr, *, approximate: str = "none") -> Expr:
    """x * P(normal < x), exact or by the tanh formula."""
    if approximate == "tanh":
        return 0.5 * x * (1 + e.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + e.erf(x * math.sqrt(0.5)))


@pointwise("Shrink")
def shrink(e: Emitter, x: Expr, *, lambd: float = 0.5, bias: float = 0.0) -> Expr:
    return e.where(x < -lambd, x + bias, e.where(x > lambd, x - bias, 0))
