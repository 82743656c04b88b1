"""Activation functions of recurrent gates as scalar programs, for numpy and for kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ir.scalar import Emitter, Expr, run_numpy, trace
from sardonyx.ops import activation
from sardonyx.records import Record

Array = np.ndarray[Any, Any]

_FUNCTIONS: dict[str, tuple[Callable[[Emitter, Expr, float, float], Expr], tuple[float, ...]]] = {
    "relu": (lambda e, x, a, b: e.maximum(x, 0), ()),
    "tanh": (lambda e, x, a, b: e.tanh(x), ()),
    "sigmoid": (lambda e, x, a, b: e.sigmoid(x), ()),
    "softsign": (lambda e, x, a, b: x / (1 + e.abs(x)), ()),
    "softplus": (lambda e, x, a, b: e.softplus(x), ()),
    "affine": (lambda e, x, a, b: a * x + b, (1.0, 0.0)),
    "leakyrelu": (lambda e, x, a, b: e.where(x >= 0, x, a * x), (0.01,)),
    "thresholdedrelu": (lambda e, x, a, b: activation.thresholded_relu(e, x, alpha=a), (1.0,)),
    "scaledtanh": (lambda e, x, a, b: a * e.tanh(b * x), (1.0, 1.0)),
    "hardsigmoid": (lambda e, x, a, b: activation.hard_sigmoid(e, x, alpha=a, beta=b), (0.2, 0.5)),
    "elu": (lambda e, x, a, b: activation.elu(e, x, alpha=a), (1.0,)),
}
"""Functions of (x, alpha, beta), with the defaults of the constants that they use."""


class Gate(Record):
    """A function by name, with its constants; its argument is clipped first, unless ``clip`` is 0."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0
    clip: float = 0.0

    def __call__(self, e: Emitter, x: Expr) -> Expr:
        fn, _ = _FUNCTIONS[self.name]
        return fn(e, e.clamp(x, -self.clip, self.clip) if self.clip else x, self.alpha, self.beta)

    @property
    def unclipped(self) -> Gate:
        return replace(self, clip=0.0)

    def numpy(self, x: Array) -> Array:
        return run_numpy(trace(_apply, (True,), gate=self), x)


def _apply(e: Emitter, x: Expr, *, gate: Gate) -> Expr:
    return gate(e, x)


def gates_of(
    what: str,
    names: Sequence[str],
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    count: int,
    clip: float | None,
) -> list[Gate]:
    """Functions by their names; alphas and betas are assigned in order to those that use them."""
    if len(names) != count:
        raise InvalidArgument(f"{what}: wrong number of activations", expected=count, got=list(names))
    alpha, beta = iter(alphas or ()), iter(betas or ())
    return [_gate(what, name.lower(), alpha, beta, float(clip or 0)) for name in names]


def _gate(what: str, name: str, alpha: Iterator[float], beta: Iterator[float], clip: float) -> Gate:
    if name not in _FUNCTIONS:
        raise InvalidArgument(f"{what}: unknown activation", expected=sorted(_FUNCTIONS), got=name)
    _, defaults = _FUNCTIONS[name]
    a = float(next(alpha, defaults[0])) if defaults else 0.0
    b = float(next(beta, defaults[1])) if len(defaults) > 1 else 0.0
    return Gate(name, a, b, clip)
