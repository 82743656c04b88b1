"""ai.onnx.preview.training: one optimizer step over any number of tensors.

The inputs are the learning rate, the number of steps so far, then all tensors, all gradients and all states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.ops.registry import op

Array = np.ndarray[Any, Any]
TRAINING = "ai.onnx.preview.training"


@op("Adagrad", domain=TRAINING)
def adagrad(
    r: Array, t: Array, *inputs: Array, decay_factor: float = 0.0, epsilon: float = 1e-6, norm_coefficient: float = 0.0
) -> tuple[Array, ...]:
    rate = r / (1 + t * decay_factor)

    def step(x: Array, g: Array, h: Array) -> tuple[Array, ...]:
        g = norm_coefficient * x + g
        h = h + g * g
        return x - rate * g / (np.sqrt(h) + epsilon), h

    return _each(step, 3, inputs)


@op("Adam", domain=TRAINING)
def adam(
    r: Array,
    t: Array,
    *inputs: Array,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Array, ...]:
    rate = r * np.sqrt(1 - beta**t) / (1 - alpha**t) if t > 0 else r

    def step(x: Array, g: Array, v: Array, h: Array) -> tuple[Array, ...]:
        g = norm_coefficient * x + g
        v = alpha * v + (1 - alpha) * g
        h = beta * h + (1 - beta) * g * g
        return (1 - norm_coefficient_post) * (x - rate * v / (np.sqrt(h) + epsilon)), v, h

    return _each(step, 4, inputs)


@op("Momentum", domain=TRAINING)
def momentum(
    r: Array, t: Array, *inputs: Array, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Array, ...]:
    if mode not in ("standard", "nesterov"):
        raise InvalidGraph(f"Momentum does not know mode {mode!r}", expected="standard or nesterov")
    weight = beta if t > 0 else 1.0

    def step(x: Array, g: Array, v: Array) -> tuple[Array, ...]:
        g = norm_coefficient * x + g
        v = alpha * v + weight * g
        return x - r * (v if mode == "standard" else g + alpha * v), v

    return _each(step, 3, inputs)


def _each(step: Callable[..., tuple[Array, ...]], groups: int, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """Apply ``step`` to the i-th tensors of all groups; the results are grouped the same way."""
    count, left = divmod(len(inputs), groups)
    if left:
        raise InvalidGraph("an optimizer's inputs do not come in equal groups", expected=f"a multiple of {groups}")
    stepped = [step(*inputs[i::count]) for i in range(count)]
    return tuple(
        out.astype(x.dtype) for outs in zip(*stepped, strict=True) for out, x in zip(outs, inputs, strict=False)
    )
